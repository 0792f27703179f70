//! Files that are hostile, cut short, or of another run; and where results go.

use std::fs;
use std::path::Path;

use girih_plan::{Entry, Place, Plan, Role, Sequence};
use girih_trace::{Action, Event, PoolId, Recording, StackId, StreamId, Trace};

use crate::girih::{arg, command, corpus, error, girih, json, snapshot, text};

/// Writes a recording of six steps that ask for 60 blocks each, half of them of about `size` bytes, and
/// let go of them.
fn recording_of(path: &Path, size: u64) {
    let mut trace = Trace { streams: vec![0], pools: vec![(0, 0)], ..Trace::default() };
    let mut push = |block: u64, size: u64, action: Action| {
        let time_us = trace.events.len() as i64 + 1;
        let (stack, stream, pool) = (StackId::NONE, StreamId(0), PoolId::DEFAULT);
        let address = (1 << 32) + (block << 34);
        trace.events.push(Event { address, size, time_us, stack, stream, pool, action });
    };
    for _ in 0..6 {
        let size =
            |block: u64| if block % 2 == 1 { size - 512 * block } else { 4096 * (block + 1) };
        (0..60).for_each(|block| push(block, size(block), Action::Alloc));
        for block in (0..60).rev() {
            push(block, size(block), Action::FreeRequested);
            push(block, size(block), Action::FreeCompleted);
        }
    }
    let file = fs::File::create(path).unwrap();
    girih_trace::file::write(&Recording { traces: vec![trace] }, file).unwrap();
}

#[test]
fn sizes_that_no_gpu_has_are_refused_with_the_event() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("odd.girih");
    for (bits, wanted) in [
        (60, "device 0, event 1 (alloc): 1152921504606846464 bytes are more than"),
        (49, "device 0, event 1 (alloc): "),
        (47, "bytes are alive at event 59, more than the 4398046511104"),
        (40, "bytes are alive at event 59, more than the 4398046511104"),
    ] {
        recording_of(&file, 1 << bits);
        for command in ["stats", "plan", "compare", "replay"] {
            let message = error(&[command, arg(&file)]);
            assert!(message.contains(wanted), "{command}, 2^{bits}: {message}");
        }
    }
}

#[test]
fn sizes_as_large_as_the_door_allows_are_replayed_under_every_allocator() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("large.girih");
    recording_of(&file, 1 << 36);
    for allocator in
        ["direct", "native", "expandable", "gmlake", "stweaver", "stitch", "planned", "auto"]
    {
        let row = json(&["replay", arg(&file), "--allocator", allocator]);
        assert_eq!(row["fits"], true, "{allocator}");
    }
}

/// The file of a plan that is right, but for its size: one place of so many bytes.
fn plan_of_one_place(bytes: u64) -> String {
    let entry = Entry {
        size_min: bytes,
        size_max: bytes,
        stream: StreamId(0),
        place: Place::Arena(0),
        until: 1,
    };
    let steady = Sequence { role: Role::Steady, entries: vec![entry], boundaries: Vec::new() };
    let plan = Plan {
        arena_bytes: bytes,
        persistent_bytes: 0,
        lower_bound: bytes,
        in_use: 0,
        peak: bytes,
        proven: true,
        planner: "x".to_owned(),
        requests: 1,
        iterations: 2,
        rounds: 1,
        trial: None,
        rooms: Vec::new(),
        sequences: vec![steady],
    };
    format!(
        r#"{{"format":"girih plan","version":1,"fingerprint":"{:016x}","arena_bytes":{bytes},
        "persistent_bytes":0,"lower_bound":{bytes},"peak":{bytes},"proven":true,"planner":"x",
        "requests":1,"iterations":2,"rounds":1,"sequences":[{{"role":"steady","boundaries":[],
        "size_min":[{bytes}],"size_max":[{bytes}],"stream":[0],"region":"a","offset":[0],"until":[1]}}]}}"#,
        plan.fingerprint()
    )
}

#[test]
fn a_plan_of_an_exbibyte_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("large.plan");
    fs::write(&file, plan_of_one_place(1 << 60)).unwrap();
    let ran = girih(&["check", arg(&file)]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stdout.contains("more than the 4398046511104"), "{}", ran.stdout);
    let recording = snapshot("mlp_stacks");
    let args = ["replay", arg(&recording), "--allocator", "planned", "--plan", arg(&file)];
    assert!(error(&args).contains("make the plan again with `girih plan`, it is wrong"));
    fs::write(&file, plan_of_one_place(1 << 40)).unwrap();
    assert_eq!(json(&["check", arg(&file)])["valid"], true);
}

