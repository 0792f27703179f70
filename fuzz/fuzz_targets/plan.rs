//! The reader of plan files, on any bytes; what it reads is followed.
#![no_main]

#[path = "../../crates/girih-cli/tests/fuzz/check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::plan(bytes));
