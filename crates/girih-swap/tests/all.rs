//! All tests of this crate's interface, in one program: each program that is linked takes time and disk.

mod common;
mod mutation;
mod policies;
mod programs;
mod records;
mod schedules;
mod written;
