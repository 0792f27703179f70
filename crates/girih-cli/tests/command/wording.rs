//! How errors are worded: one line without a full stop, what to do first where there is something to
//! do, the file or the option by its name, and no words of the program's own.
//!
//! Two lists are held by snapshots, to be read as a whole: every variant of every error of the
//! libraries that the command can pass on, and what the command itself says of mistakes that people
//! make.

use std::fs;
use std::io;

use girih_fit::Unlike;
use girih_plan::check::Violation;
use girih_plan::csv::CsvError;
use girih_plan::file::PlanFileError;
use girih_plan::strategy::StrategyError;
use girih_plan::stweaver::StweaverError;
use girih_plan::{PlanError, ProblemError};
use girih_runtime::caching::ConfigError;
use girih_runtime::lab::LabError;
use girih_runtime::policy::BlockId;
use girih_runtime::simulate::SimulateError;
use girih_runtime::{AllocError, DeviceError};
use girih_swap::steps::StepError;
use girih_tokens::recording::RecordingError;
use girih_tokens::{Refusal, scale};
use girih_trace::bounds::BoundsError;
use girih_trace::compress::ExpansionError;
use girih_trace::file::FileError;
use girih_trace::marks::MarksError;
use girih_trace::open::OpenError;
use girih_trace::pickle::{PickleError, PickleErrorKind};
use girih_trace::snapshot::ReadError;
use girih_trace::{Action, Contradiction};
use girih_why::WhyError;

use crate::girih::{arg, girih, snapshot};

/// The texts of one example of each variant. The match knows no wildcard: a variant without an
/// example does not compile.
macro_rules! every {
    ($kind:ty, $($rest:tt)+) => { every!(in std::convert::identity; $kind, $($rest)+) };
    (in $whole:expr; $kind:ty, $($pattern:pat => $example:expr),+ $(,)?) => {{
        fn name(error: &$kind) -> &'static str {
            match error { $($pattern => stringify!($pattern)),+ }
        }
        [$({
            let error: $kind = $example;
            assert_eq!(name(&error), stringify!($pattern));
            (stringify!($pattern).split([' ', '(']).next().unwrap().to_owned(), $whole(error).to_string())
        }),+]
        .to_vec()
    }};
}

fn failed() -> io::Error {
    io::Error::other("the disk is gone")
}

fn no_json() -> serde_json::Error {
    serde_json::from_str::<u8>("{").expect_err("it is no number")
}

fn pickle(kind: PickleErrorKind) -> PickleError {
    PickleError { offset: 7, kind }
}

