//! GMLake: its states, its stitched blocks, and the eleven invariants that its published code
//! breaks.

mod gmlake {
    pub(crate) mod invariants;
    pub(crate) mod recordings;
    pub(crate) mod shadow;
    pub(crate) mod states;
    pub(crate) mod world;
}
