//! The command as a person or a script meets it: the built binary, run on the recordings of
//! `corpus/`.
//!
//! Text is held by snapshots, with everything that depends on the clock taken out. After a change
//! that is meant, `INSTA_UPDATE=always cargo test -p girih-cli` writes them anew; read the
//! difference before you commit it.

mod alpha;
mod answers;
mod blocks;
mod compare;
mod compare_folders;
mod convert;
mod files;
mod fit;
mod girih;
mod learn;
mod long_pages;
mod plan;
mod readme;
mod refusals;
mod replay;
mod report;
mod signals;
mod stats;
mod swap;
mod tables;
mod why;
mod wording;
