//! The bytes of the host that swapped tensors have: of exact size, never more than the budget.
//!
//! ```text
//!  addresses  | used | free | used |  used  | free  |..........|     one range, pinned from the front on
//!              <------------- pinned ------------->  not yet
//! ```
//!
//! Memory is pinned by threads, piece by piece ([`pins`](super::pins)): as much as was asked to be ready beyond what is
//! used, and all of a budget that a user chose. Without a budget of the GPU nothing is pinned before it is nearly full.
//! The first pieces serve while the others come. Only a copy that finds no place waits for more; it is counted, with
//! the time.
//!
//! A place is the smallest free range that fits, or several where none does: as long as the budget has the bytes there
//! is a place. What the system refuses to pin is used too, but last: a copy of it keeps the host waiting.

use std::collections::BTreeMap;
use std::sync::Arc;

use girih_runtime::{DeviceError, HostAddress, HostBacking, HostMemory};

use super::pins::Pins;
use super::ranges::{Part, Ranges};
use crate::control::timed;
use crate::units::short;

/// Bytes that places are multiples of: a page of the host.
const GRAIN: u64 = 4096;
/// Free bytes below which more are pinned, unless a user said how much there should be.
pub(super) const AHEAD: u64 = 8 << 30;

/// A place of the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    /// The ranges that it consists of, in the order of its bytes; whole pages. Nearly always one.
    pub(crate) parts: Vec<Part>,
}

impl Slot {
    /// Bytes of all parts.
    pub(crate) fn size(&self) -> u64 {
        self.parts.iter().map(|part| part.size).sum()
    }

    /// Where each part's bytes are, of a tensor of `size` bytes: from which byte on, address, how many.
    pub(crate) fn pieces(&self, size: u64) -> impl Iterator<Item = (u64, HostAddress, u64)> {
        let mut from = 0;
        self.parts.iter().map_while(move |part| {
            let bytes = part.size.min(size.checked_sub(from)?);
            let piece = (from, part.address, bytes);
            from += part.size;
            (bytes > 0).then_some(piece)
        })
    }
}

/// Why there is no place on the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NoSlot {
    /// The budget is used up.
    Budget,
    /// The host does not give so much memory.
    Refused(DeviceError),
}

/// Memory of the host.
pub(crate) struct Host {
    pins: Pins,
    budget: u64,
    used: u64,
    used_peak: u64,
    /// Bytes that are pinned, and that could not be.
    pinned: u64,
    pageable: u64,
    /// Free bytes of the one and of the other.
    free: Ranges,
    slow: Ranges,
    /// Pieces that are pageable.
    slow_pieces: BTreeMap<HostAddress, u64>,
    /// Free bytes below which more are pinned, and how many were asked for last.
    ahead: u64,
    wanted: u64,
    /// What the system refused last: then no more is asked for ahead.
    refused: Option<DeviceError>,
    is_refusal_told: bool,
    /// Places that had to be waited for, and how long. Seconds.
    late: u64,
    waited: f64,
}

impl Host {
    /// At most `budget` bytes, none of which is there yet.
    pub(crate) fn new(memory: Arc<dyn HostMemory>, budget: u64) -> Host {
        let budget = budget / GRAIN * GRAIN;
        Host {
            pins: Pins::new(memory, budget),
            budget,
            used: 0,
            used_peak: 0,
            pinned: 0,
            pageable: 0,
            free: Ranges::default(),
            slow: Ranges::default(),
            slow_pieces: BTreeMap::new(),
            ahead: 0,
            wanted: 0,
            refused: None,
            is_refusal_told: false,
            late: 0,
            waited: 0.0,
        }
    }

    /// From now on so many free bytes are pinned ahead of need, within the budget.
    pub(crate) fn hold_ready(&mut self, bytes: u64) {
        self.ahead = bytes;
    }

    /// The most bytes that may be used. What is pinned already stays.
    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes in use now, and at most so far.
    pub(crate) fn used(&self) -> (u64, u64) {
        (self.used, self.used_peak)
    }

    /// Bytes that are pinned.
    pub(crate) fn pinned(&self) -> u64 {
        self.pinned
    }

    /// Bytes that are there and could not be pinned.
    pub(crate) fn pageable(&self) -> u64 {
        self.pageable
    }

    /// Places that had to be waited for, and how long. Seconds.
    pub(crate) fn late(&self) -> (u64, f64) {
        (self.late, self.waited)
    }

