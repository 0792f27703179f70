//! How many verdicts are right on generated runs of these seeds: `cargo run --release --example
//! judge -- 101 131`.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{advice_helps, ask, die, right, without_stacks};
use girih_trace::generate::Death;

#[expect(clippy::print_stdout, reason = "an example says what it finds")]
fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let [from, to] = numbers[..] else { panic!("two seeds: the first, and that after the last") };
    for death in Death::ALL {
        let (mut died, mut correct, mut bare) = (0, 0, 0);
        let (mut advised, mut helped) = (0, 0);
        for dead in (from..to).filter_map(|seed| die(death, seed)) {
            died += 1;
            let said = ask(&dead.trace, dead.known);
            if let Some(helps) = advice_helps(&dead, &said) {
                advised += 1;
                helped += u32::from(helps);
            }
            if said.verdict == right(death) {
                correct += 1;
            } else {
                let told = said.told.expect("it died");
                println!(
                    "  {} as {:?}: capacity {} MiB, live {}, idle {:?}, asked {}, leak {:?}, \
                     spike {:?}, steps {}",
                    dead.seed,
                    said.verdict,
                    told.capacity.bytes >> 20,
                    told.moment.live >> 20,
                    told.idle,
                    told.refusal.size >> 20,
                    told.growth.as_ref().map(|it| (it.bytes >> 20, it.each_step >> 20, it.steps)),
                    told.spike,
                    said.steps.len()
                );
            }
            let said = ask(&without_stacks(&dead.trace), dead.known);
            bare += u32::from(said.verdict == right(death));
        }
        println!(
            "{death:?}: {correct} of {died} right, {bare} without stacks; advice that can be tried \
             helps in {helped} of {advised}"
        );
    }
}
