//! Scratch.
use girih_swap::bound::bound;
use girih_swap::{Answer, Budgets, Links, Method, Step, Steps, girih};
use girih_trace::compress::Limits;
use girih_trace::{Iterations, Lifetimes, marks, open};
use std::error::Error;
use std::fs::File;
use std::path::Path;

fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

fn step_of(path: &Path) -> Result<Step, Box<dyn Error>> {
    let recording = open::detect_and_read(File::open(path)?, Limits::default())?;
    let longest = recording.traces.into_iter().max_by_key(|trace| trace.events.len());
    let mut trace = longest.ok_or("no device has events")?;
    let name = path.to_string_lossy();
    let beside =
        name.trim_end_matches(".gz").trim_end_matches(".pickle").to_owned() + ".marks.json.gz";
    if beside != name
        && let Ok(bytes) = std::fs::read(beside)
    {
        marks::apply(&mut trace, &bytes)?;
    }
    let lives = Lifetimes::of(&trace);
    let iterations = Iterations::of(&trace, &lives);
    let mut steps = Steps::of(&trace, &lives, &iterations, None)?;
    Ok(steps.list.swap_remove(steps.model))
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let shares: Vec<f64> = args[0].split(',').map(|it| it.parse().unwrap()).collect();
    let links = Links::default();
    for path in &args[1..] {
        let path = Path::new(path);
        let step = match step_of(path) {
            Ok(step) => step,
            Err(error) => {
                println!("{path:?} {error}");
                continue;
            }
        };
        let name = path.file_name().unwrap().to_string_lossy();
        let name = name.split('.').next().unwrap();
        let mut done = Vec::new();
        for share in &shares {
            let gpu = (step.peak() as f64 * share) as u64;
            let least = step.least_budget().0;
            let kept = gpu.max(least);
            if done.contains(&kept) {
                continue;
            }
            done.push(kept);
            let budgets = Budgets { gpu, host: None };
            let begin = cpu_seconds();
            let schedule = girih::plan(&step, &links, &budgets);
            let planning = cpu_seconds() - begin;
            let begin = cpu_seconds();
            bound(&step, &links, kept);
            let bounding = cpu_seconds() - begin;
            let answer = Answer::of(&step, &links, &budgets, schedule)?;
            let us = answer.run.step_us;
            println!(
                "{name} {share}{} ops {} gaps {} swapped {:.4} bound {:.4} ratio {:.5} plan {planning:.2} bound {bounding:.2}",
                if gpu < least { "*" } else { "" },
                step.ops.len(),
                step.gaps.len(),
                us / step.us(),
                answer.bound_us / step.us(),
                us / answer.bound_us
            );
        }
    }
    let _ = Method::ALL;
    Ok(())
}
