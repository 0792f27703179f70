//! Policies that stitch, GMLake and expandable segments: what must never happen, and GMLake's own
//! states.

mod gmlake;
mod lake;