fn of_traces() -> Vec<(String, String)> {
    let action = Action::Alloc;
    let place = || "device 0, entry 1".to_owned();
    let problem = || "`size` is a list, wanted an integer".to_owned();
    let of_pickles = every!(in pickle; PickleErrorKind,
        PickleErrorKind::Io(_) => PickleErrorKind::Io(failed()),
        PickleErrorKind::Truncated => PickleErrorKind::Truncated,
        PickleErrorKind::Refused { .. } => PickleErrorKind::Refused { code: b'c', action: "import `os.system`".to_owned() },
        PickleErrorKind::UnknownOpcode(_) => PickleErrorKind::UnknownOpcode(255),
        PickleErrorKind::Protocol(_) => PickleErrorKind::Protocol(9),
        PickleErrorKind::StackUnderflow(_) => PickleErrorKind::StackUnderflow(b'a'),
        PickleErrorKind::Type { .. } => PickleErrorKind::Type { code: b'a', wanted: "a list", found: "a dict" },
        PickleErrorKind::MemoUnset(_) => PickleErrorKind::MemoUnset(5),
        PickleErrorKind::MemoSparse(_) => PickleErrorKind::MemoSparse(5),
        PickleErrorKind::Number(_) => PickleErrorKind::Number("x".to_owned()),
        PickleErrorKind::TooDeep { .. } => PickleErrorKind::TooDeep { what: "marks", limit: 1024 },
        PickleErrorKind::TooMany => PickleErrorKind::TooMany,
        PickleErrorKind::TooLong => PickleErrorKind::TooLong,
        PickleErrorKind::Swells { .. } => PickleErrorKind::Swells { consumed: 1 << 20, memory_max: 1 << 28 },
    );
    [
        of_pickles,
        every!(BoundsError,
            BoundsError::Event { .. } => BoundsError::Event { device: 0, event: 1, action, size: 1 << 50 },
            BoundsError::Address { .. } => BoundsError::Address { device: 0, event: 1, action, address: u64::MAX, size: 2 },
            BoundsError::Segment { .. } => BoundsError::Segment { device: 0, segment: 1, problem: "block 0 is too large".to_owned() },
            BoundsError::Held { .. } => BoundsError::Held { event: 1, bytes: 1 << 43 },
        ),
        every!(OpenError,
            OpenError::Io(_) => OpenError::Io(failed()),
            OpenError::Snapshot(_) => OpenError::Snapshot(pickle(PickleErrorKind::Protocol(9)).into()),
            OpenError::File(_) => OpenError::File(FileError::HeaderChecksum),
            OpenError::Bounds(_) => OpenError::Bounds(BoundsError::Held { event: 1, bytes: 1 << 43 }),
            OpenError::Empty => OpenError::Empty,
            OpenError::Unknown(_) => OpenError::Unknown("\"PK\"".to_owned()),
        ),
        every!(FileError,
            FileError::Io(_) => FileError::Io(failed()),
            FileError::NotATrace => FileError::NotATrace,
            FileError::Version(_) => FileError::Version(9),
            FileError::Truncated(_) => FileError::Truncated("its header".to_owned()),
            FileError::HeaderLength(_) => FileError::HeaderLength(1 << 30),
            FileError::HeaderChecksum => FileError::HeaderChecksum,
            FileError::Header(_) => FileError::Header(no_json()),
            FileError::Names(_) => FileError::Names(1 << 30),
            FileError::Dangling { .. } => FileError::Dangling { trace: 0, what: "stream" },
            FileError::Column { .. } => FileError::Column { trace: 0, column: "action".to_owned(), problem: "is missing".to_owned() },
        ),
        every!(ReadError,
            ReadError::Io(_) => ReadError::Io(failed()),
            ReadError::Pickle(_) => ReadError::Pickle(pickle(PickleErrorKind::Truncated)),
            ReadError::NotASnapshot { .. } => ReadError::NotASnapshot { found: "a list".to_owned() },
            ReadError::Shape { .. } => ReadError::Shape { place: place(), problem: problem() },
            ReadError::Unfolds { .. } => ReadError::Unfolds { bytes: 1000 },
            ReadError::NoKnownAction { .. } => ReadError::NoKnownAction { action: "teleport".to_owned() },
            ReadError::TooMany { .. } => ReadError::TooMany { device: 0, what: "streams" },
        ),
        every!(MarksError,
            MarksError::Io(_) => MarksError::Io(failed()),
            MarksError::Json(_) => MarksError::Json(no_json()),
        ),
        every!(ExpansionError, _ => ExpansionError { consumed: 10, allowed: 10_000 }),
        every!(Contradiction, _ => Contradiction { event: 7, contradiction: "frees what is not alive" }),
    ]
    .concat()
}

fn of_plans() -> Vec<(String, String)> {
    let violation = || Violation::Count { buffers: 2, offsets: 1 };
    let reason = || "there is no room 7".to_owned();
    [
        every!(ProblemError,
            ProblemError::Alignment => ProblemError::Alignment,
            ProblemError::TooMany { .. } => ProblemError::TooMany { buffers: 1 << 31 },
            ProblemError::Empty { .. } => ProblemError::Empty { buffer: 1, lower: 4, upper: 4 },
            ProblemError::OutsideRing { .. } => ProblemError::OutsideRing { buffer: 1, lower: 9, period: 4 },
            ProblemError::LapsItself { .. } => ProblemError::LapsItself { buffer: 1, lower: 1, upper: 9, period: 4 },
            ProblemError::TooLarge { .. } => ProblemError::TooLarge { buffer: 1 },
        ),
        every!(CsvError,
            CsvError::Io { .. } => CsvError::Io { line: 2, source: failed() },
            CsvError::TooLong { .. } => CsvError::TooLong { line: 2 },
            CsvError::Header { .. } => CsvError::Header { line: 1, problem: "two columns", column: "size".to_owned() },
            CsvError::Columns { .. } => CsvError::Columns { line: 2, expected: 4, found: 3 },
            CsvError::Number { .. } => CsvError::Number { line: 2, column: "size", text: "x".to_owned() },
            CsvError::Empty { .. } => CsvError::Empty { line: 2, lower: 4, upper: 4 },
            CsvError::TooMany { .. } => CsvError::TooMany { line: 2 },
        ),
        every!(PlanFileError,
            PlanFileError::Io(_) => PlanFileError::Io(failed()),
            PlanFileError::Json(_) => PlanFileError::Json(no_json()),
            PlanFileError::Format { .. } => PlanFileError::Format { format: "other".to_owned(), version: 9 },
            PlanFileError::Columns { .. } => PlanFileError::Columns { sequence: 0, reason: reason() },
            PlanFileError::Fingerprint { .. } => PlanFileError::Fingerprint { written: 1, found: 2 },
            PlanFileError::Plan(_) => PlanFileError::Plan(PlanError::Claim { reason: reason() }),
        ),
        every!(PlanError,
            PlanError::Overlap { .. } => PlanError::Overlap { sequence: 0, violation: violation() },
            PlanError::Entry { .. } => PlanError::Entry { sequence: 0, entry: 1, reason: reason() },
            PlanError::Persistent { .. } => PlanError::Persistent { offset: 512, size: 512, end: 1024 },
            PlanError::Interlude(_) => PlanError::Interlude(violation()),
            PlanError::Claim { .. } => PlanError::Claim { reason: reason() },
            PlanError::Sequence { .. } => PlanError::Sequence { sequence: 0, reason: reason() },
        ),
        every!(Violation,
            Violation::Problem(_) => Violation::Problem(ProblemError::Alignment),
            Violation::Count { .. } => violation(),
            Violation::Misaligned { .. } => Violation::Misaligned { buffer: 1, offset: 7, alignment: 512 },
            Violation::AboveHeight { .. } => Violation::AboveHeight { buffer: 1, offset: 512, size: 512, height: 512 },
            Violation::Overlap { .. } => Violation::Overlap { first: 0, second: 1, bytes: (0, 512), tick: 3 },
        ),
        every!(StrategyError,
            StrategyError::StandsAlone => StrategyError::StandsAlone,
            StrategyError::NoPlanner => StrategyError::NoPlanner,
        ),
        every!(StweaverError,
            StweaverError::Problem(_) => StweaverError::Problem(ProblemError::Alignment),
            StweaverError::Phases { .. } => StweaverError::Phases { buffers: 2, phases: 1 },
        ),
    ]
    .concat()
}

