//! Snapshots that are as they should be: everything in them arrives.

use std::rc::Rc;

use crate::common::pickle::{Py, Style, dict, encode, int, snapshot_of};
use crate::common::{arbitrary_recording, pool, resolve, stack, stream};
use arbtest::arbtest;
use girih_trace::snapshot::{ReadError, read_slice};
use girih_trace::{Action, BlockState, MarkKind, Recording, Trace};

fn read(object: &Py) -> Result<Recording, ReadError> {
    read_slice(&encode(object, Style::python(4)))
}

fn read_one(object: &Py) -> Trace {
    let mut recording = read(object).unwrap();
    assert_eq!(recording.traces.len(), 1);
    recording.traces.remove(0)
}

fn entry(action: &str, address: u64, size: u64) -> Py {
    dict([
        ("action", Py::from(action)),
        ("addr", int(address)),
        ("size", int(size)),
        ("stream", int(0)),
        ("time_us", int(address)),
    ])
}

fn with(object: Py, key: &str, value: Py) -> Py {
    let Py::Dict(mut items) = object else { panic!("{object:?} is no dict") };
    items.push((Py::from(key), value));
    Py::Dict(items)
}

fn traces(entries: Vec<Py>) -> Py {
    dict([("device_traces", Py::List(vec![Py::List(entries)]))])
}

/// Segments with their ids resolved.
fn segments(trace: &Trace) -> impl PartialEq + std::fmt::Debug {
    let block = |it: &girih_trace::Block| {
        (it.address, it.size, it.requested, it.state, stack(trace, it.stack))
    };
    let segment = |it: &girih_trace::Segment| {
        let blocks: Vec<_> = it.blocks.iter().map(block).collect();
        let owner = (stream(trace, it.stream), pool(trace, it.pool));
        (it.address, it.size, owner, it.is_small, it.is_expandable, blocks)
    };
    trace.segments.iter().map(segment).collect::<Vec<_>>()
}

#[test]
fn any_recording_survives_being_pickled_in_any_style() {
    arbtest(|u| {
        let style = Style {
            protocol: u.int_in_range(2..=5)?,
            memo: u.arbitrary()?,
            batch: *u.choose(&[1, 2, 3, 1000])?,
            reversed: u.arbitrary()?,
        };
        let recording = arbitrary_recording(u)?;
        let read = read_slice(&encode(&snapshot_of(&recording), style)).unwrap();
        assert_eq!(read.traces.len(), recording.traces.len());
        for (read, written) in read.traces.iter().zip(&recording.traces) {
            assert_eq!(read.device, written.device);
            assert_eq!(resolve(read), resolve(written));
            assert_eq!(segments(read), segments(written));
            assert_eq!((read.streams[0], read.pools[0]), (0, (0, 0)));
            assert_eq!(read.settings, recording.traces.last().unwrap().settings);
        }
        Ok(())
    })
    .budget_ms(500);
}

#[test]
fn streams_are_numbered_as_they_appear_and_the_default_stream_is_always_0() {
    let on = |stream| with(entry("alloc", 512, 1), "stream", int(stream));
    let trace = read_one(&traces(vec![on(77), on(5), on(77), on(0)]));
    assert_eq!(trace.streams, [0, 77, 5]);
    let ids: Vec<u16> = trace.events.iter().map(|event| event.stream.0).collect();
    assert_eq!(ids, [1, 2, 1, 0]);
}

#[test]
fn an_entry_that_is_in_the_list_twice_is_two_events() {
    let shared = Py::Shared(1, Rc::new(entry("free_requested", 512, 1)));
    let trace = read_one(&traces(vec![shared.clone(), entry("alloc", 0, 1), shared]));
    let actions: Vec<Action> = trace.events.iter().map(|event| event.action).collect();
    assert_eq!(actions, [Action::FreeRequested, Action::Alloc, Action::FreeRequested]);
    assert_eq!(trace.events[0], trace.events[2]);
}

#[test]
fn a_list_of_entries_that_two_devices_share_is_read_for_both() {
    let list = Py::Shared(1, Rc::new(Py::List(vec![entry("alloc", 512, 1)])));
    let snapshot = dict([("device_traces", Py::List(vec![list.clone(), Py::List(vec![]), list]))]);
    let recording = read(&snapshot).unwrap();
    let devices: Vec<u32> = recording.traces.iter().map(|trace| trace.device).collect();
    assert_eq!(devices, [0, 2]);
    assert_eq!(recording.traces[0].events, recording.traces[1].events);
}

