//! Heaps that a test makes by hand, each over a device of its own: unlike those of the process they
//! do not mind each other, and one program has all tests of them.

mod captures;
mod ipc;
#[path = "../common/seen.rs"]
mod seen;
mod stitching;
mod streams;
mod unlocked;
