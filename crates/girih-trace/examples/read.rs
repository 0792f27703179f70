//! Reads recordings and does nothing else with them: for `perf stat`, beside `pickle.load` on the same files.
//!
//! ```sh
//! perf stat -r 5 cargo run --release -p girih-trace --example read -- run.pickle.gz
//! ```

use std::error::Error;
use std::fs::File;

use girih_trace::compress::Limits;
use girih_trace::open;

#[expect(clippy::print_stdout, reason = "an example says what it has seen")]
fn main() -> Result<(), Box<dyn Error>> {
    for path in std::env::args_os().skip(1) {
        let recording = open::detect_and_read(File::open(&path)?, Limits::default())?;
        let events: usize = recording.traces.iter().map(|trace| trace.events.len()).sum();
        let stacks: usize = recording.traces.iter().map(|trace| trace.stacks.len()).sum();
        println!("{}: {events} events, {stacks} stacks", path.to_string_lossy());
    }
    Ok(())
}
