//! Recordings of the corpus.

use std::path::Path;

use girih_trace::compress::Limits;
use girih_trace::{Trace, marks, open};

/// A recording, with its marks if it has any.
pub(crate) fn recording(name: &str) -> Trace {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus");
    let endings = ["girih", "pickle.gz"].map(|ending| folder.join(format!("{name}.{ending}")));
    let path = endings.iter().find(|path| path.exists()).expect("a recording of the corpus");
    let file = std::fs::File::open(path).expect("readable");
    let recording = open::detect_and_read(file, Limits::default()).expect("a recording");
    let longest = recording.traces.into_iter().max_by_key(|trace| trace.events.len());
    let mut trace = longest.expect("a device with events");
    // A trace file of ours has them inside.
    if let Ok(beside) = std::fs::read(folder.join(format!("{name}.marks.json.gz"))) {
        marks::apply(&mut trace, &beside).expect("marks");
    }
    trace
}
