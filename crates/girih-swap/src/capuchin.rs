//! x
use crate::*;
/// x
pub fn plan(step: &Step, links: &Links, budgets: &Budgets) -> Schedule { crate::girih::plan(step, links, budgets) }
