//! `girih stats`.

use std::fs;

use crate::girih::{
    RECORDINGS, arg, corpus, has_fields, integer, json, snapshot, text, without_times,
};

#[test]
fn stats_are_printed_for_each_recording_of_the_corpus() {
    for name in RECORDINGS {
        let printed = text(&["stats", arg(&snapshot(name))]);
        insta::assert_snapshot!(format!("stats_of_{name}"), without_times(&printed));
    }
}

#[test]
fn stats_as_json_have_the_fields_that_scripts_rely_on() {
    let stats = json(&["stats", arg(&snapshot("megatron_gpt2-R_r3"))]);
    for field in ["events", "requests", "streams", "distinct_sizes", "live_peak"] {
        assert!(integer(&stats, field) > 0, "{field}");
    }
    has_fields(&stats, &["iterations", "truncated", "seconds"]);
    assert_eq!(integer(&stats, "events"), 81_236);
    assert_eq!(integer(&stats["iterations"], "count"), 3);
    assert_eq!(stats["iterations"]["steady"], serde_json::json!([1, 2]));
    assert_eq!(stats["truncated"], false);
}

#[test]
fn marks_beside_a_recording_are_found_without_being_named() {
    let name = "megatron_gpt2-R_r3";
    let marks = corpus(&format!("{name}.marks.json.gz"));
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("alone.pickle.gz");
    fs::copy(snapshot(name), &alone).unwrap();

    let source = |args: &[&str]| json(args)["iterations"]["source"].clone();
    assert_eq!(source(&["stats", arg(&snapshot(name))]), "marks");
    assert_eq!(source(&["stats", arg(&alone)]), "sequence");
    assert_eq!(source(&["stats", arg(&alone), "--marks", arg(&marks)]), "marks");

    fs::copy(&marks, folder.path().join("alone.marks.json.gz")).unwrap();
    assert_eq!(source(&["stats", arg(&alone)]), "marks");
}
