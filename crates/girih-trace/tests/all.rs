//! All tests of this crate's interface, in one program: each program that is linked takes time and disk.

mod common;
mod file;
mod generate;
mod hostile;
mod python;
mod recordings;
mod snapshot;
mod understanding;
