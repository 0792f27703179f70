//! Writes the snapshot of a run that dies of a reason that is known, as PyTorch would: `cargo run
//! --example die -- KIND SEED OUT.pickle`, with the words that PyTorch's error would have said in
//! OUT.log where they tell something.

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../../girih-trace/tests/common/mod.rs"]
mod written;

use std::fs;

use common::die;
use girih_trace::Recording;
use girih_trace::generate::Death;
use written::pickle::{Style, encode, snapshot_of};

#[expect(clippy::print_stdout, reason = "an example says what it has done")]
fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [kind, seed, path] = &words[..] else { panic!("KIND SEED OUT.pickle") };
    let death = Death::ALL.into_iter().find(|death| format!("{death:?}") == *kind);
    let death = death.unwrap_or_else(|| panic!("KIND is one of {:?}", Death::ALL));
    let seed = seed.parse().expect("SEED is a number");
    let dead = (seed..).find_map(|seed| die(death, seed)).expect("a seed with which it dies");
    let (events, seed) = (dead.trace.events.len(), dead.seed);
    if let (Some(card), Some(others)) = (dead.known.card, dead.known.others) {
        let gib = |bytes: u64| format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30));
        let said = format!(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate some. GPU 0 has a \
             total capacity of {} of which 0 bytes is free. Process 1 has {} memory in use.\n",
            gib(card),
            gib(others)
        );
        fs::write(path.replace(".pickle", ".log"), said).expect("it can be written");
    }
    let recording = Recording { traces: vec![dead.trace] };
    let bytes = encode(&snapshot_of(&recording), Style::python(4));
    fs::write(path, bytes).expect("it can be written");
    println!("{death:?}, seed {seed}: {events} events, {} bytes of the device", dead.capacity);
}