#[test]
fn a_result_never_replaces_what_it_is_made_from() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.pickle.gz");
    fs::copy(snapshot("mlp_stacks"), &file).unwrap();
    let before = fs::read(&file).unwrap();
    let same = folder.path().join("same.girih");
    fs::hard_link(&file, &same).unwrap();
    for output in [&file, &same] {
        let message = error(&["plan", arg(&file), "-o", arg(output)]);
        assert!(message.contains("is the input"), "{message}");
        let message = error(&["convert", arg(&file), arg(output), "--to", "girih"]);
        assert!(message.contains("give the output another name"), "{message}");
    }
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[cfg(unix)]
#[test]
fn a_result_is_written_through_a_link_and_keeps_the_permissions_that_were_there() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let (target, link) = (folder.path().join("target.plan"), folder.path().join("link.plan"));
    fs::write(&target, "old").unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("target.plan", &link).unwrap();
    text(&["plan", arg(&snapshot("mlp_stacks")), "-o", arg(&link)]);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(json(&["check", arg(&target)])["valid"], true);
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o640);

    let (nothing, dangling) = (folder.path().join("new.plan"), folder.path().join("dangling.plan"));
    symlink("new.plan", &dangling).unwrap();
    text(&["plan", arg(&snapshot("mlp_stacks")), "-o", arg(&dangling)]);
    assert!(nothing.is_file() && fs::symlink_metadata(&dangling).unwrap().is_symlink());
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_or_a_pipe_as_output_stays_what_it_is() {
    use std::os::unix::fs::FileTypeExt;
    let plan = |output: &str| girih(&["plan", arg(&snapshot("mlp_stacks")), "-o", output]);
    assert_eq!(plan("/dev/null").code, 0);
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    let full = plan("/dev/full");
    assert_eq!(full.code, 2);
    assert_eq!(
        full.stderr,
        "girih: cannot write /dev/full: No space left on device (os error 28)\n"
    );

    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let file = snapshot("mlp_stacks");
    let mut child = command(&["plan", arg(&file), "-o", arg(&pipe)])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let read = fs::read(&pipe).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(read.starts_with(b"{\"format\":\"girih plan\""));
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
}

#[test]
fn a_dash_is_standard_input_and_standard_output() {
    let file = snapshot("mlp_stacks");
    let through = |args: &[&str]| {
        let input = fs::File::open(&file).unwrap();
        let output = command(args).stdin(input).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    };
    let piped = through(&["plan", "-", "-o", "-"]);
    let read = girih_plan::file::read(&piped.stdout[..]).expect("the plan and nothing else");
    assert!(String::from_utf8_lossy(&piped.stderr).contains("written to standard output"));
    let named = json(&["plan", arg(&file)]);
    assert_eq!(named["fingerprint"], format!("{:016x}", read.fingerprint()));
    let converted = through(&["convert", "-", "-", "--to", "girih"]);
    assert!(converted.stdout.starts_with(&girih_trace::file::MAGIC));
    let message = error(&["plan", arg(&file), "-o", "-", "--json"]);
    assert!(message.contains("both want standard output"), "{message}");
    assert!(!Path::new("-").exists());
}

#[test]
fn marks_of_another_recording_are_refused_if_named_and_left_out_if_found() {
    let other = corpus("fsdp2_R_r0.marks.json.gz");
    let message = error(&["stats", arg(&snapshot("megatron_gpt2-R_r3")), "--marks", arg(&other)]);
    assert!(message.contains("belongs to another recording: its marks are from"), "{message}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.pickle.gz");
    fs::copy(snapshot("megatron_gpt2-R_r3"), &file).unwrap();
    fs::copy(&other, folder.path().join("run.marks.json.gz")).unwrap();
    let ran = girih(&["stats", arg(&file), "--json"]);
    assert_eq!(ran.code, 0);
    assert!(ran.stderr.contains("belongs to another recording and was left out"), "{}", ran.stderr);
    let stats: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(stats["iterations"]["source"], "sequence");
}

