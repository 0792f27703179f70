//! The lock with real threads. `tests/lock.rs` goes through every order of events.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use crate::lock::Lock;

/// Nanoseconds of a processor that this thread has had, if the system tells.
fn processor_time() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().filter(|&time| time > 0)
}

#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn say(text: &str) {
    eprintln!("{text}");
}

#[test]
fn nothing_is_lost_between_threads_some_of_which_hold_it_for_long() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 20_000;
    let lock = Lock::new([0_u64; 3]);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let lock = &lock;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let work = |value: &mut [u64; 3]| {
                        assert!(value.iter().all(|other| *other == value[0]), "half done");
                        value.iter_mut().for_each(|part| *part += 1);
                        if round % 4000 == 500 * thread {
                            thread::sleep(Duration::from_millis(3));
                        }
                    };
                    lock.with(work).expect("nobody panics");
                }
            });
        }
    });
    assert_eq!(lock.with(|value| *value).unwrap(), [THREADS * ROUNDS; 3]);
}

#[test]
fn who_waits_for_long_sleeps_and_comes_in_afterwards() {
    const LONG: Duration = Duration::from_millis(400);
    let (lock, is_held, came) = (Lock::new(()), Barrier::new(5), AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                is_held.wait();
                let before = processor_time();
                lock.with(|()| came.fetch_add(1, Ordering::Relaxed)).unwrap();
                let Some(used) = before.zip(processor_time()).map(|(from, to)| to - from) else {
                    return say("skipped: this system does not tell what a thread has used");
                };
                let used = Duration::from_nanos(used);
                assert!(
                    used < LONG / 8,
                    "a thread that waited for {LONG:?} has worked for {used:?}"
                );
            });
        }
        let hold = |_: &mut ()| {
            is_held.wait();
            thread::sleep(LONG);
            assert_eq!(came.load(Ordering::Relaxed), 0, "somebody came in meanwhile");
        };
        lock.with(hold).unwrap();
    });
    assert_eq!(came.into_inner(), 4);
}

#[test]
fn a_panic_sends_away_those_who_sleep_and_those_who_come() {
    let (lock, is_held) = (Lock::new(()), Barrier::new(4));
    thread::scope(|scope| {
        let sleepers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    is_held.wait();
                    lock.with(|()| ())
                })
            })
            .collect();
        let holder = scope.spawn(|| {
            lock.with(|()| {
                is_held.wait();
                thread::sleep(Duration::from_millis(50));
                panic!("on purpose");
            })
        });
        assert!(holder.join().is_err());
        assert!(sleepers.into_iter().all(|sleeper| sleeper.join().unwrap().is_err()));
    });
    assert!(lock.with(|()| ()).is_err());
}

#[test]
fn two_locks_share_no_pair_of_cache_lines() {
    assert_eq!((align_of::<Lock<u8>>(), size_of::<Lock<u8>>()), (128, 256));
}
