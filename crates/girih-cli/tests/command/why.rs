//! `girih why` and `girih diff`: text as a person sees it, fields as a program reads them.

use std::fs;
use std::io::Write;

use serde_json::Value;

use crate::girih::{arg, error, girih, has_fields, integer, json, snapshot, text};

/// The generated runs that died, with what they died of.
const DEAD: [(&str, &str); 2] = [("died_fragmented", "fragmented"), ("died_leak", "leak")];

#[test]
fn the_answer_begins_with_the_verdict_and_ends_with_what_to_do() {
    for (name, _) in DEAD {
        insta::assert_snapshot!(format!("why_{name}"), text(&["why", arg(&snapshot(name))]));
    }
}

/// Runs that died on a GPU, with what they died of, and the settings under which they got to their end there.
const DEAD_ON_A_GPU: [(&str, &str, &[&str]); 8] = [
    ("too_much", "too_much", &[]),
    ("fragmented", "fragmented", &["expandable", "stitch", "planned"]),
    ("leak", "leak", &[]),
    ("kept", "leak", &[]),
    ("other_process", "other_process", &[]),
    ("other_pool", "other_pool", &[]),
    ("spike", "spike", &[]),
    ("other_stream", "other_stream", &["expandable", "max_split_size_mb:128", "stitch"]),
];

#[test]
fn the_verdict_on_runs_that_died_on_a_gpu_is_what_they_were_made_to_die_of() {
    for (name, verdict, fitting) in DEAD_ON_A_GPU {
        let told = girih(&["why", arg(&snapshot(&format!("died/{name}"))), "--json"]);
        let told: Value = serde_json::from_str(&told.stdout).expect("JSON");
        assert_eq!(told["verdict"], verdict, "{name}: {}", told["sentence"]);
        let place = told["lines"][0]["where"].as_str().expect("a line");
        assert!(place.starts_with("gpu/died.py:"), "{name}: {place}");
        let settings = told["would_fit"].as_array().expect("a list");
        for wanted in fitting {
            let fit = settings.iter().find(|fit| fit["setting"] == *wanted).expect(wanted);
            assert_eq!(fit["fits"], true, "{name}: {wanted} was enough on the GPU");
        }
        let native = settings.iter().find(|fit| fit["setting"] == "native").expect("native");
        assert_eq!(native["fits"], false, "{name}: it was refused");
    }
}

#[test]
fn no_setting_is_relied_on_where_the_optimizer_had_more_to_ask_for() {
    // On the GPU `expandable`, `stitch` and `auto` all served the request, and died a few later.
    insta::assert_snapshot!("why_spike", text(&["why", arg(&snapshot("died/spike"))]));
}

#[test]
fn the_fields_that_stay_are_there_and_agree_with_each_other() {
    for (name, verdict) in DEAD {
        let told = json(&["why", arg(&snapshot(name))]);
        assert_eq!(told["verdict"], verdict);
        has_fields(&told, &["sentence", "lines", "advice", "would_fit", "evidence", "steps"]);
        let [requested, capacity, live, reserved, idle] =
            ["requested", "capacity", "live", "reserved", "idle"]
                .map(|field| integer(&told, field));
        assert!(requested > 0 && live + idle <= reserved + requested && reserved <= capacity);
        let settings: Vec<&str> = (told["would_fit"].as_array().expect("a list").iter())
            .map(|fit| fit["setting"].as_str().expect("a name"))
            .collect();
        for wanted in ["native", "expandable", "stitch", "planned", "max_split_size_mb:512"] {
            assert!(settings.contains(&wanted), "{settings:?}");
        }
        for fit in told["would_fit"].as_array().expect("a list") {
            assert_eq!(fit["fits"] == Value::Bool(true), fit["spare"].is_u64(), "{fit}");
        }
        let lines = told["lines"].as_array().expect("a list");
        has_fields(&lines[0], &["bytes", "count", "where", "category"]);
        assert!(lines.windows(2).all(|two| integer(&two[0], "bytes") >= integer(&two[1], "bytes")));
    }
}