fn of_replays() -> Vec<(String, String)> {
    let key = || "backend".to_owned();
    let config = || ConfigError::Form { entry: "x".to_owned(), byte: 3 };
    let device = || DeviceError::Capturing { call: "cuMemMap" };
    let case = || "stitched".to_owned();
    [
        every!(ConfigError,
            ConfigError::Form { .. } => config(),
            ConfigError::UnknownKey { .. } => ConfigError::UnknownKey { key: "max_split".to_owned(), byte: 0 },
            ConfigError::Value { .. } => ConfigError::Value { key: key(), value: "x".to_owned(), byte: 0, allowed: "native".to_owned() },
            ConfigError::NoEffect { .. } => ConfigError::NoEffect { key: key(), byte: 0, reason: "there is one backend" },
        ),
        every!(DeviceError,
            DeviceError::OutOfMemory { .. } => DeviceError::OutOfMemory { requested: 2, free: 1 },
            DeviceError::Misuse { .. } => DeviceError::Misuse { call: "map", reason: "it is mapped".to_owned() },
            DeviceError::Injected { .. } => DeviceError::Injected { call: 3, name: "map" },
            DeviceError::Capturing { .. } => device(),
            DeviceError::Driver { .. } => DeviceError::Driver { call: "cuMemMap", reason: "CUDA_ERROR_UNKNOWN (999)".to_owned() },
        ),
        every!(AllocError,
            AllocError::OutOfMemory { .. } => AllocError::OutOfMemory {
                requested: 1, segment: 2, allocated: 3, reserved: 4, limit: 5, device_free: 6, is_rejection: false,
            },
            AllocError::Device(_) => AllocError::Device(device()),
            AllocError::SegmentLeft(_) => AllocError::SegmentLeft(512),
            AllocError::UnknownBlock(_) => AllocError::UnknownBlock(BlockId(7)),
            AllocError::Unsupported { .. } => AllocError::Unsupported { operation: "a checkpoint", reason: "there is no pool".to_owned() },
        ),
        every!(SimulateError,
            SimulateError::Config(_) => SimulateError::Config(config()),
            SimulateError::NoPlan => SimulateError::NoPlan,
            SimulateError::Bounds(_) => SimulateError::Bounds(BoundsError::Held { event: 1, bytes: 1 << 43 }),
            SimulateError::Overworked { .. } => SimulateError::Overworked { allocator: "native", event: 1, calls: 2 },
            SimulateError::Device(_) => SimulateError::Device(AllocError::Device(device())),
        ),
        every!(LabError,
            LabError::Settings { .. } => LabError::Settings { case: case(), error: config() },
            LabError::NotInUse { .. } => LabError::NotInUse { case: case(), step: 1, block: 0 },
            LabError::Turn { .. } => LabError::Turn { case: case(), step: 1 },
            LabError::Refused { .. } => LabError::Refused { case: case(), step: 1, error: AllocError::Device(device()) },
        ),
        every!(StepError,
            StepError::Empty => StepError::Empty,
            StepError::NoTimes => StepError::NoTimes,
        ),
        every!(Unlike,
            Unlike::SameValue(..) => Unlike::SameValue("mb4".to_owned(), "run4".to_owned(), 4),
            Unlike::TooFew => Unlike::TooFew,
            Unlike::Parted { .. } => Unlike::Parted {
                base: "mb4".to_owned(), other: "mb2".to_owned(), of: 100, agreeing: 7, at: 35,
                base_has: "1024 bytes at train.py:7 forward".to_owned(), other_has: "512 bytes".to_owned(),
            },
        ),
        every!(RecordingError,
            RecordingError::NoStep => RecordingError::NoStep,
            RecordingError::NoPasses => RecordingError::NoPasses,
            RecordingError::NoLayers => RecordingError::NoLayers,
            RecordingError::FewLayers { .. } => RecordingError::FewLayers { percent: 12 },
            RecordingError::KeepsNothing { .. } => RecordingError::KeepsNothing { layer: 3 },
            RecordingError::NotInOrder { .. } => RecordingError::NotInOrder { layer: 3 },
            RecordingError::Overlaps => RecordingError::Overlaps,
            RecordingError::TooLarge => RecordingError::TooLarge,
            RecordingError::NoTimes => RecordingError::NoTimes,
        ),
        every!(scale::Unlike,
            scale::Unlike::Layers(..) => scale::Unlike::Layers(3, 4),
            scale::Unlike::Kinds(_) => scale::Unlike::Kinds(3),
            scale::Unlike::Tokens(_) => scale::Unlike::Tokens(4096),
        ),
        every!(Refusal,
            Refusal::Unsound => Refusal::Unsound,
            Refusal::TooManyLayers { .. } => Refusal::TooManyLayers { layers: 32 },
            Refusal::Wrong(_) => Refusal::Wrong("a link is overbooked at 7 us".to_owned()),
        ),
        every!(WhyError,
            WhyError::NoSuchError { .. } => WhyError::NoSuchError { wanted: 7, count: 2 },
            WhyError::NoSuchStep { .. } => WhyError::NoSuchStep { wanted: 7, count: 0 },
            WhyError::Simulate(_) => WhyError::Simulate(SimulateError::NoPlan),
        ),
    ]
    .concat()
}

