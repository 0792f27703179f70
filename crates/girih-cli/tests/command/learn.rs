//! `girih compare --learn`: a plan of the first part of a recording, on the rest of it.

use std::fs;

use serde_json::Value;

use crate::girih::{arg, corpus, error, girih, has_fields, integer, json, snapshot, text};

/// What is printed of the rest.
fn rest(file: &str, share: &str) -> String {
    // Late ones are warned of.
    let ran = girih(&["compare", file, "--learn", share]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let printed = ran.stdout;
    let at = printed.find("the rest of the run").or_else(|| printed.find("the whole run"));
    printed[at.expect("a table of the rest")..].to_owned()
}

/// The same as an object.
fn learn(file: &str, share: &str) -> Value {
    json(&["compare", file, "--learn", share])["recordings"][0]["learn"].take()
}

fn row<'a>(learn: &'a Value, name: &str) -> &'a Value {
    let rows = learn["rows"].as_array().expect("a list");
    rows.iter().find(|row| row["allocator"] == name).expect("a row of this name")
}

#[test]
fn a_plan_of_the_first_steps_is_followed_in_the_rest() {
    let file = corpus("llama2b_R.girih");
    insta::assert_snapshot!("the_rest_of_llama2b_R", rest(arg(&file), "50%"));
}

#[test]
fn where_sizes_vary_it_is_said_that_auto_would_not_follow_the_plan() {
    let file = corpus("llama2b_vary.girih");
    insta::assert_snapshot!("the_rest_of_llama2b_vary", rest(arg(&file), "0.5"));
}

#[test]
fn of_a_first_part_in_which_nothing_is_alike_nothing_is_learnt() {
    let file = snapshot("fsdp2_R_r0");
    insta::assert_snapshot!("the_rest_of_fsdp2_R_r0", rest(arg(&file), "50%"));
    let learnt = learn(arg(&file), "50%");
    assert!(learnt["plan"].is_null());
    for field in ["allocated_peak", "reserved_peak", "efficiency", "device_calls"] {
        assert_eq!(row(&learnt, "learnt")[field], row(&learnt, "stitch")[field], "{field}");
    }
}

#[test]
fn a_first_part_without_an_iteration_and_one_of_one_are_told_apart() {
    let file = snapshot("mlp_stacks");
    let says = |share, what: &str| {
        let printed = rest(arg(&file), share);
        assert!(printed.contains(what), "{printed}");
        assert!(
            printed.contains("learnt has no plan, and is stitch: record more steps"),
            "{printed}"
        );
    };
    says("10%", "for none of them ends in the first part");
    says("10%", "the rest of the run, from the first of 2 iterations on");
    says("99%", "for the first part has one, and a plan needs two");
    let learnt = learn(arg(&file), "10%");
    assert_eq!(integer(&learnt, "iterations_learnt"), 0);
}

/// A planning problem of three blocks as a recording: nothing repeats in it.
#[test]
fn a_recording_without_iterations_is_the_rest_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let [problem, recording] = ["p.csv", "p.girih"].map(|name| folder.path().join(name));
    fs::write(&problem, "id,lower,upper,size\n0,0,5,4000000\n1,1,3,9000000\n2,2,9,77\n").unwrap();
    text(&["convert", arg(&problem), arg(&recording)]);
    let printed = rest(arg(&recording), "50%");
    assert!(printed.starts_with("the whole run\n"), "{printed}");
    assert!(printed.contains("for nothing in the recording repeats"), "{printed}");
    let whole = json(&["compare", arg(&recording), "--learn", "50%"]);
    let learnt = &whole["recordings"][0]["learn"];
    assert_eq!((integer(learnt, "iterations"), integer(learnt, "event")), (0, 0));
    let rows = whole["recordings"][0]["rows"].as_array().expect("a list");
    let stitch = rows.iter().find(|row| row["allocator"] == "stitch").expect("a row");
    assert_eq!(integer(row(learnt, "stitch"), "reserved_peak"), integer(stitch, "reserved_peak"));
}

