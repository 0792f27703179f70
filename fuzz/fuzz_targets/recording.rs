//! Snapshots and trace files, on any bytes; what is read is understood, planned and replayed.
#![no_main]

#[path = "../../crates/girih-cli/tests/fuzz/check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::recording(bytes));
