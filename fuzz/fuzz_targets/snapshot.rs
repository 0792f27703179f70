//! The reader of PyTorch snapshots, on any bytes.
#![no_main]

#[path = "../../crates/girih-trace/tests/common/check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::snapshot(bytes));
