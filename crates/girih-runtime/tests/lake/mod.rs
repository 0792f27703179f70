//! What holds for every policy that stitches: the eleven invariants that GMLake's published code
//! breaks, whichever call of the device fails, and to the byte.

mod bytes;
mod faults;
mod invariants;
mod kinds;
mod program;
mod shadow;
mod watched;
pub(crate) mod world;
