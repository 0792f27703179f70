//! Reads recordings, does nothing else with them, and says what processor time that took: beside `pickle.load`
//! between two `time.process_time()` on the same files.
//!
//! ```sh
//! cargo run --release -p girih-trace --example read -- run.pickle
//! ```

use std::error::Error;
use std::fs::File;
use std::time::Duration;

use girih_trace::compress::Limits;
use girih_trace::open;
use rustix::time::{ClockId, clock_gettime};

#[expect(clippy::print_stdout, reason = "an example says what it has seen")]
fn main() -> Result<(), Box<dyn Error>> {
    for path in std::env::args_os().skip(1) {
        let before = processor_time()?;
        let recording = open::detect_and_read(File::open(&path)?, Limits::default())?;
        let took = (processor_time()? - before).as_secs_f64();
        let events: usize = recording.traces.iter().map(|trace| trace.events.len()).sum();
        let stacks: usize = recording.traces.iter().map(|trace| trace.stacks.len()).sum();
        let path = path.to_string_lossy();
        println!("{path}: {took:.4} s of processor time, {events} events, {stacks} stacks");
    }
    Ok(())
}

/// What the threads of this process have used of the processors.
fn processor_time() -> Result<Duration, Box<dyn Error>> {
    Ok(Duration::try_from(clock_gettime(ClockId::ProcessCPUTime))?)
}
