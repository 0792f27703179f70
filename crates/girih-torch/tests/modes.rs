//! The modes from profile to auto, on a training run that a generator made: record, plan, follow,
//! learn. The heaps are made by hand, so that one test program has all modes.

#![expect(clippy::print_stderr, reason = "what is skipped is said")]

mod common;

use std::fs::{self, File};
use std::io::BufReader;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use common::set_up;
use girih_torch::{Heap, Settings, control, heaps};
use girih_trace::compress::Limits;
use girih_trace::generate::{Training, training};
use girih_trace::{Action, MarkKind, Trace, open};
use serde_json::Value;

const CAPACITY: u64 = 1 << 40;

/// How often a test looks whether a plan has come, and for how long at most.
const LOOK: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(120);

fn heap(mode: &str, more: &str) -> Heap {
    let json = format!(r#"{{"mode": "{mode}", "sim": {{"capacity": {CAPACITY}}} {more}}}"#);
    Heap::new(0, &Settings::parse(&json).unwrap()).unwrap()
}

fn report(heap: &Heap) -> Value {
    serde_json::from_str(&control::report_of(heap).unwrap()).unwrap()
}

/// A run of a program: which block of the trace is where.
struct Run<'a> {
    trace: &'a Trace,
    marks: usize,
    /// Address in the trace and address given.
    given: std::collections::BTreeMap<u64, u64>,
}