#[test]
fn a_key_that_is_set_later_or_twice_has_its_last_value() {
    // {"device_traces": [[d]]} with d = {"size": 1, "action": "alloc"}; then d["addr"] = 7;
    // d["size"] = 2
    let mut pickle = b"\x80\x04}X\x0d\0\0\0device_traces](](}\x94(X\x04\0\0\0sizeK\x01".to_vec();
    pickle.extend(b"X\x06\0\0\0actionX\x05\0\0\0allocuX\x04\0\0\0addrK\x07s");
    pickle.extend(b"X\x04\0\0\0sizeK\x02seeh\0");
    pickle.extend(b"0s.");
    let recording = read_slice(&pickle).unwrap();
    let event = recording.traces[0].events[0];
    assert_eq!((event.address, event.size), (7, 2));
}

#[test]
fn integers_of_any_size_in_which_addresses_come_are_exact() {
    for address in
        [0, 255, 256, 65535, 65536, (1 << 31) - 1, 1 << 31, 1 << 47, 1 << 63, 0xff00_ffff_fe20_0000]
    {
        let trace = read_one(&traces(vec![entry("oom", 0, 1), {
            let Py::Dict(mut items) = entry("alloc", address, 3) else { unreachable!() };
            items.retain(|(key, _)| !matches!(key, Py::Str(key) if key == "time_us"));
            Py::Dict(items)
        }]));
        assert_eq!((trace.events[1].address, trace.events[1].size), (address, 3));
    }
}

#[test]
fn annotations_become_marks_before_the_first_event_that_is_not_earlier() {
    let annotation = |stage: &str, name: &str, device: i128, time_us: u64| {
        dict([
            ("stage", Py::from(stage)),
            ("name", Py::from(name)),
            ("device", Py::Int(device)),
            ("time_us", int(time_us)),
        ])
    };
    let snapshot = with(
        traces(vec![entry("alloc", 1000, 1), entry("alloc", 2000, 1)]),
        "external_annotations",
        Py::List(vec![
            annotation("START", "ProfilerStep#3", 0, 900),
            annotation("START", "Optimizer.step#AdamW.step", -1, 1500),
            annotation("END", "Optimizer.step#AdamW.step", 0, 1600),
            annotation("START", "## forward ##", 0, 2000),
            annotation("START", "elsewhere", 1, 2000),
            annotation("END", "ProfilerStep#3", 0, 2500),
        ]),
    );
    let trace = read_one(&snapshot);
    let marks: Vec<_> =
        trace.marks.iter().map(|mark| (mark.before, mark.kind, mark.name.as_str())).collect();
    assert_eq!(
        marks,
        [
            (0, MarkKind::Step, "3"),
            (1, MarkKind::Optimizer, "AdamW.step"),
            (1, MarkKind::Other, "## forward ##"),
            (2, MarkKind::StepEnd, "3"),
        ]
    );
}

#[test]
fn annotated_blocks_and_new_user_metadata_become_marks() {
    let metadata = |object, text: Py| with(object, "user_metadata", text);
    let trace = read_one(&traces(vec![
        metadata(entry("alloc", 1, 8), Py::from("")),
        metadata(entry("alloc", 2, 8), Py::from("epoch 1")),
        metadata(entry("alloc", 3, 8), Py::from("epoch 1")),
        metadata(entry("annotate", 2, 8), Py::from("weights")),
        metadata(entry("annotate", 3, 8), dict([("action", Py::from("mine")), ("x", Py::None)])),
        metadata(entry("alloc", 4, 8), Py::from("epoch 1")),
        metadata(entry("alloc", 5, 8), Py::from("epoch 2")),
    ]));
    let marks: Vec<_> = trace.marks.iter().map(|mark| (mark.before, mark.name.as_str())).collect();
    assert_eq!(marks, [(1, "epoch 1"), (3, "weights"), (6, "epoch 2")]);
    assert_eq!(trace.events[4].action, Action::Annotate);
    assert_eq!(
        trace.origin.warnings,
        ["5 allocations lie in segments taken before the recording \
        began"
            .replace("        ", "")]
    );
}

