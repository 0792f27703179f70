//! All tests of this crate's interface, in one program: each program that is linked takes time and disk.

mod any;
mod common;
mod decisions;
mod layers;
mod paper;
mod recordings;
mod simplex;
