//! The reader of marks files, on any bytes.
#![no_main]

#[path = "../../crates/girih-cli/tests/fuzz/check.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::marks(bytes));
