//! `girih lab`: runs the laboratory, explains each step, and compares each number.
//!
//! The cases and the runner are in [`girih_runtime::lab`]; this only chooses, prints and judges. A
//! number that differs from the article's makes the answer no, after everything is printed.

use std::collections::BTreeMap;
use std::io::Write;

use clap::Args;
use girih_runtime::Backing;
use girih_runtime::lab::{self, CASES, Case, SegmentLayout, Size, StepReport};
use serde::Serialize;

use super::write_json;
use crate::Answer;
use crate::table::table;

/// Columns of the explanations.
const WIDTH: usize = 76;

/// Which cases of the laboratory to run.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct LabArgs {
    /// Cases to run, by name; all of them if none is given.
    #[arg(value_name = "CASE", value_parser = parse_case)]
    cases: Vec<&'static Case<'static>>,
    /// Lists the cases, and runs none.
    #[arg(long)]
    list: bool,
}

/// Runs the chosen cases and writes what came of them to `out`, as text or as JSON.
///
/// # Errors
/// If `out` cannot be written.
pub(crate) fn run(args: &LabArgs, json: bool, out: &mut dyn Write) -> anyhow::Result<Answer> {
    let chosen = if args.cases.is_empty() { CASES.iter().collect() } else { args.cases.clone() };
    if args.list {
        return list(&chosen, json, out).map(|()| Answer::Yes);
    }
    let mut runs = Vec::with_capacity(chosen.len());
    for case in chosen {
        runs.push(Run { case, steps: lab::run(case)? });
    }
    if json {
        write_json(out, &Output { cases: runs.iter().map(CaseJson::new).collect() })?;
    } else {
        for run in &runs {
            write_case(run, out)?;
        }
        write_table(&runs, out)?;
    }
    Ok(judge(&runs))
}

/// A case and what came of it.
struct Run {
    case: &'static Case<'static>,
    steps: Vec<StepReport<'static>>,
}

fn parse_case(name: &str) -> Result<&'static Case<'static>, String> {
    lab::find(name).ok_or_else(|| {
        let names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
        format!("use one of {}", names.join(", "))
    })
}

fn list(cases: &[&Case<'_>], json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    if json {
        let cases = cases.iter().map(|case| ListedJson::new(case)).collect();
        return write_json(out, &Output { cases });
    }
    let width = cases.iter().map(|case| case.name.len()).max().unwrap_or(0);
    for case in cases {
        writeln!(out, "{:width$}  {}", case.name, case.title)?;
    }
    Ok(())
}

/// No if a number differs: the text and the JSON say which.
fn judge(runs: &[Run]) -> Answer {
    let differs = |run: &Run| run.steps.iter().any(|step| step.is_equal() == Some(false));
    if runs.iter().any(differs) { Answer::No } else { Answer::Yes }
}

fn write_case(run: &Run, out: &mut dyn Write) -> anyhow::Result<()> {
    let Case { name, title, settings, .. } = run.case;
    writeln!(out, "{name}")?;
    write_wrapped(title, "", out)?;
    writeln!(out, "settings: {settings}")?;
    for (number, step) in (1..).zip(&run.steps) {
        writeln!(out, "\n{number:2}. {}", step.step.operation)?;
        write_wrapped(step.step.explanation, "    ", out)?;
        write!(out, "    reserved {}", Size(step.reserved))?;
        if let Some(is_equal) = step.is_equal() {
            let expected = text_of(step.step.expected);
            let verdict = if is_equal { "" } else { ": DIFFERS" };
            write!(out, " (article {expected}{verdict})")?;
        }
        writeln!(out, ", device calls: {}", calls_text(step))?;
        write_layout(&step.segments, out)?;
    }
    writeln!(out, "\n")?;
    Ok(())
}

/// One line a segment; a line that would follow itself is counted instead.
fn write_layout(segments: &[SegmentLayout], out: &mut dyn Write) -> anyhow::Result<()> {
    let lines: Vec<String> = segments.iter().map(SegmentLayout::draw).collect();
    for same in lines.chunk_by(|line, next| line == next) {
        match same.len() {
            1 => writeln!(out, "      {}", same[0])?,
            count => writeln!(out, "      {count} x {}", same[0])?,
        }
    }
    Ok(())
}

