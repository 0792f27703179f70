//! Steps from recordings: of generated runs, whose layers are known, and of the corpus.

use std::fs::File;
use std::path::Path;

use girih_swap::Budgets;
use girih_tokens::problem::Role;
use girih_tokens::recording::{Recorded, RecordingError, read};
use girih_tokens::scale::{Scaled, Unlike};
use girih_tokens::timeline::peaks;
use girih_tokens::{Decision, Layer, Method};
use girih_trace::compress::Limits;
use girih_trace::generate::{Training, training};
use girih_trace::{Action, Event, Iterations, Lifetimes, Operator, Trace, open};

fn of(trace: &Trace) -> Result<Recorded, RecordingError> {
    let lives = Lifetimes::of(trace);
    read(trace, &lives, &Iterations::of(trace, &lives), None)
}

fn corpus(name: &str) -> Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus").join(name);
    let recording = open::detect_and_read(File::open(path).unwrap(), Limits::default()).unwrap();
    recording.traces.into_iter().max_by_key(|trace| trace.events.len()).unwrap()
}

/// The most bytes that are alive in the step that is looked at.
fn recorded_peak(trace: &Trace) -> u64 {
    let lives = Lifetimes::of(trace);
    let iterations = Iterations::of(trace, &lives);
    let step = &iterations.list[iterations.model().unwrap()].ticks;
    let at = |tick: u32| {
        let alive = lives.requests.iter().filter(|it| it.birth.0 <= tick && tick < it.death.0);
        alive.map(|it| it.size).sum::<u64>()
    };
    let births = lives.born().iter().map(|it| it.birth.0).filter(|tick| step.contains(tick));
    births.map(at).max().unwrap()
}

fn simple() -> Training {
    Training { stages: 1, microbatches: 1, recompute: false, ..Training::default() }
}

#[test]
fn the_layers_of_a_generated_run_are_found() {
    for layers in [4, 12] {
        let recorded = of(&training(&Training { layers, ..simple() }, 7)).unwrap();
        let own = &recorded.problem.layers;
        assert!(own.len() + 1 >= layers as usize, "{} of {layers}", own.len());
        let first: u64 = own[1].bytes();
        assert!(own[1..].iter().all(|layer| layer.bytes().abs_diff(first) <= first / 4));
        let is_input = |layer: &Layer| layer.kinds.iter().any(|kind| kind.role == Role::Input);
        assert!(own.iter().all(is_input));
    }
}

#[test]
fn a_step_that_runs_as_it_did_takes_what_was_recorded() {
    for (name, recomputes) in [
        ("llama2b_vary.girih", false),
        ("llama2b_N.girih", false),
        ("moe_vary.girih", false),
        ("gpt2m_R_vary.girih", true),
    ] {
        let trace = corpus(name);
        let Recorded { problem, assumed, .. } = of(&trace).unwrap();
        assert_eq!(assumed.lifted, recomputes);
        let as_it_did = match recomputes {
            true => girih_tokens::baselines::recompute(&problem),
            false => Decision::plain(&problem),
        };
        let (own, recorded) = (peaks(&problem, &as_it_did).0, recorded_peak(&trace));
        // Passes are planned one at a time, and of several microbatches one is looked at.
        let over = own as f64 / recorded as f64;
        assert!((0.97..1.05).contains(&over), "{name}: {own} of {recorded}, {over}");
    }
}