#[test]
fn the_fields_are_those_that_scripts_rely_on() {
    let learnt = learn(arg(&corpus("megatron_gpt2-V-R_r0.girih")), "50%");
    has_fields(&learnt, &["share", "iterations", "iterations_learnt", "event", "plan", "rows"]);
    has_fields(
        &learnt["plan"],
        &["iterations", "iteration_requests", "tight", "varies", "followed_by_auto"],
    );
    assert_eq!((integer(&learnt, "iterations"), integer(&learnt, "iterations_learnt")), (10, 5));
    let names: Vec<&str> = (learnt["rows"].as_array().expect("a list").iter())
        .filter_map(|row| row["allocator"].as_str())
        .collect();
    assert_eq!(names, ["stitch", "auto", "again", "learnt"]);
    for name in names {
        let row = row(&learnt, name);
        has_fields(row, &["device_calls", "device_microseconds", "fits"]);
        let [used, held] = ["allocated_peak", "reserved_peak"].map(|field| integer(row, field));
        assert_eq!(row["efficiency"].as_f64(), Some(used as f64 / held as f64), "{name}");
    }
    let learnt = row(&learnt, "learnt");
    let [hits, misses] = ["planned_hit_bytes", "planned_miss_bytes"].map(|f| integer(learnt, f));
    assert!(hits > 999 * misses, "{hits} bytes had their place, {misses} had none");
}

#[test]
fn without_the_option_there_is_nothing_of_it() {
    let file = snapshot("mlp_stacks");
    let recording = &json(&["compare", arg(&file)])["recordings"][0];
    assert!(recording.get("learn").is_none());
    assert!(!text(&["compare", arg(&file)]).contains("learnt"));
}

#[test]
fn a_capacity_holds_for_the_rest_as_well() {
    let file = corpus("llama2b_R.girih");
    let printed = text(&["compare", arg(&file), "--learn", "50%", "--capacity", "20GiB"]);
    let (_, rest) = printed.split_once("the rest of the run").expect("a table of the rest");
    let learnt = rest.lines().find(|line| line.starts_with("learnt ")).expect("a row");
    let cells: Vec<&str> = learnt.split_whitespace().collect();
    assert_eq!(cells[1], "no", "{learnt}");
    assert!(cells.contains(&"-"), "no efficiency of a run that stopped: {learnt}");
}

#[test]
fn a_recording_that_began_late_is_learnt_from_too() {
    // Its first events are lost: what it held then shows in its final segments alone.
    let whole = corpus("fsdp2_R_r0.pickle.gz");
    let late = corpus("gpt2m_R_vary.girih");
    let learnt = girih(&["compare", arg(&late), "--learn", "50%", "--json"]);
    assert_eq!(learnt.code, 0, "{}", learnt.stderr);
    let result: Value = serde_json::from_str(&learnt.stdout).expect("JSON");
    let recording = &result["recordings"][0];
    assert_eq!(recording["truncated"], true);
    assert!(recording["learn"]["plan"]["iterations"].as_u64() >= Some(2));
    // Of several recordings each has its own.
    let both = girih(&["compare", arg(&whole), arg(&late), "--learn", "50%", "--json"]);
    let both: Value = serde_json::from_str(&both.stdout).expect("JSON");
    assert_eq!(both["recordings"][1]["learn"], recording["learn"]);
    assert_ne!(both["recordings"][0]["learn"], recording["learn"]);
}

#[test]
fn shares_that_are_none_are_refused() {
    let file = snapshot("mlp_stacks");
    for (share, why) in [
        ("0%", "something is learnt from"),
        ("100%", "something left"),
        ("1.0", "something left"),
        ("50", "try 50%"),
        ("half", "no share"),
    ] {
        let ran = girih(&["compare", arg(&file), "--learn", share]);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{share}");
        assert!(ran.stderr.contains(why), "{share}: {}", ran.stderr);
    }
}

#[test]
fn a_plan_file_and_a_share_to_learn_from_exclude_each_other() {
    let file = snapshot("mlp_stacks");
    let ran = girih(&["compare", arg(&file), "--learn", "50%", "--plan", "some.plan"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("cannot be used with"), "{}", ran.stderr);
    assert!(error(&["compare", "no/such/file", "--learn", "50%"]).contains("cannot open"));
}