fn write_table(runs: &[Run], out: &mut dyn Write) -> anyhow::Result<()> {
    let row = |name: &str, number: usize, step: &StepReport<'_>| {
        vec![
            format!("{name} {number}: {}", step.step.operation),
            Size(step.reserved).to_string(),
            text_of(step.step.expected),
            verdict(step.is_equal()).to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = runs
        .iter()
        .flat_map(|run| {
            (1..).zip(&run.steps).map(|(number, step)| row(run.case.name, number, step))
        })
        .collect();
    write!(out, "{}", table(&["reserved after", "measured", "article", ""], &rows))?;
    let verdicts: Vec<bool> =
        runs.iter().flat_map(|run| &run.steps).filter_map(StepReport::is_equal).collect();
    let equal = verdicts.iter().filter(|equal| **equal).count();
    writeln!(out, "\n{equal} of the article's {} numbers are met.", verdicts.len())?;
    Ok(())
}

fn verdict(is_equal: Option<bool>) -> &'static str {
    match is_equal {
        Some(true) => "equal",
        Some(false) => "DIFFERS",
        None => "",
    }
}

/// A number of the article, or a dash where it gives none.
fn text_of(expected: Option<u64>) -> String {
    expected.map_or_else(|| "-".to_owned(), |bytes| Size(bytes).to_string())
}

/// `8 alloc`, `1 create, 1 map, 1 set_access`, `none`.
fn calls_text(step: &StepReport<'_>) -> String {
    if step.calls.is_empty() {
        return "none".to_owned();
    }
    let calls: Vec<String> =
        step.calls.iter().map(|(call, count)| format!("{count} {}", call.name())).collect();
    calls.join(", ")
}

/// Writes a text in lines of at most [`WIDTH`] columns, each after `indent`.
fn write_wrapped(text: &str, indent: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && indent.len() + line.len() + 1 + word.len() > WIDTH {
            writeln!(out, "{indent}{line}")?;
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(out, "{indent}{line}")?;
    Ok(())
}

#[derive(Serialize)]
struct Output<T> {
    cases: Vec<T>,
}

#[derive(Serialize)]
struct ListedJson<'a> {
    name: &'a str,
    title: &'a str,
    settings: &'a str,
}

impl<'a> ListedJson<'a> {
    fn new(case: &Case<'a>) -> ListedJson<'a> {
        ListedJson { name: case.name, title: case.title, settings: case.settings }
    }
}

#[derive(Serialize)]
struct CaseJson<'a> {
    #[serde(flatten)]
    case: ListedJson<'a>,
    steps: Vec<StepJson<'a>>,
}

impl<'a> CaseJson<'a> {
    fn new(run: &'a Run) -> CaseJson<'a> {
        let steps = (1..).zip(&run.steps).map(|(number, step)| StepJson::new(number, step));
        CaseJson { case: ListedJson::new(run.case), steps: steps.collect() }
    }
}

#[derive(Serialize)]
struct StepJson<'a> {
    /// From 1.
    step: usize,
    operation: String,
    explanation: &'a str,
    reserved_bytes: u64,
    /// Null where the article gives no number, and so is `equal`.
    expected_bytes: Option<u64>,
    equal: Option<bool>,
    device_calls: BTreeMap<&'static str, u64>,
    segments: Vec<SegmentJson>,
}

impl<'a> StepJson<'a> {
    fn new(number: usize, report: &'a StepReport<'_>) -> StepJson<'a> {
        StepJson {
            step: number,
            operation: report.step.operation.to_string(),
            explanation: report.step.explanation,
            reserved_bytes: report.reserved,
            expected_bytes: report.step.expected,
            equal: report.is_equal(),
            device_calls: report.calls.iter().map(|(call, made)| (call.name(), *made)).collect(),
            segments: report.segments.iter().map(SegmentJson::new).collect(),
        }
    }
}

#[derive(Serialize)]
struct SegmentJson {
    address: u64,
    size_bytes: u64,
    is_small: bool,
    is_expandable: bool,
    blocks: Vec<BlockJson>,
}

impl SegmentJson {
    fn new(layout: &SegmentLayout) -> SegmentJson {
        let blocks = layout.blocks.iter().map(|block| BlockJson {
            size_bytes: block.size,
            requested_bytes: block.requested,
            state: lab::state_word(block.state),
        });
        SegmentJson {
            address: layout.segment.address,
            size_bytes: layout.segment.size,
            is_small: layout.segment.is_small,
            is_expandable: matches!(layout.segment.backing, Backing::Expandable { .. }),
            blocks: blocks.collect(),
        }
    }
}

#[derive(Serialize)]
struct BlockJson {
    size_bytes: u64,
    requested_bytes: u64,
    state: &'static str,
}

#[cfg(test)]
mod tests {
    use girih_runtime::lab::{Operation, Step};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn args(names: &[&str]) -> LabArgs {
        let cases = names.iter().map(|name| parse_case(name).expect("a known case")).collect();
        LabArgs { cases, list: false }
    }

    fn output(args: &LabArgs, json: bool) -> String {
        let mut out = Vec::new();
        run(args, json, &mut out).expect("every number is met");
        String::from_utf8(out).expect("the output is text")
    }

