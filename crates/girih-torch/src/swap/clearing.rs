//! How often the host waits for the device so that what is free can be laid out anew.
//!
//! A request is refused although no more would be in use than may be: what is free lies in pieces, of which the ends are
//! no use. Then tensors go, for which nobody waits. But where every step asks for the same, the same requests are refused
//! in each of them, and as many tensors go and come that would not have to. Once all that is free has gone back to the
//! device, which takes as long as the work that is queued, it is laid out as the requests come. In a program whose steps
//! differ that lasts no longer than a step. So it is done now and then: each time that it turns out to have been no use
//! soon afterwards, it is put off for twice as many steps.
//!
//! Never in the first step of a run, and never while steps are laid out: all that is free would be laid out as the
//! requests of one step come, and the places that all of them have would be gone.

/// Steps at most for which it is put off.
const STEPS_MAX: u64 = 1 << 10;

/// When all that is free goes back to the device for a request that is refused otherwise.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clearing {
    /// The number of the step that runs.
    step: u64,
    /// Not before this one, and the steps between that one and the last.
    next: u64,
    gap: u64,
}

impl Default for Clearing {
    fn default() -> Clearing {
        Clearing { step: 0, next: 1, gap: 1 }
    }
}

impl Clearing {
    pub(super) fn end_step(&mut self) {
        self.step += 1;
    }

    /// A request was refused: true if it is done now.
    pub(super) fn is_due(&mut self) -> bool {
        if self.step < self.next {
            return false;
        }
        let is_soon = self.step < self.next + self.gap;
        self.gap = if is_soon { (2 * self.gap).min(STEPS_MAX) } else { 1 };
        self.next = self.step + self.gap;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps of so many in which it is done, if requests are refused in those that `refused` names.
    fn done(steps: u64, refused: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut clearing = Clearing::default();
        let each = (0..steps).filter(|&step| {
            // Several in each.
            let is_done = refused(step) && clearing.is_due();
            assert!(!(is_done && clearing.is_due()), "once in a step");
            clearing.end_step();
            is_done
        });
        each.collect()
    }

    #[test]
    fn where_every_step_is_refused_something_it_is_done_ever_less_often() {
        assert_eq!(done(1000, |_| true), [1, 3, 7, 15, 31, 63, 127, 255, 511]);
        let last: Vec<u64> = done(10_000, |_| true).into_iter().rev().take(3).collect();
        assert_eq!((last[0] - last[1], last[1] - last[2]), (STEPS_MAX, STEPS_MAX));
    }

    #[test]
    fn after_steps_without_a_refusal_it_is_done_at_once() {
        assert_eq!(
            done(1000, |step| step % 100 == 5),
            (0..10).map(|at| 100 * at + 5).collect::<Vec<_>>()
        );
        assert!(done(3, |step| step == 0).is_empty(), "never in the first step");
    }
}
