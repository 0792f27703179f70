//! Every reader on inputs from seeds, for about a second. `examples/fuzz_readers.rs` goes on for as long
//! as it is told, with each process bounded in memory and each input in time.

mod check;
mod inputs;

use std::time::{Duration, Instant};

#[test]
#[expect(clippy::disallowed_methods, reason = "a test has its time")]
fn whatever_a_file_says_is_read_or_refused() {
    let until = Instant::now() + Duration::from_secs(1);
    for seed in 0..100_000 {
        if Instant::now() >= until {
            break;
        }
        inputs::run(seed);
    }
}

/// Seeds that found something once.
#[test]
fn what_was_found_once_is_not_found_again() {
    FOUND.into_iter().for_each(inputs::run);
}

/// 0 and 10: requests of nothing, whose plan was refused by its own checker.
const FOUND: [u64; 2] = [0, 10];
