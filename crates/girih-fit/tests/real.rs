//! Real recordings: what two steps say of a third, and what programs have in common that have nothing in common.
//!
//! No recording of one job at two microbatches is at hand, but some whose steps have sequences of different lengths. Each
//! of their steps is a recording of its own here, at the tokens that it has: the first request of a step is its ids.

use std::fs::File;
use std::path::Path;

use girih_fit::family::AGREEMENT_MIN;
use girih_fit::{Family, Kind, Run, Unlike};
use girih_plan::granted;
use girih_trace::compress::Limits;
use girih_trace::{Iterations, Lifetimes, Source, Trace, open};

/// A recording of the repository, or of the folder beside it; none where it is not there.
#[expect(clippy::print_stderr, reason = "a test that skips says so")]
fn read(path: &str) -> Option<Trace> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    let Ok(file) = File::open(&path) else {
        eprintln!("SKIPPED: {} is not there", path.display());
        return None;
    };
    let recording = open::detect_and_read(file, Limits::default()).expect("it can be read");
    recording.traces.into_iter().max_by_key(|trace| trace.events.len())
}

/// A step of a recording, as a recording.
struct Step {
    tokens: u64,
    trace: Trace,
    lives: Lifetimes,
    /// It is one: nothing is to be found in it.
    iterations: Iterations,
}

impl Step {
    fn run(&self) -> Run<'_> {
        let Step { tokens, trace, lives, iterations } = self;
        Run { value: *tokens, name: "a step", trace, lives, iterations }
    }
}

/// Steps of different lengths, the longest first. The first of a recording, in which states are made, is left out.
fn steps(trace: &Trace) -> Vec<Step> {
    let iterations = Iterations::of(trace, &Lifetimes::of(trace));
    let step = |it: &girih_trace::Iteration| {
        let events = trace.events[it.ticks.start as usize..it.ticks.end as usize].to_vec();
        let (streams, pools) = (trace.streams.clone(), trace.pools.clone());
        let part = Trace { events, streams, pools, ..Trace::default() };
        let lives = Lifetimes::of(&part);
        // Ids are integers of eight bytes.
        let tokens = lives.born()[0].size / 8;
        let none = Iterations { source: Source::None, list: vec![], steady: None, kinds: vec![] };
        Step { tokens, trace: part, lives, iterations: none }
    };
    let mut steps: Vec<Step> = iterations.list.iter().skip(1).map(step).collect();
    steps.sort_by_key(|step| std::cmp::Reverse(step.tokens));
    steps.dedup_by_key(|step| step.tokens);
    steps
}

/// How far the most alive at once is off, as a part of what it was.
fn off((said, recorded): (u64, u64)) -> f64 {
    (said as f64 / recorded as f64 - 1.0).abs()
}

#[test]
fn steps_of_a_real_run_at_other_lengths_are_as_was_said() {
    let Some(trace) = read("corpus/gpt2m_R_vary.girih") else { return };
    let steps = steps(&trace);
    assert_eq!(steps.len(), 6);
    let runs: Vec<Run<'_>> = steps.iter().map(Step::run).collect();
    let family = Family::new(&runs).expect("steps of one program");
    let exact = family.tally().into_iter().filter(|(kind, _)| kind.is_exact());
    let exact: u64 = exact.map(|(_, tally)| tally.requests).sum();
    assert!(exact * 1000 >= family.requests() as u64 * 997, "{exact} of {}", family.requests());
    assert_eq!(family.held_out().len(), 4);
    for held_out in family.held_out() {
        let equal = held_out.equal as f64 / held_out.requests as f64;
        assert!(equal > 0.98, "{held_out:?}");
        assert_eq!(held_out.peak.0, held_out.peak.1, "{held_out:?}");
    }
}

#[test]
fn two_short_sequences_say_what_a_run_of_a_longer_one_had() {
    let Some(trace) = read("corpus/gpt2m_R_vary.girih") else { return };
    let Some(longer) = read("../shared/traces/gpt2m_R.pickle.gz") else { return };
    let (steps, longer) = (steps(&trace), steps(&longer));
    assert_eq!((steps[0].tokens, longer[0].tokens), (39_936, 65_536));
    for pair in steps.windows(2) {
        let family = Family::new(&[pair[0].run(), pair[1].run()]).expect("steps of one program");
        // What a step finds already there is other in another recording; what it makes is not.
        let made = |lives: &Lifetimes| {
            let mut sizes: Vec<u64> = lives.born().iter().map(|life| granted(life.size)).collect();
            sizes.sort_unstable();
            sizes
        };
        let said = made(&family.at(longer[0].tokens).1);
        let recorded = made(&longer[0].lives);
        assert_eq!(said.len(), recorded.len());
        let bytes = (said.iter().sum(), recorded.iter().sum());
        // Below 200 tokens a sequence some tensors are of another kind.
        let most = if pair[1].tokens > 64 * 200 { 0.0001 } else { 0.01 };
        assert!(off(bytes) < most, "{} and {}: {bytes:?}", pair[0].tokens, pair[1].tokens);
    }
}

/// In this run a step has several sequences, each of a length of its own, so the first does not say what the others
/// have. That shows: in requests that fall as the tokens rise, and in what is held out.
#[test]
fn a_parameter_that_does_not_say_all_is_found_out() {
    let Some(trace) = read("corpus/llama2b_vary.girih") else { return };
    let steps = steps(&trace);
    let runs: Vec<Run<'_>> = steps[..3].iter().map(Step::run).collect();
    let family = Family::new(&runs).expect("steps of one program");
    let falling = family.tally().into_iter().find(|(kind, _)| *kind == Kind::Falling);
    assert!(falling.is_some_and(|(_, tally)| tally.requests > 1000), "{falling:?}");
    let held_out = &family.held_out()[0];
    assert!(held_out.different * 3 > held_out.requests, "{held_out:?}");
}

/// What [`AGREEMENT_MIN`] lies between.
#[test]
fn recordings_of_different_models_are_refused() {
    let all: Vec<(Trace, Lifetimes, Iterations)> = [
        "corpus/llama2b_N.girih",
        "corpus/llama2b_R.girih",
        "corpus/llama2b_vary.girih",
        "corpus/gpt2m_R_vary.girih",
        "corpus/moe_R.girih",
        "corpus/moe_vary.girih",
        "corpus/megatron_gpt2-V-R_r0.girih",
        "corpus/megatron_gpt2-R_r3.pickle.gz",
        "corpus/fsdp2_R_r0.pickle.gz",
        "corpus/mlp_stacks.pickle.gz",
        "../shared/traces/llama2b_R_vary.pickle.gz",
        "../shared/traces/lora13b_R.pickle.gz",
        "../shared/traces/megatron_llama7b-V_r0.pickle.gz",
        "../shared/traces/lightning.pickle.gz",
    ]
    .into_iter()
    .filter_map(read)
    .map(|trace| {
        let lives = Lifetimes::of(&trace);
        let iterations = Iterations::of(&trace, &lives);
        (trace, lives, iterations)
    })
    .collect();
    for (index, first) in all.iter().enumerate() {
        for second in &all[..index] {
            let runs = [(1, first), (2, second)].map(|(value, (trace, lives, iterations))| Run {
                value,
                name: "a run",
                trace,
                lives,
                iterations,
            });
            let refused = Family::new(&runs);
            match refused.err() {
                Some(Unlike::Parted { of, agreeing, .. }) => {
                    assert!(
                        (agreeing as f64) < 0.25 * AGREEMENT_MIN * of as f64,
                        "{agreeing} of {of}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