#[test]
fn a_plan_of_another_recording_is_named_with_both_fingerprints() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fsdp.plan");
    text(&["plan", arg(&snapshot("fsdp2_R_r0")), "-o", arg(&file)]);
    let of = |name: &str| {
        let fingerprint = json(&["plan", arg(&snapshot(name))])["fingerprint"].clone();
        fingerprint.as_str().unwrap().to_owned()
    };
    let recording = snapshot("megatron_gpt2-R_r3");
    let args = ["replay", arg(&recording), "--allocator", "planned", "--plan", arg(&file)];
    let ran = girih(&args);
    assert_eq!(ran.code, 0);
    assert!(ran.stderr.contains("was made from another recording"), "{}", ran.stderr);
    for name in ["fsdp2_R_r0", "megatron_gpt2-R_r3"] {
        assert!(ran.stderr.contains(&of(name)), "{name}: {}", ran.stderr);
    }
}

/// The recording without the last part of its events, its final segments, and the marks that come later.
fn cut(name: &str, part: f64, path: &Path) {
    let recording = fs::File::open(snapshot(name)).unwrap();
    let mut recording = girih_trace::open::detect_and_read(recording, Default::default()).unwrap();
    let traces = &mut recording.traces;
    let trace = traces.iter_mut().max_by_key(|trace| trace.events.len()).unwrap();
    let marks = fs::read(corpus(&format!("{name}.marks.json.gz"))).unwrap();
    girih_trace::marks::apply(trace, &marks).unwrap();
    trace.events.truncate((trace.events.len() as f64 * part) as usize);
    trace.segments.clear();
    trace.recorded = Default::default();
    let count = trace.events.len() as u32;
    trace.marks.retain(|mark| mark.before <= count);
    girih_trace::file::write(&recording, fs::File::create(path).unwrap()).unwrap();
}

#[test]
fn a_recording_that_ends_in_the_middle_of_a_step_keeps_its_steps_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cut.girih");
    for part in [0.5, 0.6, 0.7, 0.8, 0.9] {
        cut("megatron_gpt2-R_r3", part, &file);
        let ran = girih(&["stats", arg(&file), "--json"]);
        let stats: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(stats["iterations"]["source"], "marks", "at {part}");
        assert_eq!(stats["iterations"]["requests"][0], 9183, "at {part}: {}", ran.stderr);
        assert!(ran.stderr.contains("the recording ends within an iteration"), "{}", ran.stderr);
        let efficiency = |allocator: &str| {
            let ran = girih(&["replay", arg(&file), "--allocator", allocator, "--json"]);
            let row: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
            row["efficiency"].as_f64().unwrap()
        };
        let (planned, stitch) = (efficiency("planned"), efficiency("stitch"));
        assert!(planned >= stitch, "at {part}: {planned} planned, {stitch} stitched");
    }
}

