//! temporary
#![allow(clippy::disallowed_methods, clippy::print_stdout)]
use girih_runtime::simulate::*;
use girih_trace::compress::Limits;
#[path = "../tests/common/mod.rs"]
mod common;
use girih_trace::{Lifetimes, marks, open};
fn main() {
    let folder = std::path::Path::new("/work/shared/traces");
    let only: Vec<String> = std::env::args().skip(1).collect();
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter_map(|n| n.strip_suffix(".pickle.gz").map(str::to_owned))
        .filter(|n| only.is_empty() || only.iter().any(|o| n.contains(o)))
        .collect();
    names.sort();
    let gib = |b: u64| b as f64 / (1u64 << 30) as f64;
    for name in names {
        let file = std::fs::File::open(folder.join(format!("{name}.pickle.gz"))).unwrap();
        let mut trace = open::detect_and_read(file, Limits::default()).unwrap().traces.remove(0);
        if let Ok(bytes) = std::fs::read(folder.join(format!("{name}.marks.json.gz"))) {
            marks::apply(&mut trace, &bytes).unwrap();
        }
        let times: usize = std::env::var("TIMES").map_or(0, |t| t.parse().unwrap());
        if times > 0 {
            trace = common::repeated(&trace, times);
        }
        let lives = Lifetimes::of(&trace);
        let setup = Setup { conf: String::new(), ..Setup::default() };
        let e = simulate(&trace, &lives, Allocator::Expandable, &setup).unwrap();
        let steps = trace.marks.iter().filter(|m| m.kind == girih_trace::MarkKind::Step).count();
        println!(
            "{name}: {} requests, {steps} steps; allocated {:.3}, expandable {:.3} GiB",
            lives.requests.len(),
            gib(e.stats.allocated_bytes.all.peak),
            gib(e.stats.reserved_bytes.all.peak)
        );
        for (what, late, unmarked) in
            [("marks", false, false), ("late", true, false), ("none", false, true)]
        {
            let mut trace = trace.clone();
            if unmarked {
                trace.marks.clear();
            }
            if unmarked && std::env::var("CUTS").is_ok() {
                for n in [11000u32, 14000, 20000, 30000, 40000, 54900] {
                    let mut t = trace.clone();
                    if n as usize >= lives.requests.len() {
                        continue;
                    }
                    t.events.truncate(lives.requests[n as usize].birth.index());
                    let l = Lifetimes::of(&t);
                    let it = girih_trace::Iterations::of(&t, &l);
                    let mut live = 0i64;
                    let mut at = vec![];
                    for e in &t.events {
                        at.push(live);
                        match e.action {
                            girih_trace::Action::Alloc => live += e.size as i64,
                            girih_trace::Action::FreeCompleted => live -= e.size as i64,
                            _ => {}
                        }
                    }
                    println!(
                        "   {n}: {:?} {:?}",
                        it.steady,
                        it.list
                            .iter()
                            .map(|i| (
                                i.requests.start,
                                i.requests.len(),
                                at[i.ticks.start as usize] >> 20
                            ))
                            .collect::<Vec<_>>()
                    );
                }
            }

            let setup = Setup {
                conf: String::new(),
                plans_late: late,
                check_order: true,
                ..Setup::default()
            };
            let start = std::time::Instant::now();
            let a = simulate(&trace, &lives, Allocator::Auto, &setup).unwrap();
            let l = a.learning.clone().unwrap();
            let f = a.following.unwrap();
            println!(
                "   {what:6} peak {:.3} after {:.3}/{:.3} = {:.4}, last {:.4}; plans {} {:?}; hits {} misses {} missB {:.3}% fallback peak {:.3}; {:.1}s",
                gib(a.stats.reserved_bytes.all.peak),
                gib(l.peaks_after().0),
                gib(l.peaks_after().1),
                l.efficiency_after().unwrap_or(0.0),
                l.efficiency_at_last().unwrap_or(0.0),
                l.switches.len(),
                l.switches.iter().map(|s| (s.step, s.requests)).collect::<Vec<_>>(),
                f.hits,
                f.misses,
                100.0 * f.miss_bytes as f64 / (f.hit_bytes + f.miss_bytes).max(1) as f64,
                gib(f.fallback_reserved_peak),
                start.elapsed().as_secs_f64()
            );
            if std::env::var("PEAKS").is_ok() {
                println!(
                    "      {:?}",
                    l.peaks
                        .iter()
                        .map(|p| format!("{:.3}/{:.3}", gib(p.0), gib(p.1)))
                        .collect::<Vec<_>>()
                );
            }
            if std::env::var("WASTE").is_ok() {
                let w = waste_at_peak(&trace, &lives, &a, &setup).unwrap();
                println!(
                    "      {:?}",
                    w.causes()
                        .into_iter()
                        .filter(|c| c.1 > 0)
                        .map(|(n, b)| format!("{n} {:.0} MiB", b as f64 / 1048576.0))
                        .collect::<Vec<_>>()
                );
            }
        }
    }
}
