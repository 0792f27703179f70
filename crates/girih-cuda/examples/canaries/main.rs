//! The policies alone on a GPU, without torch: every block is full of a word of its own, and is read
//! before it goes, on every stream that uses it; after a stitch all that is held is read, under every
//! address that leads to it.
//!
//! ```sh
//! cargo build --release -p girih-cuda --example canaries
//! target/release/examples/canaries [--only stitch,gmlake|all] [--operations N] [--mib N] [--seed N]
//! ```
//!
//! One line for each policy and number of streams; the exit status is 1 if a byte was wrong or was
//! not given back, and 2 without a GPU. The binary needs libc and the driver, which it loads itself.

#![expect(unsafe_code, reason = "it calls the driver itself, to use what it is given")]
#![expect(clippy::print_stdout, reason = "its lines are what it is for")]
#![expect(clippy::print_stderr, reason = "it is a command")]

mod card;
mod program;
mod watched;

use std::process::ExitCode;

use girih_cuda::CudaDevice;

use crate::card::Card;
use crate::program::{Program, policies};
use crate::watched::Watched;

/// What was asked for on the command line.
struct Options {
    only: String,
    operations: u64,
    mib: u64,
    seed: u64,
}

impl Options {
    fn parse(words: impl Iterator<Item = String>) -> Result<Options, String> {
        let only = "stitch,gmlake".to_owned();
        let mut options = Options { only, operations: 5_000, mib: 2048, seed: 1 };
        let mut words = words.skip(1);
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            let number = || value.parse().map_err(|_| format!("{word} {value} is no number"));
            match word.as_str() {
                "--only" => options.only = value,
                "--operations" => options.operations = number()?,
                "--mib" => options.mib = number()?,
                "--seed" => options.seed = number()?,
                _ => return Err(format!("there is no option {word}; see the top of the source")),
            }
        }
        Ok(options)
    }
}

/// Runs each policy on one stream and on several. False if something was wrong.
fn run(options: &Options) -> Result<bool, String> {
    let mut is_right = true;
    for streams in [1, 4] {
        let chosen = policies(&options.only, options.seed);
        if chosen.is_empty() {
            return Err(format!("no policy is called {}", options.only));
        }
        for policy in chosen {
            let device = CudaDevice::new(0).map_err(|error| error.to_string())?;
            let (device, card) = (Watched::new(device), Card::open(streams)?);
            let name = policy.name();
            let bytes = options.mib << 20;
            let mut program = Program::new(policy, device, card, bytes, options.seed);
            let result = program.run(options.operations);
            let said = result.as_ref().err().map_or(String::new(), |error| format!("; {error}"));
            println!("{name}, streams: {streams}, {}{said}", program.counts);
            is_right &= result.is_ok() && program.counts.wrong == 0;
        }
    }
    Ok(is_right)
}

fn main() -> ExitCode {
    match Options::parse(std::env::args()).and_then(|options| run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("canaries: {error}");
            ExitCode::from(2)
        }
    }
}
