//! Places, and the threads that pin, on a host that refuses, is slow, or is shared with others.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::super::pins::PIECE;
use super::*;

/// A system that gives memory as it was told to, and keeps books of it.
#[derive(Default)]
struct System {
    /// Pins from which on it refuses, counted from 1, and whether the memory is there all the same; 0 for never.
    refuses_from: u64,
    is_pageable: bool,
    /// Refuses these alone.
    refuses: Vec<u64>,
    /// Bytes that it pins at most, with whoever shares it.
    limit: Option<(u64, Arc<AtomicU64>)>,
    each_takes: Duration,
    /// The pin from which on they take until `is_open`, counted from 1; 0 for none. Or for 10 s: whoever waits for
    /// them is not to wait for ever.
    held_from: u64,
    is_open: AtomicBool,
    calls: AtomicU64,
    /// What is reserved, what is pinned now, and the most that was.
    reserved: Mutex<Vec<HostAddress>>,
    pinned: Mutex<Vec<Part>>,
    most: AtomicU64,
}

impl System {
    fn pinned(&self) -> u64 {
        let pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        pinned.iter().map(|part| part.size).sum()
    }
}

impl HostMemory for System {
    fn reserve(&self, _size: u64) -> Result<HostAddress, DeviceError> {
        self.reserved.lock().unwrap().push(1 << 40);
        Ok(1 << 40)
    }

    fn pin(&self, address: HostAddress, size: u64) -> Result<HostBacking, DeviceError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        thread::sleep(self.each_takes);
        if self.held_from > 0 && call >= self.held_from {
            comes(|| self.is_open.load(Ordering::Relaxed));
        }
        let mut is_refused = self.refuses.contains(&call);
        is_refused |= self.refuses_from > 0 && call >= self.refuses_from;
        if let Some((most, used)) = &self.limit {
            is_refused |= used.fetch_add(size, Ordering::Relaxed) + size > *most;
        }
        let error = DeviceError::OutOfMemory { requested: size, free: 0 };
        if is_refused {
            return if self.is_pageable { Ok(HostBacking::Pageable(error)) } else { Err(error) };
        }
        let mut pinned = self.pinned.lock().unwrap();
        let meets =
            |other: &Part| address < other.address + other.size && other.address < address + size;
        assert!(!pinned.iter().any(meets), "it is pinned already");
        pinned.push(Part { address, size });
        self.most.fetch_max(pinned.iter().map(|part| part.size).sum(), Ordering::Relaxed);
        Ok(HostBacking::Pinned)
    }

    fn release(&self, address: HostAddress) {
        self.reserved.lock().unwrap().retain(|reserved| *reserved != address);
        self.pinned.lock().unwrap().clear();
    }
}

fn host_over(system: System, budget: u64) -> (Host, Arc<System>) {
    let system = Arc::new(system);
    (Host::new(Arc::clone(&system) as Arc<dyn HostMemory>, budget), system)
}

/// Waits for it, 10 s at most. Whether it came.
fn comes(mut is_so: impl FnMut() -> bool) -> bool {
    (0..10_000).any(|_| {
        let is_so = is_so();
        if !is_so {
            thread::sleep(Duration::from_millis(1));
        }
        is_so
    })
}

fn until(is_so: impl FnMut() -> bool) {
    assert!(comes(is_so), "it never came to be");
}