/// What is wrong with the form of an error, if anything is.
fn fault(text: &str) -> Option<&'static str> {
    let begins_well =
        |first: char| first.is_lowercase() || first.is_ascii_digit() || "`-".contains(first);
    match text {
        "" => Some("it is empty"),
        _ if text.contains('\n') => Some("it has several lines"),
        _ if text.ends_with(['.', ':', ' ', '!']) => Some("it ends in a sign"),
        _ if !text.starts_with(begins_well) => Some("it begins like a sentence"),
        _ if ["Some(", "None)", "Ok(", "Err(", " { ", "::", "[\"", "()"]
            .iter()
            .any(|it| text.contains(it)) =>
        {
            Some("it shows a value as the program has it")
        }
        _ if text.contains("  ") || text.contains(": :") || text.contains(" ,") => {
            Some("it has a gap")
        }
        _ => None,
    }
}

#[test]
fn every_error_of_the_libraries_is_one_line_that_a_person_can_read() {
    let all = [of_traces(), of_plans(), of_replays()].concat();
    for (name, text) in &all {
        assert_eq!(fault(text), None, "{name}: {text}");
    }
    let lines: Vec<String> = all.iter().map(|(name, text)| format!("{name}\n    {text}")).collect();
    insta::assert_snapshot!("errors_of_the_libraries", lines.join("\n"));
}

#[test]
fn a_bad_form_is_found() {
    for bad in ["", "two\nlines", "It ended.", "Capital", "got Some(3)", "x: : y", "a { b: 1 }"] {
        assert!(fault(bad).is_some(), "{bad:?}");
    }
}

