//! Snapshots as Python's own pickle writes them, in every protocol.

use std::process::Command;

use girih_trace::snapshot::read_slice;
use girih_trace::{Action, MarkKind};

/// Small snapshots of odd shapes. Takes the protocol, writes the pickle to its output.
const SCRIPT: &str = r#"
import collections, pickle, pickletools, sys
protocol, way = int(sys.argv[1]), sys.argv[2]
frames = [{"name": "f", "filename": "a.py", "line": 3}, {"name": "ü", "filename": "b.cpp", "line": 0}]
def entry(i, action="alloc", **more):
    return {"action": action, "addr": 0x7f0000000000 + 512 * i, "size": 3 ** (i % 30), "stream": 0,
            "time_us": 1700000000000000 + i, "compile_context": "N/A", "user_metadata": "", **more}
# One list for all, as torch has it at best, and a list for each: of no frame, of one, of several.
entries = [entry(i, frames=list(frames) if i % 2 else frames, pool_id=(0, 0)) for i in range(1100)]
entries += [entry(i, frames=frames[:i % 3] * (1 + i % 40)) for i in range(300)]
# Strings that are equal and not the same are written each time, as newer releases of torch have them.
again = lambda *parts: "/".join(parts)
entries += [entry(i, compile_context=again("N", "A"), frames=[]) for i in range(40)]
entries += [entry(i, compile_context=again(str(i // 3), "0"), user_metadata=again("m", str(i // 5)),
                  frames=frames[:i % 3]) for i in range(40)]
# Python writes a list of more than a thousand in parts.
entries += [entry(1, frames=frames * 750)]
entries += [entry(0, "free_requested", stream=0x7f1234567890, pool_id=(0, 2 ** 40))]
entries += [entry(0, "annotate", user_metadata={"action": "x", "deep": [(), (1,), (1, 2, 3), {}]})]
oom = {"action": "oom", "device_free": 2 ** 63 + 5, "size": 2 ** 34, "stream": 0, "time_us": 1}
entries += [oom]
snapshot = {
    "segments": [{"device": 0, "address": 4096, "total_size": 1024, "stream": 0, "frames": frames,
                  "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": True,
                  "blocks": [{"address": 4096, "size": 1024, "requested_size": 1000,
                              "state": "active_pending_free", "frames": frames}]}],
    "device_traces": [[], entries, []],
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "x": -1,
                           "huge": 2 ** 200, "negative": -(2 ** 70), "expandable_segments": True,
                           "threshold": 0.8, "flags": [True, False, None]},
    "external_annotations": [{"name": "ProfilerStep#7", "stage": "START", "device": -1, "time_us": 0}],
    "host_traces": [[dict(oom)]], "host_segments": [],
}
if protocol >= 3 or protocol == 2 and way != "fast":
    snapshot["allocator_settings"]["long"] = "x" * 100000
if way == "fast":
    import io
    out = io.BytesIO(); pickler = pickle._Pickler(out, protocol); pickler.fast = True
    pickler.dump(snapshot); data = out.getvalue()
elif way == "python":
    data = pickle._dumps(snapshot, protocol)
elif way == "optimized":
    data = pickletools.optimize(pickle.dumps(snapshot, protocol))
elif way == "apart":
    # Something that changes nothing stands in each dict and list: none of them can be read in one go.
    data, plain = b"", pickle.dumps(snapshot, protocol)
    ends = [at for _, _, at in pickletools.genops(plain)][1:] + [len(plain)]
    for (opcode, _, at), end in zip(pickletools.genops(plain), ends):
        data += plain[at:end] + (b"N0" if opcode.name in ("EMPTY_DICT", "EMPTY_LIST") else b"")
else:
    data = pickle.dumps(snapshot, protocol)
sys.stdout.buffer.write(data)
"#;

#[expect(clippy::print_stderr, reason = "a test that skips must say so")]
fn python(script: &str, protocol: u32, way: &str) -> Option<Vec<u8>> {
    let output = Command::new("python3")
        .args(["-c", script, &protocol.to_string(), way])
        .env("PYTHONIOENCODING", "utf-8")
        .output();
    match output {
        Ok(output) if output.status.success() => Some(output.stdout),
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            eprintln!("skipped: python3 cannot be run: {error}");
            None
        }
    }
}

