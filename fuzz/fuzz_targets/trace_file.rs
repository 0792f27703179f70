//! The reader of Girih's trace files, on any bytes.
#![no_main]

#[path = "../../crates/girih-trace/tests/common/check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::trace_file(bytes));