#[test]
fn what_people_get_wrong_is_answered_with_what_to_do_and_the_name_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let run = snapshot("mlp_stacks");
    let run = arg(&run);
    let whole = fs::read(run).unwrap();
    fs::write(at("cut.pickle.gz"), &whole[..whole.len() / 2]).unwrap();
    fs::write(at("empty.girih"), b"").unwrap();
    fs::write(at("code.pickle"), b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.").unwrap();
    fs::write(at("list.pickle"), b"\x80\x04]\x94.").unwrap();
    fs::write(at("text.pickle"), "hello").unwrap();
    fs::write(at("bad.marks.json"), "{\"marks\": [{\"time_us\": true}]}").unwrap();
    fs::write(at("no.plan"), "{}").unwrap();
    fs::write(at("rows.csv"), "id,lower,upper,size\na,5,2,1\n").unwrap();
    fs::create_dir(at("nothing")).unwrap();
    let cases: Vec<Vec<String>> = [
        &["stats", "no-such-file"][..],
        &["stats", &at("nothing")],
        &["stats", &at("cut.pickle.gz")],
        &["stats", &at("empty.girih")],
        &["stats", &at("code.pickle")],
        &["stats", &at("list.pickle")],
        &["stats", &at("text.pickle")],
        &["stats", run, "--device", "7"],
        &["stats", run, "--marks", &at("bad.marks.json")],
        &["stats", run, "--marks", "no-such-file"],
        &["replay", run, "--conf", "max_split:512"],
        &["replay", run, "--conf", "expandable_segments:maybe"],
        &["replay", run, "--torch", "9.99"],
        &["replay", run, "--torch", "latest"],
        &["replay", run, "--capacity", "80"],
        &["replay", run, "--capacity", "plenty"],
        &["replay", run, "--allocator", "fast"],
        &["replay", run, "--plan", &at("no.plan"), "--allocator", "planned"],
        &["compare", run, "--marks", "a", "b"],
        &["compare", run, "--learn", "50"],
        &["compare", &at("nothing")],
        &["compare", &at("nothing"), "--marks", "a"],
        &["compare", &at("nothing"), "--learn", "50%"],
        &["compare", &at("")],
        &["compare", run, "--jobs", "0"],
        &["plan", "--csv", &at("rows.csv")],
        &["plan", run, "--planner", "memo", "--without", "sweep"],
        &["plan", run, "--planner", "sweep", "--without", "sweep"],
        &["plan", run, "--budget", "soon"],
        &["plan", run, "-o", run],
        &["plan", run, "-o", &at("nothing")],
        &["plan", run, "-o", "-", "--json"],
        &["convert", run, "trace.bin"],
        &["convert", run, "-", "--to", "girih", "--json"],
        &["conform", &at("no.plan")],
        &["bench", "planners", &at("nothing")],
        &["report", run, "-o", &at("one.html"), "--perfetto", &at("one.html")],
        &["report", run, "-o", "-", "--perfetto", "-"],
        &["swap", run, "--gpu-budget", "40"],
        &["swap", run, "--gpu-budget", "1GiB", "--links", "1,2,fast"],
        &["fit", run, "--capacity", "80"],
        &["fit", run, "--capacity", "1GiB", "--require", "8"],
        &["fit", run, &at("code.pickle"), "--capacity", "1GiB"],
        &["fit", "--at", run, "--capacity", "1GiB"],
        &["fit", "--at", "0=x", "--capacity", "1GiB"],
        &["fit", "--at", &format!("8={}", at("nothing")), "--of", "gpus", "--capacity", "1GiB"],
        &["fit", run, "--of", "gpus", "--capacity", "1GiB"],
        &["fit", run, "--of", "two words", "--capacity", "1GiB"],
        &["why", run, "--error", "7"],
        &["why", run, "--at", "step:900"],
        &["why", run, "--at", "noon"],
        &["why", &at("nothing")],
        &["why", &at("nothing"), "--log", "x"],
        &["lab", "no-such-case"],
    ]
    .iter()
    .map(|words| words.iter().map(|word| (*word).to_owned()).collect())
    .collect();
    let mut told = String::new();
    for words in &cases {
        let ran = girih(words);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{words:?}: {}", ran.stderr);
        let first = ran.stderr.lines().next().unwrap_or_default();
        let (who, text) = first.split_once(": ").expect("it says who speaks");
        // What is wrong with the words themselves is told by the parser of words, with a usage below.
        assert!(who == "error" || ran.stderr.lines().count() == 1, "{}", ran.stderr);
        assert_eq!(fault(text), None, "{words:?}: {text}");
        let names = words[1..].iter().any(|word| text.contains(&**word));
        assert!(names || text.contains("--") || words.len() == 1, "{words:?} are not in: {text}");
        let shown = |text: &str| text.replace(&at(""), "FOLDER/").replace(run, "RUN");
        told += &format!("girih {}\n    {}\n", shown(&words.join(" ")), shown(first));
    }
    insta::assert_snapshot!("what_people_get_wrong", told);
}
