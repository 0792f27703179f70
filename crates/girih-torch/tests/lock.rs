//! The lock of a heap in every order of events that the memory model allows, with the atomics of
//! `loom` in the place of the standard ones.

#![expect(unsafe_code, reason = "the lock hands out what it protects")]

#[path = "../src/lock.rs"]
mod lock;
#[path = "model/sync.rs"]
mod sync;

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::sync::Arc;
use loom::thread;

use crate::lock::Lock;

/// Runs `test` in every order of events in which the scheduler interrupts threads three times at most.
fn in_every_order(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(test);
}

/// So many other threads add 1 to what the lock protects, and so does this one; nobody waits for ever.
fn all_add_one(others: u32) {
    in_every_order(move || {
        let lock = Arc::new(Lock::new(0));
        let add = |lock: &Lock<u32>| lock.with(|value| *value += 1).expect("nobody panics");
        let others: Vec<_> = (0..others)
            .map(|_| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || add(&lock))
            })
            .collect();
        add(&lock);
        let count = others.len() as u32 + 1;
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(lock.with(|value| *value).unwrap(), count);
    });
}

// A thread that waits sleeps at once here, until it is called: with a fence between letting go and
// looking for sleepers a call that is lost would be a deadlock, which loom reports.

#[test]
fn two_threads_are_in_there_one_after_the_other_and_each_comes_in() {
    all_add_one(1);
}

#[test]
fn three_threads_are_in_there_one_after_the_other_and_each_comes_in() {
    all_add_one(2);
}

#[test]
fn after_a_panic_nobody_is_let_in_and_nobody_waits() {
    in_every_order(|| {
        let lock = Arc::new(Lock::new(0));
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || lock.with(|value| *value += 1).is_ok())
        };
        let panics = || lock.with(|_| std::panic::panic_any("on purpose"));
        let is_caught = catch_unwind(AssertUnwindSafe(panics)).is_err();
        let was_let_in = other.join().unwrap();
        assert!(is_caught);
        assert!(lock.with(|value| assert_eq!(*value, u32::from(was_let_in))).is_err());
    });
}