#[test]
fn the_same_bytes_are_told_by_whatever_they_are_put_together() {
    let file = snapshot("died_leak");
    let sum = |by: &str| -> u64 {
        let told = json(&["why", arg(&file), "--group-by", by, "--top", "1000000"]);
        let lines = told["lines"].as_array().expect("a list").clone();
        lines.iter().map(|line| integer(line, "bytes")).sum()
    };
    let live = integer(&json(&["why", arg(&file)]), "live");
    for by in ["line", "function", "module", "stream", "category"] {
        assert_eq!(sum(by), live, "{by}");
    }
}

#[test]
fn a_folder_of_ranks_is_told_by_its_worst() {
    let folder = tempfile::tempdir().expect("a folder");
    for (rank, (name, _)) in DEAD.iter().enumerate() {
        let to = folder.path().join(format!("rank{rank}.pickle.gz"));
        fs::copy(snapshot(name), to).expect("it can be copied");
    }
    let told = json(&["why", arg(folder.path())]);
    let ranks = told["ranks"].as_array().expect("a list");
    assert_eq!((ranks.len(), &told["name"]), (2, &ranks[0]["name"]));
    let left = |rank: &Value| integer(rank, "capacity") - integer(rank, "live");
    assert!(left(&ranks[0]) <= left(&ranks[1]), "the worst has the least left");
    let said = text(&["why", arg(folder.path())]);
    assert!(said.contains("2 of 2 ranks were refused memory"), "{said}");
    let empty = tempfile::tempdir().expect("a folder");
    assert!(error(&["why", arg(empty.path())]).contains("name a folder with recordings"));
}

#[test]
fn the_log_says_who_else_is_on_the_card() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run.pickle.gz");
    fs::copy(snapshot("died_leak"), &run).expect("it can be copied");
    assert_eq!(json(&["why", arg(&run)])["others"], Value::Null);
    let mut log = fs::File::create(folder.path().join("run.log")).expect("a file");
    writeln!(
        log,
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 44.00 MiB. GPU 0 has a total \
         capacity of 79.25 GiB of which 28.00 MiB is free. Process 7 has 70.00 GiB memory in use."
    )
    .expect("it can be written");
    let told = json(&["why", arg(&run)]);
    assert_eq!(integer(&told, "others"), 70 << 30);
    assert_eq!(told["verdict"], "other_process", "70 GiB are more than the leak");
    let empty = folder.path().join("empty.log");
    fs::write(&empty, "all is well").expect("it can be written");
    let message = error(&["why", arg(&run), "--log", arg(&empty)]);
    assert!(message.contains("has no error of PyTorch's"), "{message}");
}

#[test]
fn a_run_that_did_not_die_says_so_and_on_a_smaller_device_why_it_would() {
    let file = snapshot("mlp_stacks");
    let told = json(&["why", arg(&file)]);
    assert_eq!((&told["verdict"], &told["requested"]), (&"none".into(), &Value::Null));
    let told = json(&["why", arg(&file), "--capacity", "600MiB"]);
    assert_ne!(told["verdict"], "none");
    assert_eq!(integer(&told, "capacity"), 600 << 20);
    // What is told is of that device, and adds up.
    let [reserved, free, live, idle] =
        ["reserved", "device_free", "live", "idle"].map(|field| integer(&told, field));
    assert_eq!(reserved + free, 600 << 20);
    assert!(live + idle <= reserved, "{live} {idle} {reserved}");
    let by_owner = told["idle_by_owner"].as_object().expect("an object");
    let owned: u64 = by_owner.values().map(|bytes| bytes.as_u64().expect("bytes")).sum();
    assert!(owned <= idle, "{owned} {idle}");
    let said = json(&["why", arg(&file), "--capacity", "80GiB"])["sentence"].to_string();
    assert!(said.contains("on a device of 80.0 GiB: the run fits there, with 79.0 GiB"), "{said}");
}

