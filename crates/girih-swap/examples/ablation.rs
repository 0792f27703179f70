//! What each number of the planner is worth: one at a time at other values, over recordings.
//!
//! ```sh
//! cargo run --release -p girih-swap --example ablation -- shares=0.8,0.6 RECORDING ... held-out shares=0.85,0.7 RECORDING ...
//! cargo run --release -p girih-swap --example ablation -- rows RECORDING ...
//! cargo run --release -p girih-swap --example ablation -- only=hastes,rounds RECORDING ...
//! ```
//!
//! Prints a table in Markdown: the mean and the worst of step / bound over the recordings' steady steps within so many of
//! their peaks (`shares`), and how long the planning of all of them took. What comes after `held-out` has columns of its own:
//! recordings on which nothing was chosen. A budget below the least that can be kept is that least, and counts once.
//! With `rows` there is a row for each step and budget instead, by the numbers as they are; with `only=NAME,...` there are
//! only the numbers of these names.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::time::Instant;

use girih_swap::bound::bound;
use girih_swap::check::check;
use girih_swap::girih::plan_with;
use girih_swap::settings::Settings;
use girih_swap::{Budgets, Links, Step, Steps, simulate};
use girih_trace::compress::Limits;
use girih_trace::{Iterations, Lifetimes, marks, open};

/// A step to be planned within a budget.
struct Case {
    name: String,
    share: f64,
    step: Step,
    budgets: Budgets,
    bound_us: f64,
}

/// What a schedule of it takes.
struct Planned {
    step_us: f64,
    planning_s: f64,
}

/// What many of them took.
#[derive(Clone, Copy, Default)]
struct Sum {
    mean: f64,
    worst: f64,
    planning_s: f64,
    longest_s: f64,
}

fn step_of(path: &Path) -> Result<Step, Box<dyn Error>> {
    let recording = open::detect_and_read(File::open(path)?, Limits::default())?;
    let longest = recording.traces.into_iter().max_by_key(|trace| trace.events.len());
    let mut trace = longest.ok_or("no device has events")?;
    let name = path.to_string_lossy();
    for ending in [".marks.json", ".marks.json.gz"] {
        let beside = name.trim_end_matches(".gz").trim_end_matches(".pickle").to_owned() + ending;
        if let Ok(bytes) = std::fs::read(beside) {
            marks::apply(&mut trace, &bytes)?;
        }
    }
    let lives = Lifetimes::of(&trace);
    let iterations = Iterations::of(&trace, &lives);
    let mut steps = Steps::of(&trace, &lives, &iterations, None)?;
    Ok(steps.list.swap_remove(steps.model))
}

fn cases_of(path: &Path, shares: &[f64]) -> Result<Vec<Case>, Box<dyn Error>> {
    let step = step_of(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.split('.').next().unwrap_or_default().to_owned();
    let mut cases: Vec<Case> = Vec::new();
    for &share in shares {
        let gpu = ((step.peak() as f64 * share) as u64).max(step.least_budget().0);
        if cases.iter().any(|case| case.budgets.gpu == gpu) {
            continue;
        }
        let budgets = Budgets { gpu, host: None };
        let bound_us = bound(&step, &Links::default(), gpu);
        let (name, step) = (name.clone(), step.clone());
        cases.push(Case { name, share, step, budgets, bound_us });
    }
    Ok(cases)
}

/// Seconds that this thread has had a processor, where the system tells; else seconds since `begin`.
fn seconds(begin: Instant) -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let told = told.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    told.map_or_else(|| begin.elapsed().as_secs_f64(), |ns| ns / 1e9)
}

impl Case {
    fn plan(&self, settings: &Settings) -> Result<Planned, Box<dyn Error>> {
        let Case { step, budgets, .. } = self;
        let links = Links::default();
        #[expect(clippy::disallowed_methods, reason = "it tells how long planning takes")]
        let begin = Instant::now();
        let before = seconds(begin);
        let schedule = plan_with(step, &links, budgets, settings);
        let planning_s = seconds(begin) - before;
        let run = simulate(step, &links, &schedule);
        check(step, &links, budgets, &schedule, &run)?;
        Ok(Planned { step_us: run.step_us, planning_s })
    }
}

fn sum(cases: &[Case], settings: &Settings) -> Result<Sum, Box<dyn Error>> {
    let mut sum = Sum::default();
    for case in cases {
        let planned = case.plan(settings)?;
        let over = planned.step_us / case.bound_us;
        sum.mean += over / cases.len() as f64;
        sum.worst = sum.worst.max(over);
        sum.planning_s += planned.planning_s;
        sum.longest_s = sum.longest_s.max(planned.planning_s);
    }
    Ok(sum)
}

/// One number at one value.
struct Trial {
    name: &'static str,
    value: String,
    settings: Settings,
}

fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    fn each<T: std::fmt::Debug>(
        trials: &mut Vec<Trial>,
        name: &'static str,
        values: Vec<T>,
        set: impl Fn(&mut Settings, T),
    ) {
        for value in values {
            let text = format!("{value:?}");
            let mut settings = Settings::default();
            set(&mut settings, value);
            let chosen = if settings == Settings::default() { " (chosen)" } else { "" };
            trials.push(Trial { name, value: text + chosen, settings });
        }
    }
    let all = &mut trials;
    // As it is, at half and at twice; of those that are near 1, what is above it.
    each(all, "close", vec![1.0005, 1.001, 1.002], |it, value| it.close = value);
    each(all, "tries_max", vec![750, 1500, 3000], |it, value| it.tries_max = value);
    each(all, "searches_max", vec![1, 3, 6, 12], |it, value| it.searches_max = value);
    let work = vec![6_000_000, 12_000_000, 24_000_000];
    each(all, "work_max", work, |it, value| it.work_max = value);
    each(all, "firsts_part", vec![1, 2, 4, 8], |it, value| it.firsts_part = value);
    each(all, "prune_part", vec![1, 2, 4, 8, 16], |it, value| it.prune_part = value);
    each(all, "level", vec![1.0, 1.00005, 1.0001, 1.0002], |it, value| it.level = value);
    each(all, "rounds", vec![1, 2, 4], |it, value| it.rounds = value);
    let headrooms = vec![
        vec![0],
        vec![0, 2, 4, 8],
        vec![0, 1, 2, 3, 4],
        vec![0, 1, 2, 3, 4, 6, 8],
        vec![0, 1, 2, 3, 4, 5, 6, 7, 8],
    ];
    each(all, "headrooms", headrooms, |it, value| it.headrooms = value);
    let noises = vec![
        vec![0.0],
        vec![0.0, 0.1],
        vec![0.0, 0.01, 0.05, 0.2],
        vec![0.0, 0.02, 0.1, 0.4],
        vec![0.0, 0.04, 0.2, 0.8],
    ];
    each(all, "noises", noises, |it, value| it.noises = value);
    let hastes = vec![
        vec![1.0],
        vec![1.0, 2.5],
        vec![1.0, 1.25, 1.75, 3.0],
        vec![1.0, 1.5, 2.5, 5.0],
        vec![1.0, 2.0, 4.0, 9.0],
    ];
    each(all, "hastes", hastes, |it, value| it.hastes = value);
    each(all, "put_off_parts", vec![0, 32, 64, 128], |it, value| it.put_off_parts = value);
    each(all, "put_off_part", vec![2, 4, 8], |it, value| it.put_off_part = value);
    trials
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut shares = vec![0.8, 0.6];
    let (mut sets, mut is_held_out) = ([Vec::new(), Vec::new()], false);
    let (mut rows, mut only): (bool, Vec<String>) = (false, Vec::new());
    for arg in std::env::args().skip(1) {
        if let Some(list) = arg.strip_prefix("shares=") {
            shares = list.split(',').map(str::parse).collect::<Result<_, _>>()?;
        } else if let Some(name) = arg.strip_prefix("only=") {
            only = name.split(',').map(str::to_owned).collect();
        } else if arg == "rows" {
            rows = true;
        } else if arg == "held-out" {
            is_held_out = true;
        } else {
            match cases_of(Path::new(&arg), &shares) {
                Ok(cases) => sets[usize::from(is_held_out)].extend(cases),
                Err(error) => println!("{arg}: {error}\n"),
            }
        }
    }
    if rows {
        println!("| run | share | step, us | over the step | bound | step / bound | planning, s |");
        println!("| :-- | --: | --: | --: | --: | --: | --: |");
        for case in sets.iter().flatten() {
            let Planned { step_us, planning_s } = case.plan(&Settings::default())?;
            let (plain, over) = (case.step.us(), step_us / case.bound_us);
            let (own, bound) = (step_us / plain, case.bound_us / plain);
            let Case { name, share, .. } = case;
            println!(
                "| {name} | {share} | {step_us:.1} | {own:.4} | {bound:.4} | {over:.5} | {planning_s:.2} |"
            );
        }
        return Ok(());
    }
    println!("| number | value | mean | worst | held out, mean | worst | planning, s | longest |");
    println!("| :-- | :-- | --: | --: | --: | --: | --: | --: |");
    let mut by_default: Option<[Sum; 2]> = None;
    let is_meant = |trial: &Trial| only.is_empty() || only.iter().any(|only| only == trial.name);
    for Trial { name, value, settings } in trials().into_iter().filter(is_meant) {
        let is_default = settings == Settings::default();
        let [own, other] = match by_default.filter(|_| is_default) {
            Some(sums) => sums,
            None => [sum(&sets[0], &settings)?, sum(&sets[1], &settings)?],
        };
        if is_default {
            by_default = Some([own, other]);
        }
        println!(
            "| {name} | {value} | {:.5} | {:.5} | {:.5} | {:.5} | {:.1} + {:.1} | {:.1} |",
            own.mean,
            own.worst,
            other.mean,
            other.worst,
            own.planning_s,
            other.planning_s,
            own.longest_s.max(other.longest_s)
        );
    }
    Ok(())
}
