//! Segments: ranges of addresses of one home, and the pages that are mapped in them.
//!
//! ```text
//!  reservation, 9/8 of the device:
//!  | 2 | 2 | 2 |  4  |  4  | 2 |   8    |   8    | 2 |  ...  unmapped  ...
//!  | used | used | free   | used  | free  | used     |
//! ```
//!
//! A page is one handle of the device. Every one costs the same to map, however small, and of a hole whole
//! pages alone can be shown elsewhere. So pages grow with what is in use ([`super::growth`]), and a segment
//! has pages of several sizes side by side.

use std::cell::Cell;
use std::ops::Range;

use super::views::Part;
use crate::chain::NIL;
use crate::device::{Address, Device, DeviceError, Handle};
use crate::pending::Limbo;
use crate::policy::BlockId;

/// A handle, and where it is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Page {
    pub(super) address: Address,
    pub(super) size: u64,
    pub(super) handle: Handle,
}

impl Page {
    /// Its bytes.
    pub(super) fn part(&self) -> Part {
        Part { address: self.address, size: self.size }
    }

    fn end(&self) -> Address {
        self.address + self.size
    }
}

/// A reservation and the pages mapped in it.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) base: Address,
    pub(super) size: u64,
    /// It is not given back, whatever is mapped in it.
    pub(super) stays: bool,
    /// Bytes of which pages are multiples: the device's granularity.
    granule: u64,
    /// For each granule up to the last that was ever mapped, its page.
    of_granule: Vec<Option<Page>>,
    /// For each of them the block over it when somebody looked, and behind them the block that was looked for last.
    /// It may be gone.
    near: Vec<Cell<BlockId>>,
}

impl Segment {
    pub(super) fn new(base: Address, size: u64, granule: u64) -> Segment {
        let near = vec![Cell::new(NIL)];
        Segment { base, size, stays: false, granule, of_granule: Vec::new(), near }
    }

    /// Where it is noted which block lies over an address.
    #[inline]
    pub(super) fn noted(&self, address: Address) -> &Cell<BlockId> {
        &self.near[self.granule_at(address).min(self.near.len() - 1)]
    }

    /// The same; beside it; and which was looked for last.
    pub(super) fn near(&self, address: Address) -> [&Cell<BlockId>; 4] {
        let last = self.near.len() - 1;
        let at = self.granule_at(address).min(last);
        [at, at.saturating_sub(1), (at + 1).min(last), last].map(|at| &self.near[at])
    }

    /// True if the byte at `address` lies in it.
    pub(super) fn contains(&self, address: Address) -> bool {
        (self.base..self.base + self.size).contains(&address)
    }

    /// Maps new pages of `page` bytes in a part, where nothing is mapped; the last one may be smaller. Both are
    /// multiples of the granularity. On an error nothing is mapped, and the handles have
    /// gone back to the device.
    pub(super) fn map(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        part: Part,
        page: u64,
    ) -> Result<(), DeviceError> {
        // What was mapped here before may be owed to the device still.
        limbo.settle(device)?;
        let mut pages: Vec<Page> = Vec::with_capacity(part.size.div_ceil(page) as usize);
        let mut mapped = 0;
        let mut make = || {
            let mut address = part.address;
            while address < part.end() {
                let size = page.min(part.end() - address);
                let handle = device.create(size)?;
                pages.push(Page { address, size, handle });
                address += size;
            }
            for page in &pages {
                device.map(page.address, page.handle)?;
                mapped += page.size;
            }
            device.set_access(part.address, part.size)
        };
        if let Err(error) = make() {
            if mapped > 0 {
                limbo.unmap(device, part.address, mapped);
            }
            for page in pages {
                limbo.release(device, page.handle);
            }
            return Err(error);
        }
        let granules = self.granules(part);
        if self.of_granule.len() < granules.end {
            self.of_granule.resize(granules.end, None);
            self.near.resize(granules.end + 1, Cell::new(NIL));
        }
        for page in pages {
            let granules = self.granules(Part { address: page.address, size: page.size });
            self.of_granule[granules].fill(Some(page));
        }
        Ok(())
    }