    /// What a user should be told of a refusal; once.
    pub(crate) fn take_refusal(&mut self) -> Option<String> {
        self.collect();
        let refused = self.refused.as_ref().filter(|_| !self.is_refusal_told)?;
        self.is_refusal_told = true;
        Some(format!(
            "the system pins {} of the {} that swapping may have of the host, and refuses more ({refused}). What goes \
             beyond is copied with the program waiting. Raise the limit of locked memory (ulimit -l), or choose a \
             smaller host_budget.",
            short(self.pinned),
            short(self.budget)
        ))
    }

    /// Lets threads pin more if less is free than should be.
    pub(crate) fn pin_ahead(&mut self) {
        let wanted = self.used.saturating_add(self.ahead).min(self.budget);
        // Of what nobody waits for, so much at a time.
        if self.refused.is_none() && wanted > self.wanted {
            self.want(wanted);
        }
    }

    fn want(&mut self, bytes: u64) {
        self.wanted = self.wanted.max(bytes);
        if let Err(error) = self.pins.want(bytes) {
            self.refused = Some(error);
        }
    }

    /// Takes in what threads have pinned. False if the host had no memory for some of it.
    fn collect(&mut self) -> bool {
        let mut is_all_there = true;
        for (piece, outcome) in self.pins.collect() {
            match outcome {
                Ok(HostBacking::Pinned) => {
                    self.pinned += piece.size;
                    self.free.add(piece);
                }
                Ok(HostBacking::Pageable(error)) => {
                    self.pageable += piece.size;
                    self.slow_pieces.insert(piece.address, piece.size);
                    self.slow.add(piece);
                    self.refused = Some(error);
                }
                Err(error) => {
                    self.refused = Some(error);
                    is_all_there = false;
                }
            }
        }
        is_all_there
    }

    /// A place for `bytes`.
    ///
    /// # Errors
    /// If the budget or the host has no more.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<Slot, NoSlot> {
        let size = bytes.checked_next_multiple_of(GRAIN).ok_or(NoSlot::Budget)?;
        if self.used.saturating_add(size) > self.budget {
            return Err(NoSlot::Budget);
        }
        self.collect();
        let parts = match self.free.take(size) {
            Some(parts) => parts,
            None => self.take_late(size)?,
        };
        self.used += size;
        self.used_peak = self.used_peak.max(self.used);
        Ok(Slot { parts })
    }

    /// The same, once more is there.
    #[cold]
    fn take_late(&mut self, size: u64) -> Result<Vec<Part>, NoSlot> {
        self.late += 1;
        let mut is_there_more = true;
        loop {
            // Each time: a refusal ends what is wanted.
            if is_there_more {
                self.want(self.used + size);
            }
            let (has_come, seconds) = timed(|| self.pins.wait());
            self.waited += seconds;
            // What the host has no memory for is not tried again for the same place.
            is_there_more &= self.collect();
            if let Some(parts) = self.free.take(size) {
                return Ok(parts);
            }
            if !has_come {
                break;
            }
        }
        if self.free.bytes() + self.slow.bytes() < size {
            return Err(self.refused.clone().map_or(NoSlot::Budget, NoSlot::Refused));
        }
        let mut parts = self.free.take_largest(size);
        let pinned: u64 = parts.iter().map(|part| part.size).sum();
        parts.extend(self.slow.take_largest(size - pinned));
        Ok(parts)
    }

    /// Gives a place back.
    pub(crate) fn give_back(&mut self, slot: &Slot) {
        self.used -= slot.size();
        for &part in &slot.parts {
            let piece = self.slow_pieces.range(..=part.address).next_back();
            let is_slow = piece.is_some_and(|(start, size)| part.address < start + size);
            if is_slow { self.slow.add(part) } else { self.free.add(part) }
        }
    }

    /// Walks everything.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.free.check()?;
        self.slow.check()?;
        let there = self.pinned + self.pageable;
        if self.free.bytes() + self.slow.bytes() + self.used == there && there <= self.budget {
            return Ok(());
        }
        Err(format!(
            "host: {} used, {} and {} free of {} pinned and {} pageable bytes, of {} allowed",
            self.used,
            self.free.bytes(),
            self.slow.bytes(),
            self.pinned,
            self.pageable,
            self.budget
        ))
    }
}

#[cfg(test)]
mod tests;
