//! `girih convert`.

use std::fs;

use serde_json::Value;

use crate::girih::{arg, corpus, error, integer, json, snapshot};

/// A result without what differs from run to run.
fn timeless(mut result: Value) -> Value {
    result["seconds"] = 0.into();
    result
}

#[test]
fn a_trace_file_replays_like_the_snapshot_it_was_made_from_and_is_smaller() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["megatron_gpt2-R_r3", "fsdp2_R_r0", "mlp_stacks"] {
        let (pickle, trace) = (snapshot(name), folder.path().join(format!("{name}.girih")));
        let written = json(&["convert", arg(&pickle), arg(&trace)]);
        let bytes = integer(&written, "bytes");
        assert_eq!(bytes, fs::metadata(&trace).unwrap().len());
        // Call stacks are text, which no format makes small.
        let factor = if name == "mlp_stacks" { 1 } else { 4 };
        assert!(bytes * factor < fs::metadata(&pickle).unwrap().len(), "{name}: {bytes} bytes");
        for allocator in ["native", "expandable", "planned"] {
            let replay = |file| timeless(json(&["replay", arg(file), "--allocator", allocator]));
            assert_eq!(replay(&pickle), replay(&trace), "{name}, {allocator}");
        }
    }
}

#[test]
fn a_trace_file_carries_the_marks_along() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("elsewhere.girih");
    json(&["convert", arg(&snapshot("megatron_gpt2-R_r3")), arg(&trace)]);
    let (before, after) =
        (json(&["stats", arg(&snapshot("megatron_gpt2-R_r3"))]), json(&["stats", arg(&trace)]));
    assert_eq!(after["iterations"], before["iterations"]);
    assert_eq!(after["marks"], before["marks"]);
    assert_eq!(after["iterations"]["source"], "marks");
    // It holds them, and has the marks file of its snapshot beside it.
    let marks = corpus("megatron_gpt2-R_r3.marks.json.gz");
    fs::copy(&marks, folder.path().join("elsewhere.marks.json.gz")).unwrap();
    assert_eq!(json(&["stats", arg(&trace)])["marks"], before["marks"]);
    assert_eq!(json(&["stats", arg(&trace), "--marks", arg(&marks)])["marks"], before["marks"]);
}

#[test]
fn a_recording_becomes_a_planning_problem_and_that_a_recording_again() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, trace) = (folder.path().join("run.csv"), folder.path().join("run.girih"));
    json(&["convert", arg(&snapshot("mlp_stacks")), arg(&rows)]);
    let stats = json(&["stats", arg(&snapshot("mlp_stacks"))]);
    let plan = json(&["plan", "--csv", arg(&rows)]);
    assert_eq!(plan["requests"], stats["requests"]);
    let compared = json(&["compare", arg(&snapshot("mlp_stacks"))]);
    assert_eq!(plan["lower_bound"], compared["recordings"][0]["lower_bound"]);

    json(&["convert", arg(&rows), arg(&trace)]);
    let again = json(&["stats", arg(&trace)]);
    assert_eq!(again["requests"], stats["requests"]);
    assert_eq!(again["live_peak"], plan["lower_bound"]);
}

#[test]
fn the_steady_iteration_is_a_planning_problem_with_the_bound_of_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("iteration.csv");
    let file = snapshot("megatron_gpt2-R_r3");
    json(&["convert", arg(&file), arg(&rows), "--part", "iteration"]);
    let (iteration, plan) = (json(&["plan", "--csv", arg(&rows)]), json(&["plan", arg(&file)]));
    assert_eq!(iteration["lower_bound"], plan["lower_bound"]);
}

#[test]
fn an_ending_that_says_nothing_is_refused_unless_the_format_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("trace.bin");
    let file = snapshot("mlp_stacks");
    let message = error(&["convert", arg(&file), arg(&output)]);
    assert!(message.contains("trace.bin in .girih or .csv, or use --to: "), "{message}");
    assert!(!output.exists());
    json(&["convert", arg(&file), arg(&output), "--to", "girih"]);
    assert_eq!(json(&["stats", arg(&output)])["requests"], 354);
}

#[test]
fn a_file_that_cannot_be_written_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("taken.girih");
    fs::create_dir(&taken).unwrap();
    let message = error(&["convert", arg(&snapshot("mlp_stacks")), arg(&taken)]);
    assert!(message.contains("cannot write") && message.contains("it is a folder"), "{message}");
    let missing = folder.path().join("no/such/folder/trace.girih");
    let message = error(&["convert", arg(&snapshot("mlp_stacks")), arg(&missing)]);
    assert!(message.contains("cannot write"), "{message}");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "only the folder: {left:?}");
    assert!(corpus("mlp_stacks.pickle.gz").exists());
}
