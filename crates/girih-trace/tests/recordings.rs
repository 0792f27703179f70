//! The recorded runs: every file is read whole.

use std::fs;
use std::path::Path;

use crate::common::shared;
use girih_trace::compress::Limits;
use girih_trace::open::detect_and_read;
use girih_trace::{Action, Trace, file, marks};

/// The recordings, and the entries that CPython counts in each.
const COUNTS: [(&str, usize); 10] = [
    ("fsdp2_R_r0", 40_158),
    ("gpt2m_R", 62_434),
    ("llama2b_R_vary", 126_552),
    ("lora13b_R", 105_482),
    ("megatron_gpt2-R_r3", 81_236),
    ("megatron_gpt2-V-R_r3", 81_452),
    ("megatron_llama7b-V_r0", 99_097),
    ("megatron_qwenmoe-R_r0", 869_250),
    ("megatron_qwenmoe_r3", 640_667),
    ("mlp_stacks", 973),
];

fn read(folder: &Path, name: &str) -> Trace {
    let path = folder.join(format!("{name}.pickle.gz"));
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut recording = detect_and_read(&bytes[..], Limits::default()).unwrap();
    assert_eq!(recording.traces.len(), 1, "{name}");
    recording.traces.remove(0)
}

#[test]
fn every_recording_has_as_many_events_as_python_counts() {
    let Some(folder) = shared("traces") else { return };
    for (name, count) in COUNTS {
        let trace = read(&folder, name);
        assert_eq!(trace.events.len(), count, "{name}");
        let is_late = ["gpt2m_R", "llama2b_R_vary", "lora13b_R"].contains(&name);
        assert_eq!(trace.origin.truncated, is_late, "{name}: {:?}", trace.origin.warnings);
        assert!(trace.events.is_sorted_by_key(|event| event.time_us), "{name}");
    }
}

#[test]
fn every_recording_survives_as_a_trace_file_a_fourth_of_its_size() {
    let Some(folder) = shared("traces") else { return };
    for (name, count) in COUNTS {
        let mut trace = read(&folder, name);
        if let Ok(json) = fs::read(folder.join(format!("{name}.marks.json.gz"))) {
            marks::apply(&mut trace, &json).unwrap();
        }
        let recording = girih_trace::Recording { traces: vec![trace] };
        let mut bytes = Vec::new();
        file::write(&recording, &mut bytes).unwrap();
        assert_eq!(file::read(&bytes[..], Limits::default()).unwrap(), recording, "{name}");
        let pickle = fs::metadata(folder.join(format!("{name}.pickle.gz"))).unwrap().len();
        if count > 1000 {
            assert!(4 * (bytes.len() as u64) < pickle, "{name}: {} of {pickle}", bytes.len());
        }
    }
}

#[test]
fn the_stacks_of_the_small_recording_arrive() {
    let Some(folder) = shared("traces") else { return };
    let trace = read(&folder, "mlp_stacks");
    assert_eq!((trace.segments.len(), trace.stacks.len(), trace.frames.len()), (63, 34, 254));
    assert!(trace.events.iter().all(|event| event.stack.is_some()));
    let first = &trace.stacks[trace.events[0].stack.0 as usize];
    assert_eq!(trace.frames[first[0] as usize], "??:0 torch::unwind::unwind()");
    let names: Vec<&str> = trace.marks.iter().map(|mark| mark.name.as_str()).collect();
    assert_eq!(names.iter().filter(|&&name| name == "AdamW.step").count(), 3, "{names:?}");
    assert_eq!(trace.marks.len(), 6);
}

#[test]
fn the_peak_that_a_process_reported_is_near_what_its_events_add_up_to() {
    let Some(folder) = shared("traces") else { return };
    let mut trace = read(&folder, "fsdp2_R_r0");
    let json = fs::read(folder.join("fsdp2_R_r0.marks.json.gz")).unwrap();
    marks::apply(&mut trace, &json).unwrap();
    let (mut live, mut peak) = (0u64, 0);
    for event in &trace.events {
        match event.action {
            Action::Alloc => live += event.size.next_multiple_of(512),
            Action::FreeRequested => live -= event.size.next_multiple_of(512),
            _ => {}
        }
        peak = peak.max(live);
    }
    let reported = trace.recorded.allocated_peak.expect("the marks have it");
    assert!(peak.abs_diff(reported) * 100 < reported, "{peak} against {reported}");
    assert!(!trace.marks.is_empty());
}

#[test]
fn marks_stand_in_order_and_at_their_time() {
    let Some(folder) = shared("traces") else { return };
    let mut trace = read(&folder, "gpt2m_R");
    let json = fs::read(folder.join("gpt2m_R.marks.json.gz")).unwrap();
    marks::apply(&mut trace, &json).unwrap();
    assert_eq!(trace.recorded.reserved_peak, Some(59_972_255_744));
    assert!(trace.marks.is_sorted_by_key(|mark| mark.before));
    for mark in &trace.marks {
        let (earlier, later) = trace.events.split_at(mark.before as usize);
        assert!(earlier.last().is_none_or(|event| event.time_us < mark.time_us));
        assert!(later.first().is_none_or(|event| event.time_us >= mark.time_us));
    }
}