#[test]
fn below_a_limit_of_the_process_what_the_card_has_free_is_no_room() {
    let said = |name: &str| {
        let printed = girih(&["why", arg(&snapshot(name))]).stdout;
        printed.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let leak = said("died/leak");
    assert!(leak.contains("there would be room for 0 steps more"), "{leak}");
    assert!(leak.contains("2.00 MiB free below the limit of this process"), "{leak}");
    assert!(said("died/kept").contains("there would be room for 2 steps more"));
    let pool = said("died/other_pool");
    assert!(pool.contains("3.23 GiB of 8.00 GiB are needed, but what lies idle stays"), "{pool}");
    assert!(pool.contains("4.82 GiB of other pools"), "{pool}");
    let pieces = said("died/fragmented");
    assert!(pieces.contains("331 MiB are free below the limit"), "{pieces}");
    // A line of the program comes round once more than the requests repeat.
    assert!(
        pieces.contains("in step 7 of this recording, counted from 0; girih stats"),
        "{pieces}"
    );
}

#[test]
fn a_plan_of_the_very_run_that_died_is_advised_to_nobody() {
    for (name, _) in DEAD {
        let said = text(&["why", arg(&snapshot(name))]);
        assert!(!said.contains("girih run train.py"), "{said}");
    }
    let spike = text(&["why", arg(&snapshot("died/spike"))]);
    assert!(spike.contains("girih run --mode stitch train.py"), "{spike}");
}

#[test]
fn what_cannot_be_asked_is_answered_with_what_can() {
    let file = snapshot("died_leak");
    let refused = |words: &[&str]| {
        let ran = girih(&[&["why", arg(&file)], words].concat());
        assert_eq!(ran.code, 2, "{words:?}");
        ran.stderr
    };
    assert!(refused(&["--error", "7"]).contains("use --error 0, the only refused request"));
    assert!(refused(&["--at", "step:900"]).contains("there is no step 900"));
    assert!(refused(&["--at", "noon"]).contains("never-freed"));
    assert!(refused(&["--capacity", "80"]).contains("80GiB"));
}

#[test]
fn a_recording_differs_from_itself_in_nothing_and_from_another_by_place() {
    let (one, other) = (snapshot("died_leak"), snapshot("died_fragmented"));
    let same = json(&["diff", arg(&one), arg(&one)]);
    assert_eq!(same["differences"], Value::Array(Vec::new()));
    assert!(text(&["diff", arg(&one), arg(&one)]).contains("the same alive"));
    let told = json(&["diff", arg(&one), arg(&other), "--top", "100000"]);
    let changes = told["differences"].as_array().expect("a list");
    let change: i64 = changes.iter().map(|of| of["change"].as_i64().expect("a number")).sum();
    let sums = ["bytes_before", "bytes_after"].map(|field| integer(&told, field) as i64);
    assert_eq!(sums[1] - sums[0], change);
}

#[test]
fn the_command_describes_itself() {
    for shell in ["bash", "zsh", "fish"] {
        let words = text(&["completions", shell]);
        assert!(words.contains("girih") && words.contains("why"), "{shell}");
    }
    let page = text(&["man"]);
    assert!(page.contains(".TH girih 1") && page.contains("GIRIH WHY"), "{page}");
    let version = text(&["--version"]);
    assert!(version.starts_with(&format!("girih {}", env!("CARGO_PKG_VERSION"))), "{version}");
}

#[test]
fn quiet_says_nothing_aside_and_verbose_what_is_done() {
    let file = snapshot("died_leak");
    let ran = girih(&["-v", "why", arg(&file)]);
    assert!(ran.stderr.contains("girih: reading "), "{}", ran.stderr);
    assert_eq!(girih(&["-q", "why", arg(&file)]).stderr, "");
    assert_eq!(girih(&["-q", "-v", "why", arg(&file)]).code, 2);
}