#[test]
fn a_capacity_needs_a_unit_and_a_release_must_be_known() {
    let file = snapshot("mlp_stacks");
    let ran = girih(&["replay", arg(&file), "--capacity", "80"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("try 80GiB, 80MiB or 80B: "), "{}", ran.stderr);
    let message = error(&["replay", arg(&file), "--torch", "9.99"]);
    assert!(message.contains("use --torch 2.1 to 2.15: "), "{message}");
    assert_eq!(girih(&["replay", arg(&file), "--torch", "2.13.0+cu130"]).code, 0);
}

#[test]
fn a_run_that_stopped_has_no_efficiency_and_requiring_that_it_fits_is_a_no() {
    let file = snapshot("megatron_gpt2-R_r3");
    let args = ["replay", arg(&file), "--capacity", "16GiB"];
    let row = json(&args);
    assert_eq!((&row["fits"], &row["efficiency"]), (&false.into(), &serde_json::Value::Null));
    let printed = text(&args);
    let header: Vec<&str> = printed.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(header[..2], ["allocator", "fits"]);
    let row: Vec<&str> = printed.lines().nth(3).unwrap().split("  ").map(str::trim).collect();
    let cells: Vec<&str> = row.into_iter().filter(|cell| !cell.is_empty()).collect();
    assert_eq!((cells[1], cells[4], cells[5]), ("no", "-", "-"), "{printed}");
    assert!(
        printed.contains("4.06 GiB are free on the device, 2.08 GiB too little; "),
        "{printed}"
    );

    let stopped = json(&args)["stopped"]["reason"].as_str().unwrap().to_owned();
    assert!(printed.contains(&stopped), "the same words as in the text: {stopped}");
    assert!(
        printed.contains("; the figures are of the run that goes on without the "),
        "{printed}"
    );

    // What is short is said where both amounts look alike: this is 2 MiB less than the run needs.
    let capacity = 19_409_141_760_u64;
    let printed = text(&["replay", arg(&file), "--capacity", &format!("{capacity}B")]);
    assert!(printed.contains("6.14 GiB more are needed and 6.14 GiB are free"), "{printed}");
    assert!(printed.contains(" on the device, 2.00 MiB too little; "), "{printed}");

    let required = |args: &[&str]| girih(&[args, &["--require-fit"]].concat()).code;
    assert_eq!(required(&args), 1);
    assert_eq!(required(&["replay", arg(&file), "--capacity", "20GiB"]), 0);
    assert_eq!(required(&["compare", arg(&file), "--capacity", "16GiB"]), 0, "some fit");
    assert_eq!(required(&["compare", arg(&file), "--capacity", "8GiB"]), 1, "none fits");
    assert_eq!(required(&["replay", arg(&file)]), 2, "on what?");
}

#[test]
fn each_cause_of_an_error_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("odd.pickle");
    fs::write(&file, b"#!/bin/sh\necho hello\n").unwrap();
    let message = error(&["stats", arg(&file)]);
    assert!(message.ends_with("it begins with \"#!/bin/s\"\n"), "{message}");
    fs::write(&file, b"\xff\xfe\r\n").unwrap();
    assert!(error(&["stats", arg(&file)]).contains(r#"begins with "\xff\xfe\r\n""#));
    let marks = folder.path().join("bad.marks.json");
    fs::write(&marks, "{\"marks\":\n [{\"time_us\": true}]}").unwrap();
    let message = error(&["stats", arg(&snapshot("mlp_stacks")), "--marks", arg(&marks)]);
    assert_eq!(message.matches("line 2").count(), 1, "{message}");
}

#[test]
fn where_nothing_can_be_written_is_said_before_the_work_and_names_no_other_file() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("no such folder").join("run.girih");
    // The recording is not there either: it is not looked at.
    for args in [
        &["convert", "no-such-file", arg(&out)][..],
        &["plan", "no-such-file", "-o", arg(&out)],
        &["report", "no-such-file", "-o", arg(&out)],
    ] {
        let message = error(args);
        assert!(message.contains("no file can be made in "), "{message}");
        assert!(message.ends_with("No such file or directory (os error 2)\n"), "{message}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left of trying");
}

#[test]
#[cfg(target_os = "linux")]
fn output_that_has_no_room_is_an_error_that_says_where() {
    for args in [&["stats", arg(&snapshot("mlp_stacks"))][..], &["--help"], &["swap", "--help"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = command(args).stdout(full).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.starts_with("girih: cannot write standard output: "), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn what_a_terminal_would_obey_is_escaped_wherever_a_file_says_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("\u{1b}[31mred\n.girih");
    let mut recording = girih_trace::snapshot::read(
        fs::File::open(snapshot("died_leak")).unwrap(),
        &Default::default(),
    )
    .unwrap();
    for frame in &mut recording.traces[0].frames {
        *frame = frame.replace("train", "tr\u{1b}]0;a\u{7}in");
    }
    girih_trace::file::write(&recording, fs::File::create(&file).unwrap()).unwrap();
    for args in [
        &["why", arg(&file)][..],
        &["why", arg(&file), "--group-by", "function"],
        &["stats", arg(&file)],
        &["replay", arg(&file)],
        &["diff", arg(&snapshot("died_fragmented")), arg(&file)],
        &["swap", arg(&file), "--gpu-budget", "1GiB"],
        &["replay", arg(&file), "--device", "7"],
        &["plan", arg(&file), "-v"],
        &["convert", arg(&file), arg(&folder.path().join("\u{1b}.csv"))],
    ] {
        let ran = girih(args);
        let is_obeyed = |c: char| c.is_control() && c != '\n';
        assert!(!ran.stdout.contains(is_obeyed), "{args:?}: {:?}", ran.stdout);
        assert!(!ran.stderr.contains(is_obeyed), "{args:?}: {:?}", ran.stderr);
        assert!(!ran.stdout.contains("red\n"), "{args:?}: a name is one line: {}", ran.stdout);
    }
}
