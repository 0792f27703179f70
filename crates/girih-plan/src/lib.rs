//! Where every tensor goes.
//!
//! A [`Problem`] is a set of buffers, each with a size and a lifetime; a [`Solution`] gives each an
//! offset so that no two buffers that are alive together share a byte, in an arena as low as can
//! be. Planners live one a file; [`bound`] says what none of them can beat; [`check`] trusts none.
//!
//! This crate knows no runtime, opens no file, reads no clock and uses no unseeded chance.

pub mod bound;
pub mod check;
mod claims;
pub mod csv;
pub mod exact;
pub mod file;
mod fill;
pub mod firstfit;
mod fold;
mod gaps;
mod instance;
mod joint;
pub mod memo;
mod occupancy;
pub mod plan;
pub mod planner;
pub mod portfolio;
pub mod problem;
pub mod profile;
pub mod skyline;
pub mod strategy;
pub mod streams;
pub mod stweaver;
pub mod sweep;
pub mod verify;
pub mod waits;

pub use firstfit::Order;
pub use gaps::Fit;
pub use plan::{
    ALIGNMENT, Entry, Place, Plan, ROOM_GRAIN, Role, Room, Sequence, Tenancy, Trial, granted,
    granted_in_room,
};
pub use planner::Planner;
pub use portfolio::{Budget, Outcome, solve};
pub use problem::{Buffer, Problem, ProblemError, Solution};
pub use skyline::Key;
pub use strategy::Strategy;
pub use sweep::Direction;
pub use verify::{PlanError, verify};
pub use waits::{Wait, waits};
