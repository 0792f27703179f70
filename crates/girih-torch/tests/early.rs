//! Marks that come before a device has a heap.

mod common;

use std::fs::File;

use common::*;
use girih_torch::control;
use girih_trace::compress::Limits;
use girih_trace::{MarkKind, Trace, open};

fn recorded(device: i32) -> Trace {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.girih");
    control::save_trace(device, &path.to_string_lossy()).unwrap();
    let read = open::detect_and_read(File::open(path).unwrap(), Limits::default());
    read.unwrap().traces.swap_remove(0)
}

fn marks(trace: &Trace) -> Vec<(u32, MarkKind, &str)> {
    trace.marks.iter().map(|mark| (mark.before, mark.kind, mark.name.as_str())).collect()
}

#[test]
fn the_step_in_which_a_device_is_first_used_is_known_to_its_heap() {
    set_up("native", 1 << 30, r#", "record": true"#);
    control::mark("step", "0").unwrap();
    control::mark("forward", "").unwrap();
    free(alloc(0, MIB, 0));
    control::mark("step", "1").unwrap();
    control::mark("eval", "").unwrap();
    // Another device, first used in the second step.
    free(alloc(1, MIB, 0));

    let (first, second) = (recorded(0), recorded(1));
    let events = first.events.len() as u32;
    let early = [(0, MarkKind::Step, "0"), (0, MarkKind::Forward, "")];
    let later = [(events, MarkKind::Step, "1"), (events, MarkKind::Eval, "")];
    assert_eq!(marks(&first), [early, later].concat());
    assert_eq!(marks(&second), [(0, MarkKind::Step, "1"), (0, MarkKind::Eval, "")]);
    assert!(first.marks[0].time_us <= first.events[0].time_us);
}
