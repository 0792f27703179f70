//! The bytes of the host that swapped tensors have: pinned, of exact size, never more than the budget.
//!
//! ```text
//!  pieces of pinned memory    | used | free | used |      | free          |      pinned ahead of need,
//!                                                                                on a thread of its own
//! ```
//!
//! To pin takes a second for each GiB, most of it for the system to find the pages, so it is done before it is needed:
//! while less than [`AHEAD`] is free, up to [`PINNERS`] threads pin a piece each; and all of a budget that a user
//! chose. Without a budget of the GPU nothing is pinned before it is nearly full.
//! Only where a copy is about to go and nothing is free does somebody wait for that; it is counted.
//!
//! A slot is the smallest free range that fits. Ranges grow together where both are free, within a piece.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use girih_runtime::{DeviceError, HostAddress, Pinner};

/// Bytes that slots are multiples of: a page of the host.
const GRAIN: u64 = 4096;
/// Bytes that are pinned at once.
const PIECE: u64 = 1 << 30;
/// Free bytes below which more are pinned, unless a user said how much there should be.
pub(super) const AHEAD: u64 = 8 << 30;
/// Threads that pin.
const PINNERS: usize = 4;

/// A place of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    pub(crate) address: HostAddress,
    /// Bytes, whole pages.
    pub(crate) size: u64,
}

/// Why there is no place on the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NoSlot {
    /// The budget is used up.
    Budget,
    /// The host does not give so much pinned memory.
    Refused(DeviceError),
}

/// What the thread pins, and how it went.
type Pinned = (u64, Result<HostAddress, DeviceError>);

/// Pinned memory of the host.
pub(crate) struct Host {
    pinner: Pinner,
    budget: u64,
    /// Bytes that are pinned, those that are about to be included.
    pinned: u64,
    used: u64,
    used_peak: u64,
    /// First addresses of the pieces: ranges do not grow over them.
    pieces: BTreeSet<HostAddress>,
    free: BTreeMap<HostAddress, u64>,
    by_size: BTreeSet<(u64, HostAddress)>,
    /// What threads pin now, and where they say how it went.
    coming: usize,
    come: (Sender<Pinned>, Receiver<Pinned>),
    /// Free bytes below which more are pinned.
    ahead: u64,
    /// What the system refused last: then no more is asked for ahead.
    refused: Option<DeviceError>,
    /// Pieces that were pinned only when a copy was about to go.
    late: u64,
}