#[test]
fn what_is_not_known_is_left_out_and_counted_in_one_sentence() {
    let trace = read_one(&with(
        traces(vec![
            entry("segment_alloc", 0, 1 << 20),
            with(entry("alloc", 0, 1), "internal_metadata", dict([("x", Py::Float(1.0))])),
            with(entry("alloc", 512, 1), "colour", Py::from("blue")),
            dict([("action", Py::from("teleport")), ("size", Py::from("huge"))]),
            entry("teleport", 0, 1),
        ]),
        "a key of the future",
        Py::List(vec![Py::None, Py::Tuple(vec![int(1), Py::from("x"), Py::Bool(true)])]),
    ));
    assert_eq!(trace.events.len(), 3);
    assert_eq!(
        trace.origin.warnings,
        [
            "2 entries were left out: their action is not known (the first is \"teleport\")",
            "1 entries have keys that are not known; the keys were ignored",
        ]
    );
    assert!(!trace.origin.truncated);
}

#[test]
fn a_recording_that_began_late_is_truncated_and_says_why() {
    let trace = read_one(&traces(vec![
        entry("free_requested", 4096, 8),
        entry("free_completed", 4096, 8),
        entry("alloc", 8192, 8),
        entry("segment_alloc", 1 << 21, 1 << 21),
        entry("alloc", 1 << 21, 8),
        entry("segment_free", 1 << 21, 1 << 21),
    ]));
    assert!(trace.origin.truncated);
    assert_eq!(trace.origin.warnings.len(), 2, "{:?}", trace.origin.warnings);
    assert!(trace.origin.warnings[0].starts_with("1 blocks were freed that no entry allocated"));
    assert!(trace.origin.warnings[1].starts_with("1 allocations lie in segments"));
}

#[test]
fn a_round_number_of_entries_is_pointed_out() {
    let trace = read_one(&traces(vec![entry("snapshot", 0, 8); 10_000]));
    assert!(trace.origin.warnings[0].contains("exactly 10000 entries"));
    assert!(!trace.origin.truncated);
    let trace = read_one(&traces(vec![entry("snapshot", 0, 8); 10_001]));
    assert!(trace.origin.warnings.is_empty());
}

#[test]
fn segments_without_traces_are_enough_and_old_ones_lack_fields() {
    let block = |size, state: &str| dict([("size", int(size)), ("state", Py::from(state))]);
    let segment = dict([
        ("address", int(4096)),
        ("total_size", int(3 << 20)),
        ("segment_type", Py::from("small")),
        (
            "blocks",
            Py::List(vec![
                block(1 << 20, "active_allocated"),
                block(1 << 20, "active_awaiting_free"),
                block(1 << 20, "inactive"),
            ]),
        ),
    ]);
    let trace = read_one(&dict([("segments", Py::List(vec![segment]))]));
    let segment = &trace.segments[0];
    assert_eq!(segment.blocks[2].address, 4096 + (2 << 20));
    assert_eq!(segment.blocks[1].state, BlockState::PendingFree);
    assert_eq!(segment.blocks[0].requested, 1 << 20);
    assert!(segment.is_small && !segment.is_expandable);
}

#[test]
fn equal_stacks_are_one_stack_and_frames_of_one_text_one_frame() {
    let frame =
        |line| dict([("name", Py::from("f")), ("filename", Py::from("a.py")), ("line", int(line))]);
    let on = |frames| with(entry("snapshot", 0, 1), "frames", Py::List(frames));
    let trace = read_one(&traces(vec![
        on(vec![frame(1), frame(2)]),
        on(vec![frame(2)]),
        on(vec![frame(1), frame(2)]),
        on(vec![]),
        on(vec![Py::None]),
    ]));
    assert_eq!(trace.frames, ["a.py:1 f", "a.py:2 f", "??:0 (None)"]);
    assert_eq!(trace.stacks, [vec![0, 1], vec![1], vec![2]]);
    let stacks: Vec<u32> = trace.events.iter().map(|event| event.stack.0).collect();
    assert_eq!(stacks, [0, 1, 0, u32::MAX, 2]);
}
