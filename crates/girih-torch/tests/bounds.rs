//! What a heap keeps on the host, over programs that never repeat: resident memory comes to rest.
//!
//! The table of bounds is in ARCHITECTURE.md. Each test here runs a program that would have filled the
//! host without its bound.

#![expect(clippy::print_stderr, reason = "what was measured is said")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use girih_torch::{Heap, Settings};
use girih_trace::MarkKind;

const MIB: u64 = 1 << 20;
const DEFAULT: (u64, u64) = (0, 0);
/// What may come on top of what is there once a program has shown all that it does.
const GROWTH_MAX: u64 = 64 * MIB;

/// Resident memory is the whole process's: the tests take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of this process that lie in memory.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux says what is resident");
    let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("the second field of statm") * 4096
}

/// Numbers without pattern.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        let (factor, step) = (6_364_136_223_846_793_005, 1_442_695_040_888_963_407);
        self.0 = self.0.wrapping_mul(factor).wrapping_add(step);
        (self.0 >> 33) % bound
    }
}

/// A heap on a simulated device of 80 GiB.
fn heap(mode: &str, more: &str) -> Heap {
    let json = format!(r#"{{"mode": "{mode}", "sim": {{"capacity": 85899345920}} {more}}}"#);
    Heap::new(0, &Settings::parse(&json).expect("right settings")).expect("a simulated device")
}

fn alloc(heap: &Heap, size: u64, pool: (u64, u64)) -> u64 {
    heap.allocate(size, 0, pool).expect("there is memory for all")
}

fn free(heap: &Heap, address: u64) {
    assert!(heap.free(address).expect("no fault"));
}

/// A program whose every step differs: a part that is the same each time, so that there is something to
/// plan, sizes and counts that never come again, marks with names of their own, and now and then a
/// private pool that comes and goes, and an empty cache.
fn varying_step(heap: &Heap, chance: &mut Chance, step: u64) {
    heap.mark(MarkKind::Step, &step.to_string()).expect("no fault");
    let mut held: Vec<u64> = (0..10).map(|k| alloc(heap, (k * 7 % 5 + 1) * MIB, DEFAULT)).collect();
    for _ in 0..chance.below(12) {
        held.push(alloc(heap, 1 + chance.below(24 * MIB), DEFAULT));
        if chance.below(3) == 0 {
            free(heap, held.swap_remove(chance.below(held.len() as u64) as usize));
        }
    }
    heap.mark(MarkKind::Other, &format!("annotation {step}")).expect("no fault");
    if step.is_multiple_of(10) {
        let pool = (0, 1 + step);
        heap.create_pool(pool).expect("a pool more");
        let blocks = [3, 30].map(|size| alloc(heap, size * MIB, pool));
        blocks.into_iter().for_each(|block| free(heap, block));
        heap.release_pool(pool).expect("a pool that is there");
    }
    held.into_iter().for_each(|address| free(heap, address));
    if step.is_multiple_of(50) {
        heap.empty_cache(DEFAULT).expect("no fault");
    }
}

/// Runs a program of 100,000 such steps. Resident memory must be what it was after 1,000.
fn soak(mode: &str, more: &str) {
    let _alone = alone();
    let heap = heap(mode, more);
    let mut chance = Chance(11);
    let stays: Vec<u64> = (0..20).map(|k| alloc(&heap, (k % 7 + 1) * MIB, DEFAULT)).collect();
    let mut early = 0;
    for step in 0..100_000 {
        varying_step(&heap, &mut chance, step);
        if step == 1_000 {
            early = resident();
        }
        if step > 1_000 && step.is_multiple_of(1_000) {
            let grown = resident().saturating_sub(early);
            assert!(grown <= GROWTH_MAX, "{mode}: {} MiB more by step {step}", grown / MIB);
        }
    }
    let (now, early) = (resident() / MIB, early / MIB);
    eprintln!("{mode}: {early} MiB resident after 1,000 steps, {now} MiB after 100,000");
    stays.into_iter().for_each(|address| free(&heap, address));
    heap.check().expect("a sound heap");
}

#[test]
fn a_program_that_never_repeats_takes_no_more_of_the_host_after_100_000_steps_under_auto() {
    soak("auto", "");
}

#[test]
fn a_program_that_never_repeats_takes_no_more_of_the_host_after_100_000_steps_under_stitch() {
    soak("stitch", "");
}

#[test]
fn a_program_that_never_repeats_takes_no_more_of_the_host_after_100_000_steps_under_native() {
    soak("native", "");
}

#[test]
fn requests_without_marks_after_a_few_marked_steps_take_no_more_of_the_host() {
    let _alone = alone();
    let heap = heap("auto", "");
    let mut chance = Chance(1);
    for _ in 0..4 {
        heap.mark(MarkKind::Step, "").expect("no fault");
        for _ in 0..100 {
            free(&heap, alloc(&heap, 1 + chance.below(16 * MIB), DEFAULT));
        }
    }
    let early = resident();
    for _ in 0..3_000_000 {
        free(&heap, alloc(&heap, MIB, DEFAULT));
    }
    let grown = resident().saturating_sub(early);
    eprintln!("3,000,000 requests without a mark: {} MiB more", grown / MIB);
    assert!(grown <= GROWTH_MAX, "{} MiB more", grown / MIB);
}

#[test]
fn a_recording_takes_what_it_may_and_no_more() {
    let _alone = alone();
    let may = 8 * MIB;
    let heap = heap("native", &format!(r#", "record": true, "record_bytes": {may}"#));
    let early = resident();
    for step in 0..200_000 {
        if step % 10 == 0 {
            heap.mark(MarkKind::Other, &format!("an annotation with a name of its own, {step}"))
                .unwrap();
        }
        free(&heap, alloc(&heap, MIB, DEFAULT));
    }
    let grown = resident().saturating_sub(early);
    assert!(grown <= may + 8 * MIB, "{} MiB more", grown / MIB);
    let trace = heap.trace().expect("it is recorded");
    assert!(trace.events.len() > 100_000 && trace.events.len() < 600_000);
    let warning = &trace.origin.warnings[0];
    assert!(warning.contains("more came") && warning.contains("record_bytes"), "{warning}");
}

#[test]
fn any_number_of_private_pools_may_come_and_go() {
    let _alone = alone();
    for mode in ["native", "expandable", "auto", "profile", "gmlake"] {
        let heap = heap(mode, if mode == "profile" { r#", "record_bytes": 1000"# } else { "" });
        for number in 1..=66_000 {
            let pool = (0, number);
            heap.create_pool(pool).expect("a pool more");
            if number % 100 == 0 {
                free(&heap, alloc(&heap, MIB, pool));
            }
            heap.release_pool(pool).expect("a pool that is there");
            if number % 1_000 == 0 {
                heap.empty_cache(DEFAULT).expect("no fault");
            }
        }
        assert_eq!(heap.pool_users((0, 66_000)).unwrap(), 0);
        heap.check().expect("a sound heap");
    }
}

#[test]
fn a_checkpoint_of_a_pool_that_is_gone_is_not_brought_back_into_another() {
    let heap = heap("native", "");
    let (first, second) = ((0, 1), (0, 2));
    heap.create_pool(first).unwrap();
    let block = alloc(&heap, MIB, first);
    let checkpoint = heap.checkpoint(first).unwrap();
    free(&heap, block);
    heap.release_pool(first).unwrap();
    heap.empty_cache(DEFAULT).unwrap();
    heap.create_pool(second).unwrap();
    let block = alloc(&heap, MIB, second);
    let error = heap.restore(&checkpoint).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("(0, 1)"), "{error}");
    heap.create_pool(first).unwrap();
    let error = heap.restore(&checkpoint).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("is gone"), "{error}");
    free(&heap, block);
}
