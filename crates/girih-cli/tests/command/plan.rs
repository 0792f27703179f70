//! `girih plan` and `girih check`.

use std::fs;

use crate::girih::{
    RECORDINGS, arg, error, girih, has_fields, integer, json, snapshot, text, without_times,
};

const FIELDS: [&str; 9] = [
    "requests",
    "persistent_bytes",
    "iteration_requests",
    "lower_bound",
    "peak",
    "gap",
    "proven",
    "planner",
    "seconds",
];

#[test]
fn every_recording_of_the_corpus_is_planned_at_its_lower_bound() {
    for name in RECORDINGS {
        let plan = json(&["plan", arg(&snapshot(name))]);
        has_fields(&plan, &FIELDS);
        assert_eq!(plan["proven"], true, "{name}");
        assert_eq!(plan["gap"], 0.0, "{name}");
        assert_eq!(plan["peak"], plan["lower_bound"], "{name}");
    }
}

#[test]
fn a_plan_is_printed_and_its_file_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fsdp.plan");
    let printed = text(&["plan", arg(&snapshot("fsdp2_R_r0")), "-o", arg(&file)]);
    insta::assert_snapshot!(
        "plan_of_fsdp2_R_r0",
        without_times(&printed).replace(arg(&file), "FILE")
    );
    let checked = text(&["check", arg(&file)]);
    insta::assert_snapshot!("check_of_a_plan", checked.replace(arg(&file), "FILE"));
    assert_eq!(json(&["check", arg(&file)])["valid"], true);
}

#[test]
fn a_plan_that_was_changed_is_not_right_and_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("changed.plan");
    text(&["plan", arg(&snapshot("mlp_stacks")), "-o", arg(&file)]);
    let mut plan: serde_json::Value =
        serde_json::from_slice(&fs::read(&file).unwrap()).expect("a plan file is JSON");
    // Everything in the arena moves to its first byte.
    for sequence in plan["sequences"].as_array_mut().expect("a list") {
        for offset in sequence["offset"].as_array_mut().expect("a column") {
            *offset = 0.into();
        }
    }
    fs::write(&file, plan.to_string()).unwrap();

    let ran = girih(&["check", arg(&file)]);
    assert_eq!(ran.code, 1, "a no, not a failure");
    assert!(ran.stdout.contains("is not right: the plan is wrong: "), "{}", ran.stdout);
    let ran = girih(&["check", arg(&file), "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!((ran.code, &answer["valid"]), (1, &false.into()));
    let refused = error(&[
        "replay",
        arg(&snapshot("mlp_stacks")),
        "--allocator",
        "planned",
        "--plan",
        arg(&file),
    ]);
    assert!(refused.contains("the plan is wrong"), "{refused}");
}

#[test]
fn a_file_that_is_no_plan_is_not_right() {
    let ran = girih(&["check", arg(&snapshot("mlp_stacks"))]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("this is no plan file"), "{}", ran.stdout);
}

#[test]
fn a_planning_problem_is_planned_and_written_back_with_its_offsets() {
    let folder = tempfile::tempdir().unwrap();
    let (problem, solved) = (folder.path().join("three.csv"), folder.path().join("solved.csv"));
    fs::write(&problem, "id,lower,upper,size\na,0,4,1024\nb,2,6,512\nc,4,8,1024\n").unwrap();
    let plan = json(&["plan", "--csv", arg(&problem), "-o", arg(&solved)]);
    has_fields(&plan, &FIELDS);
    assert_eq!((integer(&plan, "lower_bound"), integer(&plan, "peak")), (1536, 1536));
    assert_eq!(plan["proven"], true);

    let rows = fs::read_to_string(&solved).unwrap();
    let mut lines = rows.lines();
    assert_eq!(lines.next(), Some("id,lower,upper,size,offset"));
    let offsets: Vec<u64> =
        lines.map(|row| row.rsplit(',').next().unwrap().parse().unwrap()).collect();
    // `a` and `c` never meet and share their bytes; `b` meets both.
    assert_eq!(offsets.len(), 3);
    assert_eq!(offsets[0], offsets[2]);
    assert!(offsets[1] >= offsets[0] + 1024 || offsets[0] >= offsets[1] + 512);
}

#[test]
fn a_planning_problem_that_makes_no_sense_is_refused_with_its_row() {
    let folder = tempfile::tempdir().unwrap();
    let problem = folder.path().join("odd.csv");
    fs::write(&problem, "id,lower,upper,size\na,0,4,1024\nb,six,6,512\n").unwrap();
    let message = error(&["plan", "--csv", arg(&problem)]);
    assert!(message.contains("line 3"), "{message}");
}
