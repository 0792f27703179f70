//! `girih swap`.

use std::fs::File;
use std::path::{Path, PathBuf};

use girih_trace::{Action, Event, PoolId, Recording, StackId, StreamId, Trace, file};
use serde_json::json;

use crate::girih::{arg, corpus, error, girih, has_fields, integer, json, snapshot, text};

/// One block of 100 bytes that is idle while another of 100 comes and goes, among small ones; a millisecond each.
fn small_run(folder: &Path, is_timed: bool) -> PathBuf {
    let mut events = Vec::new();
    let mut push = |action, address, size, op: i64| {
        let time_us = if is_timed { 1000 * op } else { 0 };
        let (stack, stream, pool) = (StackId::NONE, StreamId(0), PoolId::DEFAULT);
        events.push(Event { address, size, time_us, stack, stream, pool, action });
    };
    push(Action::Alloc, 0x1000, 100, 0);
    for op in 1..=12 {
        let size = if op == 6 { 100 } else { 1 };
        push(Action::Alloc, 0x2000, size, op);
        push(Action::FreeRequested, 0x2000, size, op);
        push(Action::FreeCompleted, 0x2000, size, op);
    }
    push(Action::FreeRequested, 0x1000, 100, 13);
    push(Action::FreeCompleted, 0x1000, 100, 13);
    let trace = Trace { events, streams: vec![0], pools: vec![(0, 0)], ..Trace::default() };
    let path = folder.join("small.girih");
    file::write(&Recording { traces: vec![trace] }, File::create(&path).unwrap()).unwrap();
    path
}

#[test]
fn a_block_is_idle_from_the_fourth_request_after_its_birth_to_the_fourth_before_its_free() {
    let folder = tempfile::tempdir().unwrap();
    let run = small_run(folder.path(), true);
    for method in ["girih", "chameleon", "capuchin"] {
        let args = ["swap", arg(&run), "--gpu-budget", "123B", "--method", method];
        let swapped = json(&args);
        assert_eq!(swapped["method"], method);
        assert_eq!(swapped["fits"], true);
        assert_eq!(integer(&swapped, "gpu_peak"), 101);
        assert_eq!(integer(&swapped, "gpu_peak_unswapped"), 200);
        assert_eq!(integer(&swapped, "gpu_least"), 101);
        assert_eq!(integer(&swapped, "host_peak"), 100);
        assert_eq!((integer(&swapped, "bytes_out"), integer(&swapped, "bytes_in")), (100, 100));
        assert_eq!(integer(&swapped, "tensors"), 1);
        assert_eq!(
            swapped["largest"],
            json!([{"bytes": 100, "request": 0, "out_after": 3, "in_before": 9}])
        );
        assert_eq!(swapped["step_us"], 13_000.0);
        assert_eq!(swapped["step_us_bound"], 13_000.0);
        // 100 bytes take two thousandths of a microsecond; Chameleon frees a layer too early and waits for them.
        let us = |field: &str| swapped[field].as_f64().unwrap();
        assert!((13_000.0..13_000.01).contains(&us("step_us_swapped")));
        assert!(us("stall_us") < 0.01 && (method != "girih" || us("stall_us") == 0.0));
        assert_eq!(swapped["assumed"].as_array().unwrap().len(), 3);
    }
}

#[test]
fn what_does_not_fit_says_how_much_and_what_cannot_go() {
    let folder = tempfile::tempdir().unwrap();
    let run = small_run(folder.path(), true);
    let args = ["swap", arg(&run), "--gpu-budget", "50B", "--json"];
    let ran = girih(&args);
    assert_eq!(ran.code, 0);
    let swapped: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((swapped["fits"].clone(), integer(&swapped, "gpu_peak")), (json!(false), 101));
    let stuck = &swapped["cannot_go"][0];
    assert_eq!((integer(stuck, "bytes"), &stuck["why"]), (100, &json!("in use")));
    assert_eq!(girih(&[&args[..], &["--require-fit"]].concat()).code, 1);
    let said = text(&args[..4]);
    assert!(said.contains("101 B are in use or cannot go at once, 51 B more than"), "{said}");
}

