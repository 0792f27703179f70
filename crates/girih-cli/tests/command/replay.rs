//! `girih replay`.

use crate::girih::{arg, girih, has_fields, integer, json, snapshot, text, without_times};

/// The fields of every row.
pub(crate) const ROW_FIELDS: [&str; 13] = [
    "allocator",
    "events",
    "requests",
    "allocated_peak",
    "active_peak",
    "reserved_peak",
    "requested_peak",
    "efficiency",
    "num_alloc_retries",
    "num_ooms",
    "num_device_alloc",
    "num_device_free",
    "seconds",
];

#[test]
fn a_replay_is_printed_for_each_allocator() {
    for allocator in ["direct", "native", "expandable", "planned"] {
        let printed = text(&["replay", arg(&snapshot("fsdp2_R_r0")), "--allocator", allocator]);
        insta::assert_snapshot!(format!("replay_under_{allocator}"), without_times(&printed));
    }
}

#[test]
fn a_replay_as_json_has_the_fields_that_scripts_rely_on() {
    let file = snapshot("megatron_gpt2-R_r3");
    let native = json(&["replay", arg(&file)]);
    has_fields(&native, &ROW_FIELDS);
    assert_eq!(native["allocator"], "native");
    assert_eq!(integer(&native, "requests"), 27_465);
    assert_eq!(integer(&native, "recorded_reserved_peak"), 19_413_336_064);
    assert_eq!(integer(&native, "reserved_peak"), 19_413_336_064);
    assert_eq!(native["segment_events_equal"], true);
    assert!(native.get("first_difference").is_none_or(serde_json::Value::is_null));

    let planned = json(&["replay", arg(&file), "--allocator", "planned"]);
    has_fields(&planned, &ROW_FIELDS);
    let hits = integer(&planned, "planned_hits") + integer(&planned, "planned_misses");
    assert_eq!(hits, integer(&planned, "requests"));
}

#[test]
fn a_replay_with_other_settings_names_the_first_segment_that_differs() {
    let file = snapshot("megatron_gpt2-R_r3");
    let other = json(&["replay", arg(&file), "--conf", "max_split_size_mb:512"]);
    assert_eq!(other["segment_events_equal"], false);
    let difference = other["first_difference"].as_str().expect("a sentence");
    assert!(difference.starts_with("segment event "), "{difference}");
}

#[test]
fn no_policy_uses_memory_before_the_last_use_is_over() {
    let file = snapshot("fsdp2_R_r0");
    for allocator in ["direct", "native", "expandable", "planned"] {
        let args = ["replay", arg(&file), "--allocator", allocator];
        let mut checked = json(&[&args[..], &["--check-order"]].concat());
        let mut plain = json(&args);
        for result in [&mut checked, &mut plain] {
            result["seconds"] = 0.into();
        }
        assert_eq!(checked, plain, "looking on changes nothing");
    }
}

#[test]
fn a_plan_of_another_run_costs_misses_and_memory_but_serves_every_request() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("fsdp.plan");
    text(&["plan", arg(&snapshot("fsdp2_R_r0")), "-o", arg(&plan)]);

    let file = snapshot("megatron_gpt2-R_r3");
    let args = ["replay", arg(&file), "--allocator", "planned"];
    let own = json(&args);
    let ran = girih(&[&args[..], &["--plan", arg(&plan), "--json"]].concat());
    let other: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(other["requests"], own["requests"]);
    assert_eq!(other["num_ooms"], 0);
    assert_eq!(other["fits"], true);
    assert!(integer(&other, "planned_misses") > integer(&own, "planned_misses"));
    assert!(integer(&other, "reserved_peak") > integer(&own, "reserved_peak"));
}

#[test]
fn a_plan_from_a_file_is_followed_like_one_made_on_the_spot() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("own.plan");
    let file = snapshot("fsdp2_R_r0");
    text(&["plan", arg(&file), "-o", arg(&plan)]);
    let args = ["replay", arg(&file), "--allocator", "planned"];
    let mut spot = json(&args);
    let mut read = json(&[&args[..], &["--plan", arg(&plan)]].concat());
    for result in [&mut spot, &mut read] {
        result["seconds"] = 0.into();
    }
    assert_eq!(spot, read);
}
