//! The edge of out of memory: how a heap without a budget comes to swap.
//!
//! ```text
//!  in use  0 ............ a half ................. 15/16 ......... what can be had
//!          nothing is     records begin: the       pinning         a request is refused:
//!          watched        hooks are asked for      begins          saved tensors go
//! ```
//!
//! A program that stays below a half pays one comparison for each request of [`LEAST`](super::LEAST) bytes and more.
//! Once a request was refused, what can be had is known, and steps are scheduled as if it were a budget.
//!
//! What can be had is the limit of the heap, or what it holds and the device has free. To ask the driver for that
//! costs a call, so it is asked where more is in use than ever before, at most [`LOOKS`] times and a few.

use super::settings::{self, SwapSettings};
use super::{Swap, attention};
use crate::heap::State;
use crate::units::short;

/// The part of what can be had from which on records are kept is one in so many. What was saved before, in the step
/// that passes it, stays on the GPU: the lower the part, the more of that step can go; the higher, the fewer programs
/// pay for hooks. At a half, half of the GPU is there for what is saved later.
const WATCHED_PART: u64 = 2;
/// Between two looks, at least one part in so many of what can be had comes into use.
const LOOKS: u64 = 16;
/// The part that is left when pinning begins. It takes about a third of a second for a GiB, and one copy out has to
/// wait for it otherwise.
const PINNED_PART: u64 = 16;
/// What can be had is less than was known if it is so by one part in so many.
const LITTLE: u64 = 64;
/// Free pinned bytes that are held ready before anything went.
pub(super) const READY: u64 = 2 << 30;

/// How far a heap is from swapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    settings: SwapSettings,
    /// Bytes in use at which it is looked how much can be had; [`u64::MAX`] for never.
    look_at: u64,
}

impl Edge {
    /// Of a heap with these settings; `is_wanted` says whether its mode can swap at all.
    pub(crate) fn new(settings: SwapSettings, is_wanted: bool) -> Edge {
        let is_watched = is_wanted && !settings.is_off && settings.gpu_budget.is_none();
        Edge { settings, look_at: if is_watched { 0 } else { u64::MAX } }
    }

    pub(crate) fn settings(&self) -> SwapSettings {
        self.settings
    }

    /// True if it is time to look, with so many bytes in use.
    #[inline]
    pub(crate) fn is_due(&self, in_use: u64) -> bool {
        in_use > self.look_at
    }

    /// With `in_use` bytes of `obtainable`: true if swapping begins, and otherwise it is said when to look again.
    pub(crate) fn look(&mut self, in_use: u64, obtainable: u64) -> bool {
        if in_use > obtainable / WATCHED_PART {
            self.look_at = u64::MAX;
            return true;
        }
        // Others may take what is free meanwhile: so not only at the half of what is free now.
        self.look_at = in_use.saturating_add(obtainable / LOOKS).min(obtainable / WATCHED_PART);
        false
    }

    /// Looks anew: what can be had was changed by the program.
    pub(crate) fn look_again(&mut self) {
        if self.look_at != u64::MAX {
            self.look_at = 0;
        }
    }
}

/// Bytes in use from which on memory of the host is pinned.
pub(super) fn pin_at(obtainable: u64) -> u64 {
    obtainable - obtainable / PINNED_PART
}

impl Swap {
    /// Where there is no budget: asks for hooks as long as there are none, and has memory pinned before it is needed.
    pub(super) fn watch_edge(&mut self, in_use: u64) {
        if !attention::has_hooks() {
            self.until_asked -= 1;
            if self.until_asked == 0 {
                // The program's own hooks may be in the way for long.
                self.ask_every = (2 * self.ask_every).min(1024);
                self.until_asked = self.ask_every;
                attention::call();
            }
        }
        if in_use > self.pin_at {
            self.pin_at = u64::MAX;
            self.host.hold_ready(READY);
            self.host.pin_ahead();
        }
    }

    /// A request was refused. What can be had is known now, and is the room from now on, until it is less.
    #[cold]
    pub(super) fn note_full(&mut self, state: &mut State) {
        if !self.is_edge || self.table.len() == 0 {
            return;
        }
        let room = settings::room(state.obtainable());
        // A little less, for others come and go, is not worth new schedules.
        if room.saturating_add(room / LITTLE) < self.room {
            self.room = room;
            self.steps.set_room(room);
            self.host.hold_ready(super::host::AHEAD);
        }
    }

    /// The program has said that more or less may be held: so much, with a budget.
    pub(crate) fn look_again(&mut self, limit: Option<u64>) {
        let room = limit.filter(|_| !self.is_edge).map_or(u64::MAX, settings::room);
        if room != self.room {
            self.room = room;
            self.steps.set_room(room);
        }
    }

    /// A request was served that would have been refused: the first time, the user is told.
    #[cold]
    pub(super) fn note_averted(&mut self, state: &mut State) {
        self.counts.averted += 1;
        if !self.is_edge || self.counts.averted > 1 {
            return;
        }
        state.warn(format!(
            "device {}: the GPU's memory was full: {} went to the host, and more \
             will where it is full again. Steps may take longer for it; girih.stats() says what goes. \
             A smaller batch needs no copies; --option swap=off ends in out of memory instead.",
            state.ordinal,
            what_went(self.counts.bytes_out, self.counts.states_out),
        ));
        attention::call();
    }
}

/// Names what has gone, of which so many bytes were states of optimizers.
fn what_went(bytes: u64, of_states: u64) -> String {
    match (bytes.saturating_sub(of_states), of_states) {
        (saved, 0) => format!("{} of saved tensors", short(saved)),
        (0, states) => format!("{} of optimizer states", short(states)),
        (saved, states) => {
            format!("{} of saved tensors and {} of optimizer states", short(saved), short(states))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn what_went_is_told_by_what_it_was() {
        assert_eq!(what_went(3 * GIB, 0), "3.00 GiB of saved tensors");
        assert_eq!(what_went(GIB, GIB), "1.00 GiB of optimizer states");
        assert_eq!(
            what_went(3 * GIB, GIB),
            "2.00 GiB of saved tensors and 1.00 GiB of optimizer states"
        );
    }

    #[test]
    fn records_begin_at_a_half_and_the_driver_is_asked_a_few_times() {
        let mut edge = Edge::new(SwapSettings::default(), true);
        let mut looks = Vec::new();
        for gib in 1..=80 {
            if edge.is_due(gib * GIB) {
                looks.push(gib);
                if edge.look(gib * GIB, 80 * GIB) {
                    break;
                }
            }
        }
        assert_eq!(looks.last(), Some(&41), "{looks:?}");
        assert!(looks.len() <= 10, "{looks:?}");
        assert!(!edge.is_due(80 * GIB), "it is watched already");
    }

    #[test]
    fn what_others_take_of_the_device_brings_the_edge_nearer() {
        let mut edge = Edge::new(SwapSettings::default(), true);
        assert!(!edge.look(10 * GIB, 80 * GIB));
        assert!(edge.is_due(16 * GIB));
        assert!(edge.look(16 * GIB, 30 * GIB), "another process has taken 50 GiB");
    }

    #[test]
    fn nothing_is_watched_where_nothing_shall_go() {
        let off = SwapSettings { is_off: true, ..SwapSettings::default() };
        let budget = SwapSettings { gpu_budget: Some(GIB), ..SwapSettings::default() };
        for mut edge in [Edge::new(off, true), Edge::new(budget, true), Edge::new(budget, false)] {
            edge.look_again();
            assert!(!edge.is_due(u64::MAX));
        }
    }
}