#[test]
fn every_protocol_and_every_way_of_pickling_reads_the_same() {
    let mut first = None;
    for protocol in 0..=5 {
        for way in ["c", "python", "optimized", "fast", "apart"] {
            let Some(pickle) = python(SCRIPT, protocol, way) else { return };
            let recording = read_slice(&pickle)
                .unwrap_or_else(|error| panic!("protocol {protocol}, {way}: {error}"));
            let first = first.get_or_insert_with(|| recording.clone());
            assert_eq!(&recording, first, "protocol {protocol}, {way}");
        }
    }
    let recording = first.unwrap();
    let devices: Vec<u32> = recording.traces.iter().map(|trace| trace.device).collect();
    assert_eq!(devices, [0, 1]);
    let trace = &recording.traces[1];
    assert_eq!(trace.events.len(), 1484);
    for (index, event) in trace.events[..1100].iter().enumerate() {
        assert_eq!(event.address, 0x7f00_0000_0000 + 512 * index as u64);
        assert_eq!(event.size, 3u64.pow(index as u32 % 30));
        assert_eq!(event.time_us, 1_700_000_000_000_000 + index as i64);
        assert_eq!((event.stack.0, event.stream.0, event.pool.0), (0, 0, 0));
    }
    for (index, event) in trace.events[1100..1400].iter().enumerate() {
        let stack = trace.stacks.get(event.stack.0 as usize);
        assert_eq!(stack.map_or(0, Vec::len), index % 3 * (1 + index % 40), "{index}");
    }
    assert_eq!(trace.stacks[trace.events[1480].stack.0 as usize], [0, 1].repeat(750));
    assert_eq!(trace.events[1483].action, Action::Oom);
    assert_eq!(trace.events[1483].address, (1 << 63) + 5);
    assert_eq!(trace.streams, [0, 0x7f12_3456_7890]);
    assert_eq!(trace.pools, [(0, 0), (0, 1 << 40)]);
    assert_eq!(trace.frames, ["a.py:3 f", "b.cpp:0 ü"]);
    assert_eq!(trace.settings.conf, "expandable_segments:True");
    assert!(trace.settings.expandable_segments);
    let mark = |kind| trace.marks.iter().filter(move |mark| mark.kind == kind);
    assert_eq!(mark(MarkKind::Step).map(|mark| &*mark.name).collect::<Vec<_>>(), ["7"]);
    assert_eq!(mark(MarkKind::Other).count(), 8);
    assert_eq!(recording.traces[0].segments[0].blocks[0].requested, 1000);
}

/// Three devices whose stacks are of the same frames, and in part the same lists.
const SHARED: &str = r#"
import pickle, sys
a, b, c = ({"name": name, "filename": "x.py", "line": 1} for name in "abc")
both = [a, b]
def entry(i, frames):
    return {"action": "alloc", "addr": 512 * i, "size": 512, "stream": 0, "time_us": i, "frames": frames}
def segment(device, address, frames):
    return {"device": device, "address": address, "total_size": 512, "stream": 0, "frames": frames,
            "segment_type": "large", "blocks": [{"address": address, "size": 512,
            "requested_size": 512, "state": "active_allocated", "frames": frames}]}
traces = [[entry(1, both), entry(2, [b, c])], [entry(1, [c, a]), entry(2, both)], [entry(1, both)]]
segments = [segment(i % 3, 1024 * i, frames) for i, frames in enumerate([both, [a], [c], [b, a], both, both])]
snapshot = {"segments": segments, "device_traces": traces}
sys.stdout.buffer.write(pickle.dumps(snapshot, int(sys.argv[1])))
"#;

#[test]
fn devices_that_share_frames_and_lists_have_stacks_of_their_own() {
    let Some(pickle) = python(SHARED, 4, "c") else { return };
    let recording = read_slice(&pickle).expect("it is whole");
    let stacks = |device: usize| -> Vec<Vec<&str>> {
        let trace = &recording.traces[device];
        let name = |&frame: &u32| &trace.frames[frame as usize]["x.py:1 ".len()..];
        trace.stacks.iter().map(|stack| stack.iter().map(name).collect()).collect()
    };
    assert_eq!(stacks(0), [vec!["a", "b"], vec!["b", "c"], vec!["b", "a"]]);
    assert_eq!(stacks(1), [vec!["c", "a"], vec!["a", "b"], vec!["a"]]);
    assert_eq!(stacks(2), [vec!["a", "b"], vec!["c"]]);
}
