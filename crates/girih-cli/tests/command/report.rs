//! `girih report`: the figures agree with the other commands, the page says the same as `--json` when a
//! browser opens it, and nothing that a recording says becomes markup.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use girih_trace::{Action, Event, Mark, MarkKind, PoolId, Recording, StackId, StreamId, Trace};
use serde_json::Value;

use crate::girih::{arg, error, girih, has_fields, integer, json, snapshot, text, without_times};

/// Names that would be markup if they were taken for it.
const HOSTILE: [&str; 4] = [
    "</script><script>document.title='owned-by-it'</script>.py:7 <img src=x onerror=alert(1)>",
    "<!--<script>.py:1 a\"b'c&amp;d",
    "]]>\u{2028}\\u003c{{data}}.py:2 ${alert(1)}`",
    "javascript:alert(1).py:3 __proto__",
];

/// Chromium, if there is one.
#[expect(clippy::print_stderr, reason = "a test that skips says so")]
fn chromium() -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found = std::env::split_paths(&paths)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|path| path.is_file());
    if found.is_none() {
        eprintln!("SKIPPED: there is no Chromium to open the page with");
    }
    found
}

/// Opens a page and gives what it found of itself, or None without a browser.
pub(crate) fn opened(page: &Path) -> Option<Value> {
    let browser = chromium()?;
    let profile = tempfile::tempdir().expect("a folder");
    let output = Command::new("timeout")
        .arg("180")
        .arg(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg("--dump-dom")
        .arg(format!("file://{}#selftest", arg(page)))
        .output()
        .expect("it starts");
    let dom = String::from_utf8_lossy(&output.stdout);
    let (_, told) = dom.split_once("<pre id=\"selftest\">").unwrap_or_else(|| {
        panic!("the page tells nothing: {}", String::from_utf8_lossy(&output.stderr))
    });
    let told = told.split_once("</pre>").expect("it ends").0;
    let told = told.replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", "\u{a0}");
    Some(serde_json::from_str(&told.replace("&amp;", "&")).expect("JSON"))
}

/// Writes the page of a recording of the corpus, and gives what `--json` says.
fn paged(name: &str, folder: &Path, more: &[&str]) -> (PathBuf, Value) {
    let page = folder.join(format!("{name}.html"));
    let file = snapshot(name);
    let words = [&["report", arg(&file), "-o", arg(&page)], more].concat();
    let told = json(&words);
    (page, told)
}

#[test]
fn the_figures_are_those_of_the_other_commands() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["megatron_gpt2-R_r3", "mlp_stacks", "died_leak"] {
        let file = snapshot(name);
        let (page, told) = paged(name, folder.path(), &[]);
        has_fields(&told, &["name", "steps", "refused", "categories", "warnings", "seconds"]);
        assert_eq!(
            integer(&told, "live_peak"),
            integer(&json(&["stats", arg(&file)]), "live_peak")
        );
        let compared = json(&["compare", arg(&file)]);
        let compared = &compared["recordings"][0];
        assert_eq!(told["lower_bound"], compared["lower_bound"], "{name}");
        let rows = compared["rows"].as_array().expect("a list");
        let allocators = told["allocators"].as_array().expect("a list");
        assert_eq!(allocators.len(), 4);
        for of in allocators {
            let row = rows.iter().find(|row| row["allocator"] == of["name"]).expect("a row");
            for field in ["reserved_peak", "allocated_peak", "efficiency"] {
                assert_eq!(of[field], row[field], "{name}, {field}");
            }
            let waste = &compared["waste_at_peak_by_allocator"][of["name"].as_str().expect("text")];
            for cause in of["waste"].as_array().expect("a list") {
                assert_eq!(cause["bytes"], waste[cause["cause"].as_str().expect("text")], "{name}");
            }
        }
        let why = json(&["why", arg(&file), "--at", "peak", "--top", "20"]);
        assert_eq!(told["lines"], why["lines"], "{name}");
        let by = json(&["why", arg(&file), "--at", "peak", "--group-by", "category"]);
        assert_eq!(told["categories"], by["lines"], "{name}");
        let written = fs::metadata(&page).expect("it is there").len();
        assert_eq!(integer(&told["page"], "bytes"), written);
        assert_eq!(integer(&told["page"], "left_out"), 0);
    }
}