/// Takes and gives back at random: no byte is in two places, and as long as the budget has the bytes there is a place.
fn comes_and_goes(u: &mut arbtest::arbitrary::Unstructured<'_>) -> arbtest::arbitrary::Result<()> {
    // No multiple of anything.
    let budget = u.int_in_range(1..=3 * PIECE)?;
    let system = System {
        refuses: (0..u.int_in_range(0..=2)?)
            .map(|_| u.int_in_range(1..=8))
            .collect::<Result<_, _>>()?,
        is_pageable: true,
        ..System::default()
    };
    let (mut host, system) = host_over(system, budget);
    host.hold_ready(u.int_in_range(0..=budget)?);
    host.pin_ahead();
    let mut slots: Vec<Slot> = Vec::new();
    for _ in 0..u.int_in_range(0..=60)? {
        if u.ratio(2, 3)? || slots.is_empty() {
            let size = u.int_in_range(1..=PIECE)?;
            let has_bytes = host.used().0 + size.next_multiple_of(GRAIN) <= host.budget();
            let taken = host.take(size);
            assert_eq!(taken.is_ok(), has_bytes, "{size} bytes, {:?}", host.used());
            if let Ok(slot) = taken {
                assert_eq!(slot.size(), size.next_multiple_of(GRAIN));
                let copied: u64 = slot.pieces(size).map(|(.., bytes)| bytes).sum();
                assert_eq!(copied, size);
                slots.push(slot);
            }
        } else {
            let index = u.choose_index(slots.len())?;
            host.give_back(&slots.swap_remove(index));
        }
        host.check().unwrap();
        let mut parts: Vec<Part> = slots.iter().flat_map(|slot| slot.parts.clone()).collect();
        parts.sort_unstable();
        assert!(parts.is_sorted_by(|one, next| one.address + one.size <= next.address));
        let used: u64 = parts.iter().map(|part| part.size).sum();
        assert_eq!(host.used().0, used);
    }
    drop(host);
    assert!(system.most.load(Ordering::Relaxed) <= budget);
    assert_eq!((system.pinned(), system.reserved.lock().unwrap().len()), (0, 0));
    Ok(())
}

#[test]
fn no_byte_has_two_owners_and_as_long_as_there_are_bytes_there_is_a_place() {
    arbtest::arbtest(comes_and_goes);
}

#[test]
fn a_tensor_larger_than_any_piece_has_a_place_also_where_others_have_left_holes() {
    let (mut host, _) = host_over(System::default(), 9 * PIECE + 4096);
    host.hold_ready(u64::MAX);
    host.pin_ahead();
    until(|| {
        host.collect();
        host.pinned() == host.budget()
    });
    let whole = host.take(4 * PIECE - 8192).unwrap();
    assert_eq!(whole.parts.len(), 1, "pieces are one range");
    let small: Vec<Slot> = (0..10).map(|_| host.take(PIECE / 2).unwrap()).collect();
    small.iter().step_by(2).for_each(|slot| host.give_back(slot));
    let left = host.budget() - host.used().0;
    let scattered = host.take(left).unwrap();
    assert!(scattered.parts.len() > 1 && scattered.size() == left);
    assert_eq!(host.late().0, 0);
    assert_eq!(host.take(1), Err(NoSlot::Budget));
}

#[test]
fn the_first_pieces_serve_while_the_others_come() {
    let slow = System { each_takes: Duration::from_millis(50), held_from: 9, ..System::default() };
    let (mut host, system) = host_over(slow, 40 * PIECE);
    host.hold_ready(u64::MAX);
    host.pin_ahead();
    let first = host.take(PIECE / 2).unwrap();
    assert!(system.pinned() <= 12 * PIECE, "{} were waited for", system.pinned());
    assert_eq!(host.late().0, 1);
    host.give_back(&first);
    system.is_open.store(true, Ordering::Relaxed);
    // Nobody asks for anything meanwhile.
    until(|| system.pinned() == 40 * PIECE);
    for _ in 0..40 {
        host.take(PIECE).unwrap();
    }
    assert_eq!(host.late().0, 1);
    host.check().unwrap();
}

#[test]
fn a_budget_that_is_no_multiple_is_pinned_to_the_page() {
    for budget in [1, 4095, 4096, PIECE - 1, PIECE + 4096, 3 * PIECE + 12_345] {
        let (mut host, system) = host_over(System::default(), budget);
        host.hold_ready(u64::MAX);
        host.pin_ahead();
        until(|| system.pinned() == budget / 4096 * 4096);
        if let Some(all) = host.budget().checked_sub(1).map(|_| host.take(budget / 4096 * 4096)) {
            assert!(all.is_ok(), "{budget}");
        }
        assert_eq!(host.take(1), Err(NoSlot::Budget), "{budget}");
    }
}