    #[test]
    fn a_case_reads_as_a_story_that_ends_in_a_table() {
        insta::assert_snapshot!(output(&args(&["small-then-large"]), false), @r"
        small-then-large
        Without expandable segments, small blocks first cost twice the memory
        settings: expandable_segments:False

         1. allocate 8 x 16 MiB
            Each request takes a segment of its own from the device: eight segments,
            each filled by one block.
            reserved 128 MiB (article 128 MiB), device calls: 8 alloc
              8 x large 16 MiB [16 MiB used]

         2. free everything
            All blocks are free, and each is the whole of its segment. Blocks of
            different segments never merge, even if their addresses touch.
            reserved 128 MiB (article 128 MiB), device calls: none
              8 x large 16 MiB [16 MiB free]

         3. allocate 4 x 32 MiB
            128 MiB lie free, but in pieces of 16 MiB, too small for each of these
            requests. The device must give four more segments.
            reserved 256 MiB (article 256 MiB), device calls: 4 alloc
              8 x large 16 MiB [16 MiB free]
              4 x large 32 MiB [32 MiB used]


        reserved after                           measured  article
        -----------------------------------------------------------------
        small-then-large 1: allocate 8 x 16 MiB   128 MiB  128 MiB  equal
        small-then-large 2: free everything       128 MiB  128 MiB  equal
        small-then-large 3: allocate 4 x 32 MiB   256 MiB  256 MiB  equal

        3 of the article's 3 numbers are met.
        ");
    }

    #[test]
    fn json_has_every_number_and_the_whole_layout() {
        let json: serde_json::Value =
            serde_json::from_str(&output(&args(&["one-mib-loophole"]), true)).expect("JSON");
        let case = &json["cases"][0];
        assert_eq!(case["name"], "one-mib-loophole");
        assert_eq!(case["settings"], "expandable_segments:True");
        let (first, last) = (&case["steps"][0], &case["steps"][2]);
        assert_eq!(first["step"], 1);
        assert!(first["expected_bytes"].is_null() && first["equal"].is_null());
        assert_eq!(last["reserved_bytes"], 22 * MIB);
        assert_eq!(last["expected_bytes"], 22 * MIB);
        assert_eq!(last["equal"], true);
        assert_eq!(last["device_calls"]["map"], 1);
        let segments = last["segments"].as_array().expect("a list");
        let small = segments.iter().find(|segment| segment["is_small"] == true).expect("one");
        assert_eq!(small["blocks"][0]["size_bytes"], MIB / 2);
        assert_eq!(small["blocks"][0]["state"], "used");
    }

    #[test]
    fn without_names_every_case_runs_and_every_number_is_met() {
        let text = output(&LabArgs::default(), false);
        assert!(CASES.iter().all(|case| text.contains(&format!("{}\n", case.name))));
        let steps = CASES.iter().flat_map(|case| case.steps);
        let numbers = steps.filter(|step| step.expected.is_some()).count();
        assert!(
            text.ends_with(&format!("{numbers} of the article's {numbers} numbers are met.\n"))
        );
    }

    #[test]
    fn the_list_names_every_case_and_runs_none() {
        let all = LabArgs { list: true, ..LabArgs::default() };
        let text = output(&all, false);
        let names: Vec<&str> =
            text.lines().map(|line| line.split(' ').next().unwrap_or("")).collect();
        assert_eq!(names, CASES.iter().map(|case| case.name).collect::<Vec<_>>());
        let json: serde_json::Value = serde_json::from_str(&output(&all, true)).expect("JSON");
        assert_eq!(json["cases"].as_array().map(Vec::len), Some(CASES.len()));
        assert!(json["cases"][0]["steps"].is_null());
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_that_exist() {
        let error = parse_case("small-then-big").expect_err("no such case");
        assert!(error.contains("small-then-large"), "{error}");
    }

    #[test]
    fn a_number_that_differs_is_shown_and_makes_the_answer_no() {
        static STEPS: [Step<'static>; 1] = [Step {
            operation: Operation::Allocate { count: 1, size: 16 * MIB },
            explanation: "One segment.",
            expected: Some(15 * MIB),
        }];
        static WRONG: Case<'static> =
            Case { name: "wrong", title: "A wrong number", settings: "", steps: &STEPS };
        let mut out = Vec::new();
        let args = LabArgs { cases: vec![&WRONG], list: false };
        assert_eq!(run(&args, false, &mut out).expect("it runs"), Answer::No);
        let text = String::from_utf8(out).expect("the output is text");
        assert!(text.contains("(article 15 MiB: DIFFERS)"), "{text}");
        assert!(text.contains("0 of the article's 1 numbers are met."), "{text}");
    }
}
