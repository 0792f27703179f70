//! Policies that stitch, GMLake and expandable segments: what must never happen, and GMLake's own
//! states.

#[path = "common/corpus.rs"]
mod corpus;
mod gmlake;
mod lake;