#[test]
fn whichever_pin_is_refused_the_memory_is_used_all_the_same_and_it_is_said_once() {
    for refused in 1..=6 {
        let system = System { refuses: vec![refused], is_pageable: true, ..System::default() };
        let (mut host, system) = host_over(system, 6 * PIECE);
        host.hold_ready(u64::MAX);
        host.pin_ahead();
        let slots: Vec<Slot> = (0..6).map(|_| host.take(PIECE).unwrap()).collect();
        assert_eq!((host.pinned(), host.pageable()), (5 * PIECE, PIECE), "pin {refused}");
        assert!(host.take_refusal().is_some_and(|said| said.contains("ulimit -l")));
        assert_eq!(host.take_refusal(), None);
        slots.iter().for_each(|slot| host.give_back(slot));
        host.check().unwrap();
        assert_eq!(system.calls.load(Ordering::Relaxed), 6);
        // What is pinned goes first.
        let again: Vec<Slot> = (0..5).map(|_| host.take(PIECE).unwrap()).collect();
        assert_eq!(host.slow.bytes(), PIECE, "{again:?}");
    }
}

#[test]
fn what_the_host_has_no_memory_for_is_an_error_and_may_be_had_later() {
    let poor = System { refuses: (3..=12).collect(), ..System::default() };
    let (mut host, _) = host_over(poor, 8 * PIECE);
    let mut slots = Vec::new();
    let mut refusals = 0;
    for _ in 0..100 {
        match host.take(PIECE) {
            Ok(slot) => slots.push(slot),
            Err(NoSlot::Refused(_)) => refusals += 1,
            Err(NoSlot::Budget) => break,
        }
        host.check().unwrap();
    }
    assert!(refusals > 0);
    assert_eq!(slots.len(), 8, "the host has memory again");
}

#[test]
fn two_ranks_share_what_the_system_pins_and_neither_has_more_than_its_budget() {
    let used = Arc::new(AtomicU64::new(0));
    let rank = || System {
        limit: Some((12 * PIECE, Arc::clone(&used))),
        is_pageable: true,
        each_takes: Duration::from_millis(1),
        ..System::default()
    };
    let mut ranks = [host_over(rank(), 8 * PIECE), host_over(rank(), 8 * PIECE)];
    for (host, _) in &mut ranks {
        host.hold_ready(u64::MAX);
        host.pin_ahead();
    }
    thread::scope(|scope| {
        for (host, _) in &mut ranks {
            scope.spawn(|| {
                for _ in 0..8 {
                    host.take(PIECE).unwrap();
                }
                assert_eq!(host.take(1), Err(NoSlot::Budget));
                host.check().unwrap();
            });
        }
    });
    let pinned: Vec<u64> = ranks.iter().map(|(host, _)| host.pinned()).collect();
    assert_eq!(pinned.iter().sum::<u64>(), 12 * PIECE, "{pinned:?}");
    assert!(ranks.iter_mut().any(|(host, _)| host.take_refusal().is_some()));
}

#[test]
fn an_end_in_the_midst_of_pinning_waits_for_the_pieces_under_way_and_leaves_nothing() {
    let slow = System { each_takes: Duration::from_millis(50), ..System::default() };
    let (mut host, system) = host_over(slow, 100 * PIECE);
    host.hold_ready(u64::MAX);
    host.pin_ahead();
    until(|| system.pinned() > 0);
    drop(host);
    let calls = system.calls.load(Ordering::Relaxed);
    assert!(calls < 50, "{calls} pieces were pinned");
    assert_eq!((system.pinned(), system.reserved.lock().unwrap().len()), (0, 0));
    thread::sleep(Duration::from_millis(150));
    assert_eq!(system.calls.load(Ordering::Relaxed), calls, "nobody works any more");
}