impl Host {
    /// At most `budget` bytes, none of which is pinned yet.
    pub(crate) fn new(pinner: Pinner, budget: u64) -> Host {
        Host {
            pinner,
            budget,
            pinned: 0,
            used: 0,
            used_peak: 0,
            pieces: BTreeSet::new(),
            free: BTreeMap::new(),
            by_size: BTreeSet::new(),
            coming: 0,
            come: channel(),
            ahead: 0,
            refused: None,
            late: 0,
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

    /// Bytes that are pinned, or about to be.
    pub(crate) fn pinned(&self) -> u64 {
        self.pinned
    }

    /// Pieces that were pinned in the way of a copy.
    pub(crate) fn late(&self) -> u64 {
        self.late
    }

    /// Lets threads pin more if little is free.
    pub(crate) fn pin_ahead(&mut self) {
        self.collect();
        while self.coming < PINNERS && self.refused.is_none() {
            let free = self.pinned - self.used;
            let size = PIECE.min(self.budget.saturating_sub(self.pinned)) / GRAIN * GRAIN;
            if free >= self.ahead || size == 0 {
                return;
            }
            let (pinner, sender) = (Pinner::clone(&self.pinner), self.come.0.clone());
            let thread = thread::Builder::new().name("girih-pin".to_owned());
            let started = thread.spawn(move || {
                let _ = sender.send((size, pinner(size)));
            });
            if started.is_err() {
                // It is pinned when it is needed.
                return;
            }
            self.pinned += size;
            self.coming += 1;
        }
    }

    /// Takes in what threads have pinned.
    fn collect(&mut self) {
        while self.coming > 0
            && let Ok(come) = self.come.1.try_recv()
        {
            self.take_in(come);
        }
    }

    fn take_in(&mut self, (size, pinned): Pinned) {
        self.coming -= 1;
        match pinned {
            Ok(address) => self.add_piece(address, size),
            Err(error) => {
                self.pinned -= size;
                self.refused = Some(error);
            }
        }
    }

    fn add_piece(&mut self, address: HostAddress, size: u64) {
        self.pieces.insert(address);
        self.add_free(address, size);
    }

    fn add_free(&mut self, address: HostAddress, size: u64) {
        self.free.insert(address, size);
        self.by_size.insert((size, address));
    }

    fn remove_free(&mut self, address: HostAddress, size: u64) {
        self.free.remove(&address);
        self.by_size.remove(&(size, address));
    }

    /// A place for `bytes`.
    ///
    /// # Errors
    /// If the budget or the host has no more.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<Slot, NoSlot> {
        let size = bytes.next_multiple_of(GRAIN);
        self.collect();
        let mut found = self.fitting(size);
        if found.is_none() && self.used.saturating_add(size) > self.budget {
            return Err(NoSlot::Budget);
        }
        while found.is_none()
            && self.coming > 0
            && let Ok(come) = self.come.1.recv()
        {
            self.late += 1;
            self.take_in(come);
            found = self.fitting(size);
        }
        if found.is_none() {
            self.pin_now(size)?;
            found = self.fitting(size);
        }
        let Some((whole, address)) = found else { return Err(NoSlot::Budget) };
        self.remove_free(address, whole);
        if whole > size {
            self.add_free(address + size, whole - size);
        }
        self.used += size;
        self.used_peak = self.used_peak.max(self.used);
        Ok(Slot { address, size })
    }

    fn fitting(&self, size: u64) -> Option<(u64, HostAddress)> {
        self.by_size.range((size, 0)..).next().copied()
    }

    /// Pins a piece for a slot of `size` bytes. Free pieces in between may be too small for it, so that more would be
    /// pinned than the budget: then there is no place.
    fn pin_now(&mut self, size: u64) -> Result<(), NoSlot> {
        let room = self.budget.saturating_sub(self.pinned) / GRAIN * GRAIN;
        if room < size {
            return Err(NoSlot::Budget);
        }
        let piece = size.max(PIECE).min(room);
        self.late += 1;
        let pinned = (self.pinner)(piece).map(|address| (address, piece));
        // Little may be had where much is not.
        let pinned = pinned.or_else(|_| (self.pinner)(size).map(|address| (address, size)));
        let (address, piece) = pinned.map_err(|error| {
            self.refused = Some(error.clone());
            NoSlot::Refused(error)
        })?;
        self.pinned += piece;
        self.add_piece(address, piece);
        Ok(())
    }

    /// Gives a place back.
    pub(crate) fn give_back(&mut self, slot: Slot) {
        let Slot { mut address, mut size } = slot;
        self.used -= size;
        let after = address + size;
        if !self.pieces.contains(&after)
            && let Some(&more) = self.free.get(&after)
        {
            self.remove_free(after, more);
            size += more;
        }
        if !self.pieces.contains(&address)
            && let Some((&before, &more)) = self.free.range(..address).next_back()
            && before + more == address
        {
            self.remove_free(before, more);
            (address, size) = (before, size + more);
        }
        self.add_free(address, size);
    }

    /// Walks everything.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        let free: u64 = self.free.values().sum();
        let ranges: BTreeSet<(u64, u64)> =
            self.free.iter().map(|(&address, &size)| (size, address)).collect();
        let whole = self.free.iter().zip(self.free.iter().skip(1));
        let apart = whole.clone().all(|((at, size), (next, _))| at + size <= *next);
        let merged = whole
            .clone()
            .all(|((at, size), (next, _))| at + size < *next || self.pieces.contains(next));
        let is_right = ranges == self.by_size && apart && merged;
        // What threads pin just now is neither free nor used yet.
        let is_full = self.coming > 0 || free + self.used == self.pinned;
        if is_right && is_full && self.pinned <= self.budget.max(self.used) {
            return Ok(());
        }
        Err(format!(
            "host: {} used and {free} free of {} pinned bytes, of {} allowed",
            self.used, self.pinned, self.budget
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Pieces one right after the other, as a system may give them; at most so many bytes.
    fn host_of(budget: u64, given: u64) -> Host {
        let next = AtomicU64::new(1 << 40);
        let pinner: Pinner = Arc::new(move |size| {
            if next.load(Ordering::Relaxed) + size > (1 << 40) + given {
                return Err(DeviceError::OutOfMemory { requested: size, free: 0 });
            }
            Ok(next.fetch_add(size, Ordering::Relaxed))
        });
        let mut host = Host::new(pinner, budget);
        host.hold_ready(AHEAD);
        host
    }

    #[test]
    fn slots_never_meet_whatever_comes_and_goes() {
        arbtest::arbtest(|u| {
            let mut host = host_of(3 * PIECE, u64::MAX >> 8);
            let mut slots: Vec<Slot> = Vec::new();
            for _ in 0..u.int_in_range(0..=60)? {
                if u.ratio(2, 3)? || slots.is_empty() {
                    let size = u.int_in_range(1..=PIECE / 2)?;
                    if let Ok(slot) = host.take(size) {
                        let end = slot.address + slot.size;
                        let meets = |other: &&Slot| {
                            slot.address < other.address + other.size && other.address < end
                        };
                        assert_eq!(slots.iter().find(meets), None);
                        assert!(slot.size >= size);
                        slots.push(slot);
                    }
                } else {
                    let index = u.choose_index(slots.len())?;
                    host.give_back(slots.swap_remove(index));
                }
                host.check().unwrap();
                let used: u64 = slots.iter().map(|slot| slot.size).sum();
                assert_eq!(host.used().0, used);
                assert!(host.pinned() <= 3 * PIECE);
            }
            Ok(())
        });
    }

    #[test]
    fn the_budget_is_kept_and_what_the_system_refuses_is_told_from_it() {
        let mut host = host_of(100 * MIB, u64::MAX >> 8);
        let slot = host.take(60 * MIB).unwrap();
        assert_eq!(host.take(60 * MIB), Err(NoSlot::Budget));
        host.give_back(slot);
        assert!(host.take(100 * MIB).is_ok(), "all of it, in one piece");
        let mut poor = host_of(100 * MIB, 10 * MIB);
        assert!(poor.take(8 * MIB).is_ok(), "less than a piece may still be had");
        assert!(matches!(poor.take(8 * MIB), Err(NoSlot::Refused(_))));
    }

    #[test]
    fn what_is_pinned_ahead_is_there_when_it_is_needed() {
        let mut host = host_of(20 * PIECE, u64::MAX >> 8);
        for _ in 0..1000 {
            host.pin_ahead();
            if host.pinned() == AHEAD && host.coming == 0 {
                break;
            }
            thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(host.pinned(), AHEAD);
        for _ in 0..AHEAD / PIECE {
            host.take(PIECE).unwrap();
        }
        assert_eq!(host.late(), 0);
        host.take(PIECE).unwrap();
        assert_eq!(host.late(), 1, "nobody had pinned more");
        host.check().unwrap();
    }
}