impl<'a> Run<'a> {
    fn new(trace: &'a Trace) -> Run<'a> {
        Run { trace, marks: 0, given: std::collections::BTreeMap::new() }
    }

    /// Does what the trace says between two ticks, marks included.
    fn go(&mut self, heap: &Heap, ticks: Range<usize>) {
        for tick in ticks {
            let event = &self.trace.events[tick];
            while let Some(mark) = self.trace.marks.get(self.marks)
                && mark.before as usize <= tick
            {
                heap.mark(mark.kind, &mark.name).unwrap();
                self.marks += 1;
            }
            match event.action {
                Action::Alloc => {
                    let stream = self.trace.streams[usize::from(event.stream.0)];
                    let address = heap.allocate(event.size, stream, (0, 0)).unwrap();
                    self.given.insert(event.address, address);
                }
                Action::FreeRequested => {
                    if let Some(address) = self.given.remove(&event.address) {
                        assert!(heap.free(address).unwrap());
                    }
                }
                _ => {}
            }
        }
    }

    fn all(&mut self, heap: &Heap) {
        self.go(heap, 0..self.trace.events.len());
        for mark in &self.trace.marks[self.marks..] {
            heap.mark(mark.kind, &mark.name).unwrap();
        }
    }

    /// Gives the threads beside the run the time that they would have if the steps were not only
    /// simulated: it goes on when they have done what they have begun.
    fn slowly(&mut self, heap: &Heap) {
        for from in (0..self.trace.events.len()).step_by(100) {
            self.go(heap, from..(from + 100).min(self.trace.events.len()));
            let mut waited = Duration::ZERO;
            while heap.is_planning().unwrap() {
                assert!(waited < PATIENCE, "a plan that never comes");
                thread::sleep(LOOK);
                waited += LOOK;
            }
        }
    }

    /// Lets go of everything, as the end of a program does.
    fn end(self, heap: &Heap) {
        for address in self.given.into_values() {
            assert!(heap.free(address).unwrap());
        }
        heap.check().unwrap();
    }
}

fn program(steps: u32) -> Trace {
    training(&Training { steps, ..Training::default() }, 1)
}

fn recorded(trace: &Trace) -> Vec<(Action, u64)> {
    let kept = trace.events.iter().filter(|event| !event.action.is_segment());
    kept.map(|event| (event.action, event.size)).collect()
}

#[test]
fn profile_records_the_run_and_its_plan_is_followed_from_the_first_request() {
    set_up("profile", CAPACITY, "");
    let (program, folder) = (program(4), tempfile::tempdir().unwrap());
    let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let profiled = heaps::heap(0).unwrap();
    let mut run = Run::new(&program);
    run.all(profiled);
    let events = control::save_trace(0, &file("run.girih")).unwrap();
    let saved = File::open(file("run.girih")).unwrap();
    let saved = open::detect_and_read(saved, Limits::default()).unwrap().traces.swap_remove(0);
    assert_eq!(saved.events.len() as u64, events);
    assert_eq!(saved.marks.len(), program.marks.len());
    assert_eq!(recorded(&saved).len(), recorded(&program).len());
    assert!(saved.events.windows(2).all(|pair| pair[0].time_us <= pair[1].time_us));

    let summary: Value =
        serde_json::from_str(&control::plan(0, &file("run.plan")).unwrap()).unwrap();
    assert!(summary["iterations"].as_u64().unwrap() > 1, "{summary}");
    run.end(profiled);

    let planned = heap("plan", &format!(r#", "plan": "{}""#, file("run.plan")));
    let mut run = Run::new(&program);
    run.all(&planned);
    let seen = report(&planned);
    let (hits, misses) = (seen["hits"].as_u64().unwrap(), seen["misses"].as_u64().unwrap());
    assert!(misses * 100 <= hits, "{hits} hits, {misses} misses");
    assert_eq!((&seen["stage"], &seen["warnings"]), (&"following".into(), &Value::Array(vec![])));
    assert_eq!(seen["plan"]["fingerprint"], summary["fingerprint"]);
    run.end(&planned);
}

#[test]
fn a_plan_that_cannot_be_read_is_named_and_the_run_learns_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.plan");
    fs::write(&path, "{}").unwrap();
    for (path, reason) in [(path.as_path(), "damaged"), (Path::new("/none"), "cannot be opened")] {
        let learning = heap("plan", &format!(r#", "plan": "{}""#, path.display()));
        let seen = report(&learning);
        let warning = seen["warnings"][0].as_str().unwrap();
        assert!(warning.contains(reason) && warning.contains("auto"), "{warning}");
        assert_eq!(seen["stage"], "learning");
        let address = learning.allocate(512, 0, (0, 0)).unwrap();
        assert!(learning.free(address).unwrap());
        learning.mark(MarkKind::Step, "").unwrap();
        let told = report(&learning)["warnings"].as_array().unwrap().len();
        assert_eq!(told, 1, "no plan is followed that could fit or not");
    }
}

#[test]
fn a_plan_of_another_program_is_noticed_and_one_for_another_card_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.plan");
    let profiled = heap("profile", "");
    let program = program(4);
    let mut run = Run::new(&program);
    run.all(&profiled);
    control::plan_of(&profiled, &path.to_string_lossy()).unwrap();
    run.end(&profiled);
    let more = format!(r#", "plan": "{}""#, path.display());

    let foreign = heap("plan", &more);
    for size in 0..5000 {
        let address = foreign.allocate(777_777 + size % 7, 0, (0, 0)).unwrap();
        assert!(foreign.free(address).unwrap());
    }
    let seen = report(&foreign);
    assert!(seen["warnings"].to_string().contains("does not fit"), "{seen}");

    let json = format!(r#"{{"mode": "plan", "sim": {{"capacity": 100000000}} {more}}}"#);
    let small = Heap::new(0, &Settings::parse(&json).unwrap()).unwrap();
    let warnings = report(&small)["warnings"].to_string();
    assert!(warnings.contains("the device has"), "{warnings}");
}

#[test]
fn a_plan_that_does_not_fit_is_dropped_and_its_file_is_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.plan");
    let profiled = heap("profile", "");
    let first = program(4);
    let mut run = Run::new(&first);
    run.all(&profiled);
    control::plan_of(&profiled, &path.to_string_lossy()).unwrap();
    run.end(&profiled);
    let written = fs::read(&path).unwrap();

    let plan_dir = folder.path().join("plans");
    let more = format!(r#", "plan": "{}", "plan_dir": "{}""#, path.display(), plan_dir.display());
    let learning = heap("plan", &more);
    assert_eq!(report(&learning)["stage"], "following");
    let wider = Training { hidden: 3 * Training::default().hidden / 2, ..Training::default() };
    let program = training(&Training { steps: 16, ..wider }, 1);
    let mut run = Run::new(&program);
    run.slowly(&learning);
    let seen = report(&learning);
    assert_eq!((&seen["stage"], &seen["plan"]), (&"learning".into(), &Value::Null));
    let warnings = seen["warnings"].to_string();
    assert!(warnings.contains("does not fit") && warnings.contains("next run"), "{warnings}");
    run.end(&learning);
    assert_eq!(fs::read(&path).unwrap(), written);
    assert!(!plan_dir.exists(), "what the mode `plan` learns is not kept");
}

#[test]
fn auto_learns_a_plan_beside_the_run_and_the_next_run_begins_with_it() {
    learns_and_finds_it_again("");
}

#[test]
fn where_processes_have_no_numbers_the_next_run_begins_with_the_plan_of_any_gpu() {
    let (folder, more, kept) = learns_and_finds_it_again(r#", "plans_by_gpu": true"#);
    let of_gpu_0 = format!("{:032x}.plan", 0);
    assert!(kept.to_string_lossy().ends_with(&format!("-0-{of_gpu_0}")), "{}", kept.display());
    // The same program, on another GPU of the machine.
    let of_gpu_7 = kept.to_string_lossy().replace(&of_gpu_0, &format!("{:032x}.plan", 7));
    fs::rename(&kept, &of_gpu_7).unwrap();
    assert_eq!(report(&heap("auto", &more))["stage"], "following");
    // The mode `plan`, which is told the name without a GPU.
    let named = control::plan_file(&folder.path().to_string_lossy(), "a model");
    let named = format!(r#"{more}, "plan": "{named}""#);
    assert_eq!(report(&heap("plan", &named))["stage"], "following");
    assert!(fs::exists(&of_gpu_7).unwrap(), "it is another GPU's");
}

/// A run that learns, and a second that begins with what it has kept. The folder, the settings, and
/// the file.
fn learns_and_finds_it_again(more: &str) -> (tempfile::TempDir, String, PathBuf) {
    let (program, folder) = (program(12), tempfile::tempdir().unwrap());
    let more = format!(r#", "plan_dir": "{}", "key": "a model" {more}"#, folder.path().display());
    let learning = heap("auto", &more);
    let mut run = Run::new(&program);
    run.slowly(&learning);
    let seen = report(&learning);
    assert!(seen["planning_seconds"].as_f64().unwrap() > 0.0);
    run.end(&learning);

    let kept: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    girih_plan::file::read(BufReader::new(File::open(&kept[0]).unwrap())).unwrap();
    let next = heap("auto", &more);
    assert_eq!(report(&next)["stage"], "following");
    let mut again = Run::new(&program);
    again.all(&next);
    let seen = report(&next);
    assert_eq!(seen["stage"], "following", "{seen}");
    let [hits, misses] = ["hits", "misses"].map(|name| seen[name].as_u64().unwrap());
    assert!(hits > 100 * misses, "{seen}");
    again.end(&next);
    let other = heap("auto", &more.replace("a model", "another"));
    assert_eq!(report(&other)["stage"], "learning");
    (folder, more, kept[0].clone())
}

#[test]
fn a_kept_plan_that_is_damaged_is_replaced_and_harms_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let more = format!(r#", "plan_dir": "{}", "key": """#, folder.path().display());
    fs::write(folder.path().join("cbf29ce484222325-0.plan"), "not a plan").unwrap();
    let learning = heap("auto", &more);
    let seen = report(&learning);
    assert_eq!(seen["stage"], "learning");
    assert!(seen["warnings"][0].as_str().unwrap().contains("is not used"), "{seen}");
}

#[test]
fn a_panic_inside_a_heap_stops_it_for_good_and_says_so() {
    let broken = heap("native", "");
    broken.allocate(512, 0, (0, 0)).unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        broken.visit(&mut |_, _| panic!("a test of what follows")).unwrap();
    }));
    assert!(panicked.is_err());
    let error = broken.allocate(512, 0, (0, 0)).unwrap_err();
    assert!(matches!(*error, girih_torch::HeapError::Bug(_)));
    assert!(error.to_string().contains("refuses all further work"));
    assert!(broken.free(512).is_err() && broken.stats().is_err() && broken.check().is_err());
}

#[test]
fn without_a_driver_a_heap_says_what_is_missing() {
    match Heap::new(0, &Settings::parse(r#"{"mode": "native"}"#).unwrap()) {
        Ok(_) => eprintln!("SKIPPED: this machine has a GPU"),
        Err(error) => assert!(error.to_string().len() > 30, "{error}"),
    }
}

#[test]
fn gmlake_stitches_from_its_limit_on_and_gives_everything_back() {
    let stitches = |more: &str| {
        let heap = heap("gmlake", more);
        let blocks: Vec<u64> =
            (0..8).map(|_| heap.allocate(64 << 20, 0, (0, 0)).unwrap()).collect();
        let (kept, freed): (Vec<_>, Vec<_>) = (0..).zip(blocks).partition(|(at, _)| at % 2 == 0);
        freed.into_iter().for_each(|(_, address)| assert!(heap.free(address).unwrap()));
        let large = heap.allocate(256 << 20, 0, (0, 0)).unwrap();
        let seen = report(&heap);
        assert_eq!((&seen["mode"], &seen["stage"]), (&"gmlake".into(), &"caching".into()));
        for address in kept.into_iter().map(|(_, address)| address).chain([large]) {
            assert!(heap.free(address).unwrap());
        }
        heap.check().unwrap();
        heap.empty_cache((0, 0)).unwrap();
        assert_eq!(report(&heap)["reserved"], 0);
        (seen["stitches"].as_u64().unwrap(), seen["reserved_peak"].as_u64().unwrap() >> 20)
    };
    assert_eq!(stitches(""), (0, 768), "512 MiB as published: holes of 64 MiB stay holes");
    assert_eq!(stitches(r#", "gmlake_limit": 2097152"#), (1, 512));
}

#[test]
fn a_training_run_gets_through_under_gmlake_and_is_recorded_if_asked() {
    let (program, lake) = (program(4), heap("gmlake", r#", "record": true"#));
    let mut run = Run::new(&program);
    run.all(&lake);
    assert_eq!(recorded(&lake.trace().unwrap()), recorded(&program));
    run.end(&lake);
}