/// Three layers of a 7B Llama, recorded; four of them, as measured on an H200, with 65,536 tokens on an H100: what was
/// allocated at most, MiB, and the step, ms, of the run as it is and of recomputation. A step of the three takes so long if
/// no kernel is waited for.
#[test]
fn what_four_layers_take_is_said_from_a_recording_of_three() {
    for (name, alone_ms, seen) in [
        ("long/few16k.girih", None, [(19_647, 262.8), (11_557, 338.6)]),
        ("long/few32k.girih", Some(537.3), [(32_847, 720.3), (15_423, 914.5)]),
        ("long/few64k.girih", None, [(59_249, 2194.0), (23_534, 2804.0)]),
    ] {
        let trace = corpus(name);
        let lives = Lifetimes::of(&trace);
        let iterations = Iterations::of(&trace, &lives);
        let recorded = read(&trace, &lives, &iterations, alone_ms.map(|ms| ms * 1e3)).unwrap();
        let problem = Scaled::one(recorded, 1, 0.0).with_layers(4).at(1);
        let budgets = Budgets { gpu: u64::MAX, host: None };
        for (way, (mib, ms)) in [Method::Plain, Method::Recompute].into_iter().zip(seen) {
            let ran = way.answer(&problem, &budgets).unwrap().outcome;
            let peak = ran.gpu_peak as f64 / f64::from(1 << 20) / f64::from(mib);
            assert!((peak - 1.0).abs() < 0.01, "{name}: {peak} of what was allocated");
            if alone_ms.is_some() {
                let step = ran.step_us / 1e3 / ms;
                assert!((step - 1.0).abs() < 0.05, "{name}: {step} of the step");
            }
        }
    }
}

#[test]
fn recordings_of_the_corpus_are_decided_at_three_quarters_of_what_they_can_save() {
    for name in ["llama2b_vary.girih", "llama2b_N.girih"] {
        let problem = of(&corpus(name)).unwrap().problem;
        assert_eq!(problem.layers.len(), 8);
        let plain = peaks(&problem, &Decision::plain(&problem)).0;
        let least = peaks(&problem, &girih_tokens::baselines::least(&problem, None)).0;
        let budgets = Budgets { gpu: least + (plain - least) / 4, host: None };
        let answer = Method::Girih.answer(&problem, &budgets).unwrap();
        assert!(answer.fits && answer.outcome.gpu_peak <= budgets.gpu);
        let over = answer.outcome.step_us / answer.bound_us;
        assert!((1.0 - 1e-9..1.1).contains(&over), "{name}: {over} over the bound");
        // Attention is known by its log-sum-exp.
        let is_attention = |layer: &Layer| layer.kinds.iter().any(|it| it.role == Role::Attention);
        assert!(problem.layers[1..7].iter().all(is_attention), "{name}");
    }
}

#[test]
fn what_a_program_computes_again_is_what_its_layers_would_keep() {
    let problem = of(&corpus("gpt2m_R_vary.girih")).unwrap().problem;
    assert_eq!(problem.layers.len(), 24);
    // Width 1024: the input of 132 MiB, and 20 of its size and more besides, as GPT-2 with dropout keeps them.
    for layer in &problem.layers {
        let input = layer.kinds.iter().find(|kind| kind.role == Role::Input).unwrap().bytes;
        assert!((16 * input..28 * input).contains(&layer.bytes()), "{} of {input}", layer.bytes());
        assert!(layer.remake_us() > 0.0);
    }
    // With half of the memory that it would take, it need not compute everything again.
    let budgets = Budgets { gpu: 40 << 30, host: Some(100 << 30) };
    let (own, all) =
        (Method::Girih.answer(&problem, &budgets), Method::Recompute.answer(&problem, &budgets));
    let (own, all) = (own.unwrap(), all.unwrap());
    assert!(own.fits && all.fits && own.outcome.step_us < 0.8 * all.outcome.step_us);
}

#[test]
fn whatever_is_recorded_is_decided_or_refused() {
    let mut count = crate::any::Count::default();
    arbtest::arbtest(|u| {
        let length = u.arbitrary_len::<u8>()?.min(2000);
        let one = crate::any::any(u.bytes(length)?);
        count.decided += one.decided;
        count.refused += one.refused;
        Ok(())
    })
    .budget_ms(3000);
    assert!(count.decided > 10 && count.refused > 10, "{count:?}");
}

