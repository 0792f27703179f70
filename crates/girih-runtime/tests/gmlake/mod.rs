//! GMLake's own: its states, and recorded runs.

mod recordings;
mod states;
