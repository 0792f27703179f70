//! The reader of planning problems, on any bytes; what it reads is planned.
#![no_main]

#[path = "../../crates/girih-cli/tests/fuzz/check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::csv(bytes));
