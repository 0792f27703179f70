//! A recording as a picture.
//!
//! [`Picture`] holds what is drawn of a recording: bytes over time ([`series`]), every block from its
//! birth to its death ([`blocks`]), what was held of the device ([`held`]), steps and phases, and call
//! stacks. [`html`] puts it into one page that needs no network, [`perfetto`] and [`memory_viz`] write
//! the formats of other viewers.
//!
//! ```text
//!  trace, lifetimes ─► Picture ─┬─► columns, deflated ─► base64 ─┐
//!  replays, copies ─► Beside ───┘                       html, js ─┴─► run.html
//! ```
//!
//! This crate opens no file, prints nothing, and has no thread and no clock. What it writes goes to a
//! writer that it is given.

pub mod against;
pub mod beside;
pub mod blocks;
pub mod column;
pub mod copies;
pub mod figures;
pub mod held;
pub mod html;
pub mod lanes;
pub mod memory_viz;
pub mod perfetto;
pub mod pickle;
pub mod picture;
pub mod replays;
pub mod series;
pub mod stacks;

pub use beside::{Against, Allocator, Beside, Copies, Copy, Layout};
pub use figures::Figures;
pub use picture::{Picture, Subject};