/// What the page found of itself must be what `--json` says.
pub(crate) fn assert_same(page: &Value, told: &Value) {
    assert_eq!(page["troubles"], Value::Array(Vec::new()));
    for (of_page, of_json) in [
        ("events", "events"),
        ("live_peak", "live_peak"),
        ("live_at_peak_event", "live_peak"),
        ("live_by_blocks", "live_peak"),
        ("active_peak", "lower_bound"),
        ("reserved_peak", "reserved_peak"),
        ("held_at_peak", "reserved_at_live_peak"),
        ("steps", "steps"),
        ("refused", "refused"),
    ] {
        assert_eq!(page[of_page], told[of_json], "{of_page}");
    }
    assert_eq!(page["blocks"], told["page"]["blocks"]);
    let zero = Value::from(0);
    for share in told["categories"].as_array().expect("a list") {
        assert_eq!(page["categories"][share["where"].as_str().expect("text")], share["bytes"]);
    }
    for (name, bytes) in page["categories"].as_object().expect("an object") {
        let shares = told["categories"].as_array().expect("a list");
        let has = shares.iter().any(|share| share["where"] == **name);
        assert!(has || *bytes == zero, "{name}");
    }
    let allocators = page["allocators"].as_array().expect("a list");
    for (of_page, of_json) in allocators.iter().zip(told["allocators"].as_array().expect("a list"))
    {
        assert_eq!(of_page["reserved_peak"], of_json["reserved_peak"], "{of_json}");
    }
    for pair in page["alive"].as_array().expect("a list") {
        assert_eq!(pair[0], pair[1], "the pyramid finds what looking at every block finds");
    }
}

#[test]
fn the_page_opens_without_an_error_and_says_what_json_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let other = snapshot("died_leak");
    let more = ["--against", arg(&other), "--gpu-budget", "3GiB"];
    for (name, more) in
        [("megatron_gpt2-R_r3", &[][..]), ("died_fragmented", &more), ("fsdp2_R_r0", &[])]
    {
        let (page, told) = paged(name, folder.path(), more);
        let Some(found) = opened(&page) else { return };
        assert_same(&found, &told);
        let tiles = found["tiles"].as_array().expect("a list");
        assert_eq!(tiles.len(), 6, "{tiles:?}");
        if name.starts_with("died") {
            let lines = told["lines"].as_array().expect("a list").iter();
            let lines = lines.map(|of| serde_json::json!([of["where"], of["bytes"], of["count"]]));
            assert_eq!(found["lines"], lines.collect::<Value>());
        }
    }
}

/// A recording whose every name is hostile.
fn hostile(path: &Path) {
    let (stream, pool) = (StreamId(0), PoolId::DEFAULT);
    let event = |at: u32, action, stack: u32| Event {
        stack: StackId(stack),
        time_us: 1 + i64::from(at),
        ..Event::of(action, 1 << 40 | u64::from(stack) << 22, 1 << 20, stream, pool)
    };
    let count = HOSTILE.len() as u32;
    let segment = Event { size: 64 << 20, ..event(0, Action::SegmentAlloc, 0) };
    let mark = |kind| Mark { before: 0, time_us: 1, kind, name: HOSTILE[0].to_owned() };
    let mut trace = Trace {
        events: std::iter::once(segment)
            .chain((0..count).map(|at| event(at, Action::Alloc, at)))
            .collect(),
        streams: vec![0],
        pools: vec![(0, 0)],
        marks: [MarkKind::Step, MarkKind::ForwardIn, MarkKind::Other].map(mark).to_vec(),
        stacks: (0..count).map(|index| vec![index]).collect(),
        frames: HOSTILE.map(str::to_owned).to_vec(),
        ..Trace::default()
    };
    trace.settings.conf = HOSTILE[0].to_owned();
    let file = fs::File::create(path).expect("a file");
    girih_trace::file::write(&Recording { traces: vec![trace] }, file).expect("it is valid");
}

#[test]
fn nothing_that_a_recording_says_becomes_markup() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("<script>document.title='owned-by-name'<!-- {{script}}.girih");
    let page = folder.path().join("page.html");
    hostile(&run);
    let words = ["report", arg(&run), "-o", arg(&page), "--against", arg(&run)];
    let told = json(&words);
    let written = fs::read_to_string(&page).expect("text");
    for word in ["owned-by", "onerror", "alert(", "document.title=", "__proto__"] {
        assert!(!written.contains(word), "{word} stands in the page as it is");
    }
    let (plain, _) = paged("mlp_stacks", folder.path(), &["--no-replays"]);
    let plain = fs::read_to_string(plain).expect("text");
    let tags = |text: &str| text.matches("<script").count();
    // The curves of the allocators have their own element in both; a plan has one more.
    assert_eq!(tags(&written), tags(&plain) + 1);
    let Some(found) = opened(&page) else { return };
    assert_same(&found, &told);
    assert_eq!((&found["scripts"], &found["pictures"]), (&1.into(), &0.into()));
    let name = found["name"].as_str().expect("text");
    assert!(name.starts_with("<script>document.title='owned-by-name'"), "{name}");
    let shown = found["flame"].to_string() + &found["places"].to_string();
    for frame in HOSTILE {
        let (file, _) = frame.split_once(".py:").expect("a frame");
        let file = Value::from(file).to_string();
        assert!(shown.contains(file.trim_matches('"')), "{file} is not shown as text in {shown}");
    }
}

