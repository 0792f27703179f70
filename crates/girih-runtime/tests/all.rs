//! All tests of this crate's interface, in one program: each program that is linked takes time and disk.

mod auto;
mod bounds;
mod checkpoint;
mod common;
#[path = "common/corpus.rs"]
mod corpus;
mod gmlake;
mod kinds;
mod lab;
mod lake;
mod late;
mod one_handle;
mod oracle;
mod planned;
mod plans;
mod policies;
mod recordings;
mod second_launch;
mod sizes;
mod soak;
mod stweaver;
mod time;
mod trial;
mod uncached;
mod waits;
mod zero3;