#[test]
fn a_budget_of_the_host_is_kept_or_said_to_be_too_small() {
    let folder = tempfile::tempdir().unwrap();
    let run = small_run(folder.path(), true);
    let with_host = |host: &str, code: i32| {
        let args = ["swap", arg(&run), "--gpu-budget", "123B", "--host-budget", host];
        let ran = girih(&[&args[..], &["--require-fit"]].concat());
        assert_eq!(ran.code, code, "{}", ran.stdout);
        ran.stdout
    };
    with_host("100B", 0);
    assert!(with_host("99B", 1).contains("100 B must be on the host at once, 1 B more"));
}

#[test]
fn a_recording_without_times_asks_for_one() {
    let folder = tempfile::tempdir().unwrap();
    let run = small_run(folder.path(), false);
    let message = error(&["swap", arg(&run), "--gpu-budget", "123B"]);
    assert!(message.contains("say how long a step takes with --step-time"), "{message}");
    let swapped = json(&["swap", arg(&run), "--gpu-budget", "123B", "--step-time", "26ms"]);
    assert!((swapped["step_us"].as_f64().unwrap() - 26_000.0).abs() < 1e-6);
}

#[test]
fn what_is_no_budget_method_or_link_is_refused() {
    for args in [
        &["--gpu-budget", "40"][..],
        &["--gpu-budget", "-1GiB"],
        &["--gpu-budget", "1GiB", "--method", "belady"],
        &["--gpu-budget", "1GiB", "--step-time", "fast"],
        &["--gpu-budget", "1GiB", "--links", "55,0,101"],
        &["--gpu-budget", "1GiB", "--links", "55"],
        &["--gpu-budget", "1GiB", "--links", "55,55,10"],
        &["--gpu-budget", "1GiB", "--links", "55,55,111"],
        &[],
    ] {
        let run = snapshot("mlp_stacks");
        let ran = girih(&[&["swap", arg(&run)], args].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{args:?}");
    }
}

#[test]
fn links_are_three_rates_with_commas_between() {
    let folder = tempfile::tempdir().unwrap();
    let run = small_run(folder.path(), true);
    let swapped = json(&["swap", arg(&run), "--gpu-budget", "123B", "--links", "25,25,40"]);
    assert_eq!(swapped["fits"], true);
    let refused = error(&["swap", arg(&run), "--gpu-budget", "123B", "--links", "25,25"]);
    assert!(refused.contains("three rates with commas between"), "{refused}");
}

#[test]
fn recordings_of_the_corpus_are_scheduled_near_their_bound() {
    for name in ["llama2b_N.girih", "fsdp2_R_r0.pickle.gz"] {
        let run = corpus(name);
        let whole = json(&["swap", arg(&run), "--gpu-budget", "900GiB", "--later", "0"]);
        assert_eq!(integer(&whole, "tensors"), 0);
        let budget = format!("{}B", integer(&whole, "gpu_peak_unswapped") / 10 * 8);
        let swapped = json(&["swap", arg(&run), "--gpu-budget", &budget]);
        has_fields(&swapped, &["later", "stalls", "assumed", "seconds", "step"]);
        let us = |field: &str| swapped[field].as_f64().unwrap();
        let over = us("step_us_swapped") / us("step_us_bound");
        assert!((0.999..1.03).contains(&over), "{name}: {over}");
        assert!((us("step_us") + us("stall_us") - us("step_us_swapped")).abs() < 1.0);
    }
}

#[test]
fn a_schedule_is_printed_within_80_columns() {
    let run = corpus("llama2b_N.girih");
    let printed = text(&["swap", arg(&run), "--gpu-budget", "20GiB"]);
    // Sentences are not broken; tables are.
    let is_sentence =
        |line: &str| line.starts_with("assumed: ") || line.starts_with("does not fit");
    let is_narrow = |line: &str| line.chars().count() <= 80 || is_sentence(line);
    let wide: Vec<&str> = printed.lines().filter(|line| !is_narrow(line)).collect();
    assert!(wide.is_empty(), "{wide:?}");
    assert!(printed.contains("no schedule is faster than"), "{printed}");
}
