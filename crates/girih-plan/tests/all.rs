//! All tests of this crate's interface, in one program: each program that is linked takes time and disk.

mod checker;
mod common;
mod csv;
mod datasets;
mod exact;
mod folding;
mod memo;
mod mutation;
mod plan_file;
mod planners;
mod rooms;
mod streams;
mod stweaver;
