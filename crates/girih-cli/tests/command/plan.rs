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
    assert!(
        ran.stdout.contains("is not right: make the plan again with `girih plan`, it is wrong: "),
        "{}",
        ran.stdout
    );
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
    assert!(refused.contains("plan`, it is wrong"), "{refused}");
}

#[test]
fn a_file_that_is_no_plan_is_not_right() {
    let ran = girih(&["check", arg(&snapshot("mlp_stacks"))]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains("this is none or it is damaged"), "{}", ran.stdout);
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

/// Three buffers of which the plan by birth is higher than the best one.
const ROWS: &str = "id,lower,upper,size\na,0,4,2\nb,2,6,4\nc,4,8,3\nd,1,7,1\n";

#[test]
fn a_plan_is_explained_by_its_bound_and_by_what_was_tried() {
    let file = snapshot("fsdp2_R_r0");
    let plan = ["plan", arg(&file), "--explain"];
    insta::assert_snapshot!("explained_fsdp2_R_r0", without_times(&text(&plan)));
    let plan = json(&["plan", arg(&snapshot("fsdp2_R_r0"))]);
    let certificate = &plan["certificate"];
    let sizes = certificate["sizes"].as_array().expect("a list");
    let sum: u64 = sizes.iter().map(|size| integer(size, "bytes") * integer(size, "count")).sum();
    assert_eq!(sum, integer(&plan, "lower_bound"), "the sizes add up to the bound");
}

#[test]
fn a_budget_bounds_what_is_tried_and_threads_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows.csv");
    // Gaps that no greedy planner closes: a bound that is not reached ends no search.
    let mut text = "id,lower,upper,size\n".to_owned();
    for k in 0..600u32 {
        let (lower, life, size) = (k * 7 % 150, 3 + k * 31 % 37, 100 + k * 53 % 211);
        text += &format!("{k},{lower},{},{size}\n", lower + life);
    }
    fs::write(&rows, text).unwrap();
    let plan = |more: &[&str]| {
        let mut plan = json(&[&["plan", "--csv", arg(&rows)], more].concat());
        plan["seconds"] = 0.into();
        plan
    };
    let alone = plan(&["--budget", "30", "--threads", "1"]);
    assert_eq!(alone["proven"], false);
    assert_eq!(integer(&alone, "exact_nodes"), 30_000, "the search goes on where planners stop");
    assert_eq!(alone["attempts"].as_array().expect("a list").len(), 30);
    assert_eq!(alone, plan(&["--budget", "30", "--threads", "3"]));

    let sweeps = plan(&["--budget", "30", "--planner", "sweep"]);
    for attempt in sweeps["attempts"].as_array().expect("a list") {
        assert!(attempt["planner"].as_str().expect("a name").contains("sweep"), "{attempt}");
    }
    let without = plan(&["--budget", "30", "--without", "skyline", "--without", "sweep"]);
    for attempt in without["attempts"].as_array().expect("a list") {
        let name = attempt["planner"].as_str().expect("a name");
        assert!(name.starts_with("two-phase") || name.starts_with("first fit"), "{name}");
    }
    assert!(integer(&alone, "peak") <= integer(&sweeps, "peak"));
    assert!(integer(&alone, "peak") <= integer(&without, "peak"));
    // However short the time, the first attempt is made.
    let timed = plan(&["--budget", "1ms"]);
    assert!(integer(&timed, "peak") <= integer(&alone["attempts"][0], "height"));

    assert_eq!(integer(&plan(&["--budget", "30", "--without", "exact"]), "exact_nodes"), 0);

    let refused = error(&["plan", "--csv", arg(&rows), "--planner", "sweep", "--without", "sweep"]);
    assert!(refused.contains("leave less out: --without"), "{refused}");
}

#[test]
fn published_planners_and_the_exact_search_plan_alone() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows.csv");
    // Five layers that ask for the same sizes, and keep something each.
    let mut lines = String::new();
    for layer in 0..5u32 {
        let start = 10 * layer;
        for (k, (lower, upper, size)) in
            [(0, 3, 40), (1, 5, 31), (2, 100, 7), (3, 6, 22), (5, 9, 35), (6, 8, 26)]
                .iter()
                .enumerate()
        {
            lines += &format!("{}-{k},{},{},{size}\n", layer, start + lower, start + upper);
        }
    }
    fs::write(&rows, lines).unwrap();
    let plan = |more: &[&str]| json(&[&["plan", "--csv", arg(&rows)], more].concat());
    let exact = plan(&["--planner", "exact"]);
    assert_eq!(exact["proven"], true);
    let alone = text(&["plan", "--csv", arg(&rows), "--planner", "stweaver", "--explain"]);
    assert!(alone.contains("blocks are alive") && !alone.contains("tried"), "{alone}");
    for name in ["stweaver", "memo"] {
        let published = plan(&["--planner", name]);
        assert_eq!(published["planner"], name);
        assert!(integer(&published, "peak") >= integer(&exact, "peak"), "{published}");
        assert_eq!(published, {
            let mut again = plan(&["--planner", name, "--budget", "1"]);
            again["seconds"] = published["seconds"].clone();
            again["attempts"] = published["attempts"].clone();
            again
        });
        // With a time, too, and however short it is.
        assert!(integer(&plan(&["--planner", name, "--budget", "1ms"]), "peak") > 0);
    }
    let recording = snapshot("fsdp2_R_r0");
    let bound = integer(&json(&["plan", arg(&recording)]), "lower_bound");
    for name in ["exact", "stweaver", "memo"] {
        let of_recording = json(&["plan", arg(&recording), "--planner", name]);
        assert!(integer(&of_recording, "peak") >= bound, "{of_recording}");
        let refused = error(&["plan", arg(&recording), "--planner", name, "--without", "sweep"]);
        assert!(refused.contains("leave --without out: --planner"), "{refused}");
    }
}

#[test]
fn every_planner_is_measured_on_every_problem_of_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("small.csv"), ROWS).unwrap();
    fs::write(folder.path().join("broken.csv"), "id,lower,upper,size\na,5,2,1\n").unwrap();
    fs::write(folder.path().join("notes.txt"), "no problem").unwrap();
    let ran = girih(&["bench", "planners", arg(folder.path()), "--json"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (1, ""), "one of the problems is broken");
    let answer: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let [broken, small] = &answer["problems"].as_array().expect("a list")[..] else {
        panic!("two problems: {answer}");
    };
    for row in small["rows"].as_array().expect("a list") {
        assert_eq!(integer(row, "buffers"), 4, "{row}");
        assert!(integer(row, "height") >= integer(row, "lower_bound"), "{row}");
    }
    let rows = small["rows"].as_array().expect("a list").iter();
    let names: Vec<&str> = rows.filter_map(|row| row["planner"].as_str()).collect();
    assert!(["exact", "stweaver, by size", "memo"].iter().all(|name| names.contains(name)));
    assert!(!names.iter().any(|name| name.contains("by marks") || name.contains("by phase")));
    assert_eq!(small["rows"][0]["planner"], "auto");
    assert_eq!(small["rows"][0]["proven"], true);
    for row in broken["rows"].as_array().expect("a list") {
        assert!(row["error"].as_str().expect("a reason").contains("broken.csv"), "{row}");
    }

    let empty = tempfile::tempdir().unwrap();
    let refused = error(&["bench", "planners", arg(empty.path())]);
    assert!(refused.contains("name a folder with .csv"), "{refused}");
}
