//! Taking over what another process of PyTorch held: its segments, live blocks and free memory.
//!
//! A replay of a recording that began late begins with [`Earlier`], what was held before the first
//! event. Each segment is taken from the device anew and cut as it was:
//!
//! ```text
//!  earlier:   | a: requested 5000 ...|      free       | b: ends here ..|
//!  adopted:   | a: 5120 bytes   |         free         | b              |
//! ```
//!
//! Where it is not known how many bytes a block was granted, the settings tell: it was rounded up,
//! and in the large pool it kept what followed if that is no more than 1 MiB, for nothing free
//! there is as small. If more follows, part of it may have been kept; none is assumed.
//!
//! Not known are the order in which segments were taken, which decides between equal free blocks
//! from torch 2.12 on (here it is that of their addresses), and when memory was freed, which the
//! collection of garbage asks (here it is now).

use girih_trace::{Earlier, EarlierBlock, EarlierSegment};

use super::Caching;
use super::block::{Block, Home};
use super::rounding::{MAX_REQUEST, SMALL_SIZE, round_size};
use super::search::Search;
use crate::device::{Address, Device};
use crate::policy::{AllocError, BlockId, Env, Granted};

/// What was taken over.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Adopted {
    /// The live blocks that were given to a request of the recording.
    pub blocks: Vec<AdoptedBlock>,
    /// Live blocks of which it is assumed, not known, that they kept no remainder.
    pub assumed: u64,
}

/// A live block that was taken over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdoptedBlock {
    /// Index of its request in the lifetimes.
    pub request: u32,
    /// Where it is now.
    pub granted: Granted,
    /// True if its free had been asked for: the caller frees it, after it recorded the stream that
    /// holds it.
    pub is_pending: bool,
}

/// A part of a segment: free, or a live block.
struct Part<'a> {
    size: u64,
    block: Option<&'a EarlierBlock>,
}

/// The runs of each reservation, by address.
fn reservations(earlier: &Earlier) -> Vec<Vec<&EarlierSegment>> {
    let home = |run: &EarlierSegment| (run.pool, run.stream, run.is_small, run.base);
    let runs = earlier.segments.iter().filter(|segment| segment.is_expandable);
    let mut runs: Vec<&EarlierSegment> = runs.collect();
    runs.sort_by_key(|run| (home(run), run.address));
    runs.chunk_by(|one, other| home(one) == home(other)).map(<[_]>::to_vec).collect()
}

impl Caching {
    /// Takes over what was held before a recording began. The allocator holds nothing yet. Nothing
    /// is logged: to those who look on, it was always there. Segments are asked for in the order of
    /// `earlier`, the runs of expandable ones after all others; where the device gives other
    /// addresses than they had, blocks keep their places within them.
    ///
    /// # Errors
    /// [`AllocError::Unsupported`] if an expandable segment is not made of pages of the settings'
    /// size, or is larger than a reservation on this device; nothing was taken over then. What the
    /// device refuses; what was taken over by then stays, consistent.
    pub fn adopt(
        &mut self,
        device: &mut dyn Device,
        earlier: &Earlier,
    ) -> Result<Adopted, AllocError> {
        self.check_adoption(device.memory_info().total, earlier)?;
        let mut adopted = Adopted::default();
        let mut env = Env { device, log: &mut (), listens: false, may_wait: true };
        for segment in earlier.segments.iter().filter(|segment| !segment.is_expandable) {
            self.adopt_segment(&mut env, segment, &mut adopted)?;
        }
        for runs in reservations(earlier) {
            self.adopt_reservation(&mut env, &runs, &mut adopted)?;
        }
        Ok(adopted)
    }

    /// Refuses what [`Caching::adopt`] cannot take over on a device of `total` bytes.
    pub(crate) fn check_adoption(&self, total: u64, earlier: &Earlier) -> Result<(), AllocError> {
        reservations(earlier).iter().try_for_each(|runs| self.check_reservation(total, runs))
    }

    fn adopt_segment(
        &mut self,
        env: &mut Env<'_>,
        segment: &EarlierSegment,
        adopted: &mut Adopted,
    ) -> Result<(), AllocError> {
        let home = self.home_of(segment);
        let address = env.device.alloc(segment.size)?;
        let registration = self.register();
        let block = Block::new(address, segment.size, home);
        let id = self.blocks.insert(Block { registration, ..block });
        self.stats.segment.increase(segment.is_small, 1);
        self.stats.reserved_bytes.increase(segment.is_small, segment.size);
        self.pools.count_taken(home, segment.size);
        if segment.size >= self.config.max_split_size {
            self.stats.oversize_segments.increase(1);
        }
        self.stats.num_device_alloc += 1;
        self.cut(id, segment, adopted);
        Ok(())
    }

    /// Refuses runs that are not made of pages, or that no reservation on a device of `total` bytes
    /// can hold.
    fn check_reservation(&self, total: u64, runs: &[&EarlierSegment]) -> Result<(), AllocError> {
        let mut end = 0;
        for run in runs {
            let page = self.page(run.is_small);
            let distance = run.address - run.base;
            let aligned = distance.is_multiple_of(page) && run.size.is_multiple_of(page);
            let reach = distance.saturating_add(run.size);
            if !aligned || distance < end || reach > total {
                return Err(AllocError::Unsupported {
                    operation: "taking over an expandable segment",
                    reason: format!(
                        "the {} bytes at {:#x} are not made of pages of {page} bytes, or reach \
                         beyond a reservation on a device of {total} bytes",
                        run.size, run.address
                    ),
                });
            }
            end = reach;
        }
        Ok(())
    }