    /// Forgets the pages of a range, which are whole and not mapped any more, and hands out their handles.
    pub(super) fn forget(&mut self, part: Part) -> Vec<Handle> {
        let handles = self.pages(part).map(|page| page.handle).collect();
        let granules = self.granules(part);
        self.of_granule[granules].fill(None);
        handles
    }

    #[inline]
    fn granule_at(&self, address: Address) -> usize {
        ((address - self.base) / self.granule) as usize
    }

    fn granules(&self, part: Part) -> Range<usize> {
        self.granule_at(part.address)..self.granule_at(part.end())
    }

    /// The page over a byte, if there is one.
    fn page_at(&self, address: Address) -> Option<&Page> {
        self.of_granule.get(self.granule_at(address))?.as_ref()
    }

    /// The pages over a part, all of which is mapped.
    pub(super) fn pages(&self, part: Part) -> impl Iterator<Item = Page> {
        std::iter::successors(self.page_at(part.address).copied(), move |page| {
            (page.end() < part.end()).then(|| self.page_at(page.end()).copied()).flatten()
        })
    }

    /// The bytes from the first beginning to the last end of a page within a mapped part: empty if no page is whole,
    /// and none if no page begins or ends in it.
    pub(super) fn whole_pages(&self, of: Part) -> Option<Part> {
        let (first, last) = (self.page_at(of.address)?, self.page_at(of.end() - 1)?);
        let start = if first.address == of.address { of.address } else { first.end() };
        let end = if last.end() == of.end() { of.end() } else { last.address };
        (start <= end).then_some(Part::between(start, end))
    }

    /// Bytes that are mapped, counted anew; none if the books disagree. For the walk that checks everything.
    pub(super) fn count(&self) -> Option<u64> {
        let pages = self.of_granule.chunk_by(|one, other| one == other);
        let pages = pages.filter_map(|run| run[0].map(|page| (page, run.len() as u64)));
        pages.map(|(page, count)| (page.size == count * self.granule).then_some(page.size)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimDevice;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_hole_lends_the_whole_pages_in_it() {
        let mut device = SimDevice::new(1 << 30);
        let mut limbo = Limbo::default();
        let base = device.reserve(1 << 30).unwrap();
        let mut segment = Segment::new(base, 1 << 30, 2 * MIB);
        let part = |at: u64, size: u64| Part { address: base + at * MIB, size: size * MIB };
        let mut map = |segment: &mut Segment, at: u64, bytes: u64, page: u64| {
            segment.map(&mut device, &mut limbo, part(at, bytes), page * MIB).unwrap();
        };
        map(&mut segment, 0, 8, 8);
        map(&mut segment, 8, 6, 4);
        assert_eq!(segment.count(), Some(14 * MIB));
        let whole = |segment: &Segment, from: u64, size: u64| {
            let whole = segment.whole_pages(part(from, size)).unwrap();
            (whole.address - base, whole.end() - base)
        };
        assert_eq!(whole(&segment, 0, 14), (0, 14 * MIB));
        assert_eq!(whole(&segment, 1, 12), (8 * MIB, 12 * MIB));
        assert_eq!(whole(&segment, 0, 13), (0, 12 * MIB));
        assert_eq!(whole(&segment, 1, 8), (8 * MIB, 8 * MIB), "none is whole, and two meet");
        assert_eq!(segment.whole_pages(part(1, 1)), None);
        let over: Vec<u64> = segment.pages(part(9, 4)).map(|page| page.size).collect();
        assert_eq!(over, [4 * MIB, 2 * MIB]);
        assert_eq!(segment.forget(part(8, 4)).len(), 1);
        assert_eq!((segment.count(), segment.page_at(base + 9 * MIB)), (Some(10 * MIB), None));
        device.unmap(base + 8 * MIB, 4 * MIB).unwrap();
        segment.map(&mut device, &mut limbo, part(8, 4), 2 * MIB).unwrap();
        assert_eq!(segment.pages(part(0, 14)).count(), 4);
    }
}
