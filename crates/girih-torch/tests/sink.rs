//! The event sink: it sees every event of every heap, and nothing after it is taken away.

#![expect(unsafe_code, reason = "it calls a C interface")]

mod common;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;

use common::*;
use girih_torch::abi::{Event, Pool, girih_set_sink};
use girih_trace::Action;

static SEEN: Mutex<Vec<Event>> = Mutex::new(Vec::new());

unsafe extern "C" fn keep(user: *mut c_void, event: *const Event) {
    assert_eq!(user as usize, 0x55);
    // SAFETY: it lives while this runs.
    SEEN.lock().unwrap().push(unsafe { *event });
}

fn actions(device: i32) -> Vec<(Action, u64)> {
    let seen = SEEN.lock().unwrap();
    let mine = seen.iter().filter(|event| event.device == device);
    mine.map(|event| (Action::ALL[event.action as usize], event.size)).collect()
}

#[test]
fn a_sink_sees_what_happens_until_it_is_taken_away() {
    set_up("native", 1 << 30, "");
    let before = alloc(0, MIB, 0);
    // SAFETY: `keep` can be called with this from any thread.
    unsafe { girih_set_sink(Some(keep), 0x55 as *mut c_void) };
    free(before);
    let pool = Pool { first: 0, second: 9 };
    // A heap that is made later has the sink too.
    let later = try_alloc(1, 30 * MIB, 0xABC, pool).unwrap();
    assert!(try_alloc(1, 2 << 30, 0, DEFAULT).is_err());
    // SAFETY: taking it away needs nothing.
    unsafe { girih_set_sink(None, null_mut()) };
    free(later);

    assert_eq!(actions(0), [(Action::FreeRequested, MIB), (Action::FreeCompleted, MIB)]);
    let of_later = [(Action::SegmentAlloc, 30 * MIB), (Action::Alloc, 30 * MIB)];
    assert_eq!(actions(1)[..2], of_later);
    assert_eq!(actions(1).last(), Some(&(Action::Oom, 2 << 30)));
    let seen = SEEN.lock().unwrap();
    let given = seen.iter().find(|event| event.address == later && event.action == 0).unwrap();
    assert_eq!((given.stream, given.pool), (0xABC, pool));
    let oom = seen.iter().find(|event| event.action == Action::Oom as i32).unwrap();
    assert_eq!(oom.address, (1 << 30) - 30 * MIB, "of an out-of-memory event: the free bytes");
}