    /// Reserves addresses, and maps each run at its distance from the base.
    fn adopt_reservation(
        &mut self,
        env: &mut Env<'_>,
        runs: &[&EarlierSegment],
        adopted: &mut Adopted,
    ) -> Result<(), AllocError> {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Ok(()) };
        let size = last.address - first.base + last.size;
        let search = Search { size, home: self.home_of(first), expandable: true };
        let Some(mut rest) = self.reserve_segment(env, &search, self.page(first.is_small))? else {
            return Err(self.out_of_memory(env, size, size));
        };
        let base = self.blocks[rest].address;
        for run in runs {
            let start = base + (run.address - run.base);
            let id = self.split_unmapped(rest, start);
            let mapped = self.map_block(env, id, run.size);
            if !matches!(mapped, Ok(true)) {
                self.join_unmapped(id);
                mapped?;
                return Err(self.out_of_memory(env, run.size, run.size));
            }
            rest = self.blocks[id].next;
            self.remove_free(id);
            self.cut(id, run, adopted);
        }
        Ok(())
    }

    fn home_of(&mut self, segment: &EarlierSegment) -> Home {
        let owner = self.pools.find_or_insert(segment.pool);
        self.home(2 * owner as u32 + u32::from(!segment.is_small), segment.stream)
    }

    /// Splits an unmapped block at an address within it; returns the part that begins there. Both
    /// are one again, or one is mapped, before anyone else looks.
    fn split_unmapped(&mut self, id: BlockId, address: Address) -> BlockId {
        let whole = self.blocks[id];
        if whole.address == address {
            return id;
        }
        let size = address - whole.address;
        self.blocks[id].size = size;
        let registration = self.register_part(whole.registration);
        let rest = Block { address, size: whole.size - size, registration, ..whole };
        let rest = self.blocks.insert(rest);
        self.blocks.link(id, rest, whole.next);
        self.insert_unmapped(rest);
        rest
    }

    /// Undoes [`Caching::split_unmapped`]. A reservation that was not split is gone by then.
    fn join_unmapped(&mut self, id: BlockId) {
        if self.blocks[id].exists && !self.blocks[id].mapped {
            self.remove_unmapped(id);
            self.merge(id, self.blocks[id].prev);
            self.insert_unmapped(id);
        }
    }

    /// Cuts a block that is in no set, all of the segment and what is free below, as the segment was.
    fn cut(&mut self, id: BlockId, segment: &EarlierSegment, adopted: &mut Adopted) {
        let mut parts = self.parts_of(segment, adopted);
        // Pages that were mapped right behind free memory have become one block with it.
        let below = self.blocks[id].size - segment.size;
        match parts.first_mut() {
            Some(Part { size, block: None }) => *size += below,
            _ if below > 0 => parts.insert(0, Part { size: below, block: None }),
            _ => {}
        }
        let Some((_, heads)) = parts.split_last() else { return };
        let mut cut: Vec<BlockId> =
            heads.iter().map(|part| self.cut_low_end(id, part.size)).collect();
        cut.push(id);
        for (part, id) in parts.iter().zip(cut) {
            match part.block {
                Some(block) => self.adopt_block(id, block, adopted),
                None => self.adopt_free(id),
            }
        }
    }

    /// The parts of a segment, which tile it.
    fn parts_of<'a>(&self, segment: &'a EarlierSegment, adopted: &mut Adopted) -> Vec<Part<'a>> {
        let end = segment.address + segment.size;
        let mut parts = Vec::with_capacity(2 * segment.blocks.len() + 1);
        let mut at = segment.address;
        for (index, block) in segment.blocks.iter().enumerate() {
            let limit = segment.blocks.get(index + 1).map_or(end, |next| next.address);
            if block.address < at || limit <= block.address {
                continue;
            }
            if at < block.address {
                parts.push(Part { size: block.address - at, block: None });
            }
            at = match block.end {
                Some(end) => end.clamp(block.address + 1, limit),
                None => self.granted_end(segment, block, limit, adopted),
            };
            parts.push(Part { size: at - block.address, block: Some(block) });
        }
        if at < end {
            parts.push(Part { size: end - at, block: None });
        }
        parts
    }

    /// Where a block ends of which only the bytes requested are known, and that nothing else was
    /// in before `limit`.
    fn granted_end(
        &self,
        segment: &EarlierSegment,
        block: &EarlierBlock,
        limit: Address,
        adopted: &mut Adopted,
    ) -> Address {
        let requested = block.requested.min(MAX_REQUEST - 1);
        let rounded = round_size(requested, &self.config.roundup_power2_divisions);
        let end = block.address.saturating_add(rounded).min(limit);
        if segment.is_small || self.config.expandable_segments {
            return end;
        }
        if rounded >= self.config.max_split_size || limit - end <= SMALL_SIZE {
            return limit;
        }
        adopted.assumed += 1;
        end
    }

    /// Counts a part as a live block.
    fn adopt_block(&mut self, id: BlockId, block: &EarlierBlock, adopted: &mut Adopted) {
        // A file may claim anything; more than was granted cannot have been requested.
        let requested = block.requested.min(self.blocks[id].size);
        let granted = self.take_into_use(id, requested);
        if let Some(request) = block.request {
            adopted.blocks.push(AdoptedBlock { request, granted, is_pending: block.is_pending });
        }
    }

    /// Counts a part as free memory, and puts it on its shelf.
    fn adopt_free(&mut self, id: BlockId) {
        let block = self.blocks[id];
        if !block.is_expandable() && block.is_split() {
            let is_small = block.home.is_small();
            self.stats.inactive_split.increase(is_small, 1);
            self.stats.inactive_split_bytes.increase(is_small, block.size);
        }
        self.insert_free(id);
    }
}
