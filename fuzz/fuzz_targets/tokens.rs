//! Steps of long contexts from any run: decided or refused.
#![no_main]

#[path = "../../crates/girih-tokens/tests/any/mod.rs"]
mod any;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    any::any(bytes);
});
