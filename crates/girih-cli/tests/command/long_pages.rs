//! The page of a long run in a browser: it opens, and says what `--json` says.
//!
//! `GIRIH_LONG=1` makes it ten million events, as many as docs/report.md speaks of, instead of half a
//! million. What it takes to open and to move is measured by `scripts/report-page`.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use girih_report::html::PAGE_BYTES;
use girih_runtime::caching::{Caching, Config};
use girih_runtime::record::record;
use girih_runtime::sim::SimDevice;
use girih_trace::bounds::HELD_MAX;
use girih_trace::generate::{Training, training};
use girih_trace::{Recording, file};

use crate::girih::{arg, integer, json};
use crate::report::{assert_same, opened};

/// Events of the recordings.
fn events() -> usize {
    if std::env::var_os("GIRIH_LONG").is_some_and(|it| it == "1") { 10_000_000 } else { 500_000 }
}

/// A run of so many events under PyTorch's allocator, as a trace file. Every size differs from step to
/// step by up to `jitter` tokens.
fn long_run(events: usize, jitter: u64, to: &Path) {
    let one = Training { layers: 8, experts: 8, jitter, ..Training::default() };
    let each = training(&Training { steps: 11, ..one.clone() }, 1).events.len() / 10;
    let program = training(&Training { steps: (events * 13 / 10 / each) as u32, ..one }, 1);
    let (mut policy, mut device) = (Caching::new(Config::default()), SimDevice::new(HELD_MAX));
    let mut trace = record(&program, &mut policy, &mut device, &|_| false).expect("it fits");
    trace.events.truncate(events);
    trace.segments.clear();
    assert_eq!(trace.events.len(), events);
    let output = BufWriter::new(File::create(to).expect("a file"));
    file::write(&Recording { traces: vec![trace] }, output).expect("it is whole");
}

#[test]
fn the_page_of_a_long_run_opens_and_says_what_json_says() {
    // A run that repeats itself but for its experts, and one that never does.
    for jitter in [0, 900] {
        let folder = tempfile::tempdir().expect("a folder");
        let (run, page) = (folder.path().join("long.girih"), folder.path().join("long.html"));
        let events = events();
        long_run(events, jitter, &run);
        let told = json(&["report", arg(&run), "-o", arg(&page), "--no-replays"]);
        assert_eq!(integer(&told, "events"), events as u64);
        let of = &told["page"];
        // Blocks beyond what a page can hold are left out, and never those that matter.
        assert!(integer(of, "bytes") <= PAGE_BYTES as u64, "{of}");
        assert!(integer(of, "blocks") > 10 * integer(of, "left_out"), "{of}");
        let Some(found) = opened(&page) else { return };
        assert_same(&found, &told);
        assert_eq!(found["left_out"], of["left_out"]);
    }
}