#[test]
fn with_times_of_operators_a_tensor_costs_those_since_the_one_before_it() {
    let mut trace = corpus("llama2b_vary.girih");
    // Each request is made by an operator of 10 us.
    let requests = trace.events.iter().zip(0u32..).filter(|(it, _)| it.action == Action::Alloc);
    let operator = |(event, before): (&Event, u32)| Operator {
        name: 0,
        before,
        time_us: event.time_us,
        duration_us: 10,
        stream: event.stream,
    };
    trace.uses.operators = requests.map(operator).collect();
    trace.uses.names = vec!["any".to_owned()];
    let Recorded { problem, assumed, .. } = of(&trace).unwrap();
    assert!(!assumed.times && !assumed.costs);
    let layer = &problem.layers[3];
    let all: f64 = layer.kinds.iter().filter_map(|kind| kind.remake_us).sum();
    let is_tens = |us: f64| us > 0.0 && (us / 10.0).fract() == 0.0;
    assert!(is_tens(layer.forward.us) && is_tens(layer.backward.us));
    // All but the input's own operators, and those behind the last that is kept.
    assert!(all < layer.forward.us && all > layer.forward.us / 2.0, "{all} of {layer:?}");
    let attention = layer.kinds.iter().find(|kind| kind.role == Role::Attention).unwrap();
    assert!(is_tens(attention.remake_us.unwrap()));
}

#[test]
fn a_pipeline_with_several_microbatches_in_flight_is_refused() {
    assert_eq!(of(&corpus("megatron_gpt2-V-R_r0.girih")), Err(RecordingError::Overlaps));
}

#[test]
fn what_has_no_layers_is_refused_with_a_reason() {
    let refused = of(&corpus("mlp_stacks.pickle.gz")).unwrap_err().to_string();
    assert!(refused.contains("not made of layers that are alike"), "{refused}");
    assert_eq!(of(&Trace::default()), Err(RecordingError::NoStep));
}

#[test]
fn a_step_is_scaled_to_itself_and_in_proportion() {
    let recorded = of(&corpus("llama2b_vary.girih")).unwrap();
    let problem = recorded.problem.clone();
    assert_eq!(Scaled::one(recorded.clone(), 1000, 0.0).at(1000), problem);
    let scaled = Scaled::one(recorded, 1000, 0.5);
    // With its part of the time known, attention costs that, and the others share the rest.
    let layer = &scaled.at(1000).layers[3];
    let attention = layer.kinds.iter().filter(|kind| kind.role == Role::Attention);
    let attention: f64 = attention.filter_map(|kind| kind.remake_us).sum();
    assert!((attention - 0.5 * layer.forward.us).abs() < 1e-6);
    assert!((layer.remake_us() - layer.forward.us).abs() < 1e-6);
    let twice = scaled.at(2000);
    for (one, two) in problem.layers.iter().zip(&twice.layers) {
        assert_eq!(two.bytes(), 2 * one.bytes());
        assert!(two.forward.bytes <= 2 * one.forward.bytes);
        // Half of the time goes by the square: 0.5 * 2 + 0.5 * 4.
        assert!((two.forward.us - 3.0 * one.forward.us).abs() < 1e-6);
    }
    assert_eq!(twice.static_bytes, problem.static_bytes);
    let more = scaled.with_layers(24).at(1000);
    // Gradients of other microbatches are there already: all of what is static counts as the layers'.
    assert_eq!((more.layers.len(), more.static_bytes), (24, 3 * problem.static_bytes));
}

#[test]
fn two_recordings_say_what_grows_with_tokens_and_what_with_their_square() {
    let recorded = of(&corpus("llama2b_vary.girih")).unwrap();
    let law = Scaled::one(recorded.clone(), 1000, 0.25);
    let second = Recorded { problem: law.at(3000), ..recorded.clone() };
    let both = Scaled::two(recorded.clone(), 1000, second.clone(), 3000).unwrap();
    let (by_law, by_line) = (law.at(9000), both.at(9000));
    for (a, b) in by_law.layers.iter().zip(&by_line.layers) {
        assert!((a.forward.us / b.forward.us - 1.0).abs() < 1e-6);
        assert!(
            a.bytes().abs_diff(b.bytes()) < 200
                && a.backward.bytes.abs_diff(b.backward.bytes) < 200
        );
    }
    assert_eq!(Scaled::two(recorded.clone(), 5, second.clone(), 5), Err(Unlike::Tokens(5)));
    let mut other = second;
    other.problem.layers.pop();
    assert_eq!(Scaled::two(recorded, 5, other, 9), Err(Unlike::Layers(8, 7)));
}
