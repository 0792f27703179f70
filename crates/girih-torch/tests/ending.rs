//! The end of a process: frees from anywhere, at any time, never crash.

#![expect(clippy::disallowed_methods, reason = "the subject is what threads do at the end")]

mod common;

use std::cell::RefCell;
use std::process::Command;
use std::thread;

use common::*;
use girih_torch::abi::Status;
use girih_torch::control;

/// Frees when its thread's locals are destroyed.
struct FreesLate(Vec<u64>);

impl Drop for FreesLate {
    fn drop(&mut self) {
        for &address in &self.0 {
            assert_eq!(free(address), Status::Ok);
            assert_eq!(free(address + 512), Status::Unknown, "and errors are no harm");
        }
    }
}

thread_local! {
    static LATE: RefCell<FreesLate> = const { RefCell::new(FreesLate(Vec::new())) };
}

#[test]
fn a_thread_frees_while_its_locals_are_destroyed() {
    set_up("native", 1 << 30, "");
    let join = thread::spawn(|| {
        // Touched first, so destroyed last of all locals.
        LATE.with_borrow_mut(|late| late.0.push(alloc(0, MIB, 0)));
        assert_eq!(free(3), Status::Unknown);
    });
    join.join().unwrap();
    assert_eq!(stats(0).allocation[0].current, 0);
}

#[test]
fn frees_after_the_finish_do_nothing_and_are_fine() {
    // The finish is for good: a process of its own.
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program);
    child.args(["--exact", "the_child_that_ends", "--nocapture"]);
    let ended = child.env("GIRIH_TEST_CHILD", "1").output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// Ends a process while threads allocate and free; the test above runs it.
#[test]
fn the_child_that_ends() {
    if std::env::var_os("GIRIH_TEST_CHILD").is_none() {
        return;
    }
    set_up("native", 1 << 30, "");
    let kept = alloc(2, MIB, 0);
    for stream in 0..4 {
        thread::spawn(move || {
            loop {
                let address = alloc(2, 4096, stream);
                assert_eq!(free(address), Status::Ok);
            }
        });
    }
    thread::sleep(std::time::Duration::from_millis(20));
    control::finish();
    assert_eq!(free(kept), Status::Ok);
    assert_eq!(free(kept), Status::Ok, "nobody looks any more");
    std::process::exit(0);
}