#[test]
fn other_viewers_are_given_their_formats() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let (perfetto, viz) = (at("run.pftrace"), at("run.pickle"));
    for name in ["mlp_stacks", "megatron_gpt2-R_r3"] {
        let file = snapshot(name);
        let words = ["--perfetto", arg(&perfetto), "--memory-viz", arg(&viz)];
        let told = json(&[&["report", arg(&file)][..], &words].concat());
        let formats: Vec<&Value> =
            told["written"].as_array().expect("a list").iter().map(|it| &it["format"]).collect();
        assert_eq!(formats, ["perfetto", "memory_viz"]);
        assert_eq!(told["page"], Value::Null);
        // What PyTorch's viewer reads, Girih reads: the same run.
        let [before, after] = [&file, &viz].map(|path| json(&["stats", arg(path)]));
        for field in ["events", "requests", "never_freed", "live_peak", "distinct_sizes", "ooms"] {
            assert_eq!(before[field], after[field], "{name}, {field}");
        }
        let lines = |path| json(&["why", arg(path), "--at", "peak"])["lines"].clone();
        assert_eq!(lines(&file), lines(&viz), "{name}: stacks are kept");
        let replayed = json(&["replay", arg(&viz)]);
        assert_eq!(replayed["segment_events_equal"], true, "{name}");
    }
}

#[test]
fn a_program_reads_both_formats_as_python_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let viz = folder.path().join("run.pickle");
    text(&["report", arg(&snapshot("megatron_gpt2-R_r3")), "--memory-viz", arg(&viz)]);
    let script = "import pickle, sys\n\
        snapshot = pickle.load(open(sys.argv[1], 'rb'))\n\
        assert set(snapshot) == {'segments', 'device_traces', 'allocator_settings'}\n\
        for segment in snapshot['segments']:\n\
        \x20   at = segment['address']\n\
        \x20   for block in segment['blocks']:\n\
        \x20       assert block['address'] == at and block['requested_size'] <= block['size']\n\
        \x20       at += block['size']\n\
        \x20   assert at == segment['address'] + segment['total_size']\n\
        print(len(snapshot['device_traces'][0]), sum(s['total_size'] for s in snapshot['segments']))";
    let Ok(output) = Command::new("python3").args(["-c", script, arg(&viz)]).output() else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.trim(), "81236 19413336064");
}

#[test]
fn what_cannot_be_written_is_refused_before_any_work() {
    let file = snapshot("mlp_stacks");
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    assert_eq!(girih(&["report", arg(&file)]).code, 2, "an output must be named");
    assert!(error(&["report", arg(&file), "-o", arg(&file)]).contains("is the input"));
    let twice = ["report", arg(&file), "-o", arg(&page), "--perfetto", arg(&page)];
    assert!(error(&twice).contains("is named twice"));
    assert!(error(&["report", arg(&file), "-o", "-", "--json"]).contains("standard output"));
    assert!(!page.exists());
    let copied = folder.path().join("other.pickle.gz");
    fs::copy(&file, &copied).expect("it can be copied");
    let other = ["report", arg(&file), "-o", arg(&copied), "--against", arg(&copied)];
    assert!(error(&other).contains("is the input"), "the other run is an input too");
    let printed = text(&["report", arg(&file), "-o", "-", "--no-replays"]);
    assert!(printed.starts_with("<!doctype html>") && printed.trim_end().ends_with("</html>"));
}

#[test]
fn the_text_says_what_was_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    let printed = text(&["report", arg(&snapshot("died_fragmented")), "-o", arg(&page)]);
    let printed = printed.replace(arg(&page), "[page]");
    let lines: Vec<String> = without_times(&printed)
        .lines()
        // The page has the commit in it, and its bytes differ with that.
        .map(|line| match line.split_once(" written, ") {
            Some((file, _)) => format!("{file} written, [bytes]"),
            None => line.to_owned(),
        })
        .collect();
    insta::assert_snapshot!(lines.join("\n"));
}
