//! What must hold for every input. The fuzz targets and the smoke tests call the same functions.
#![allow(dead_code, reason = "each fuzz target calls one of them")]

use girih_trace::compress::Limits;
use girih_trace::open::{self, OpenError};
use girih_trace::{Recording, file, snapshot};

/// Small limits, so that a fuzzer is not slowed down by large outputs.
const LIMITS: Limits = Limits { max_expansion: 100, floor_bytes: 1 << 20 };

/// Reading bytes as a snapshot never panics, and what was read can be written and read again.
pub fn snapshot(bytes: &[u8]) {
    if let Ok(recording) = snapshot::read(bytes, &snapshot::ReadOptions { limits: LIMITS }) {
        survives(&recording);
    }
}

/// Likewise for a trace file, and for whatever the one door takes.
pub fn trace_file(bytes: &[u8]) {
    if let Ok(recording) = file::read(bytes, LIMITS) {
        survives(&recording);
        match open::detect_and_read(bytes, LIMITS) {
            Ok(again) => assert_eq!(again, recording),
            Err(error) => assert!(matches!(error, OpenError::Bounds(_)), "{error}"),
        }
    } else {
        let _ = open::detect_and_read(bytes, LIMITS);
    }
}

fn survives(recording: &Recording) {
    let mut written = Vec::new();
    file::write(recording, &mut written).expect("what was read can be written");
    let again = file::read(&written[..], Limits { max_expansion: u64::MAX, ..LIMITS });
    assert_eq!(&again.expect("what was written can be read"), recording);
}
