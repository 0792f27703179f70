//! Marks that come before a heap does.
//!
//! ```text
//!  mark step ── mark forward ── first request ─► heap ◄─ step, forward, the request
//!      └────────────┴─► kept
//! ```
//!
//! A program marks a step before it asks for the step's first memory, and a device has no heap
//! before its first request. So the marks of the present iteration are kept for the heaps that are
//! made in it. Those of earlier iterations are forgotten: to a heap they would be iterations in
//! which nothing was asked for.

use girih_trace::MarkKind;

/// Marks that are kept at most, and bytes of their names.
const MOST: usize = 256;
const NAMES_MAX: usize = 1 << 16;

/// The marks since the present iteration began.
pub(crate) struct EarlyMarks {
    marks: Vec<(MarkKind, String)>,
}

impl EarlyMarks {
    /// No marks.
    pub(crate) const fn new() -> EarlyMarks {
        EarlyMarks { marks: Vec::new() }
    }

    /// Keeps a mark. If there are too many, the one goes that came after the first, which says
    /// where the iteration began.
    pub(crate) fn add(&mut self, kind: MarkKind, name: &str) {
        let begins = match kind {
            MarkKind::Step => true,
            // Where no steps are marked, the optimizer's are the iterations.
            MarkKind::Optimizer => self.marks.first().is_none_or(|first| first.0 != MarkKind::Step),
            _ => false,
        };
        if begins {
            self.marks.clear();
        }
        // A name that is too long says nothing: the kind does.
        let name = if name.len() > NAMES_MAX / 2 { "" } else { name };
        let mut bytes = name.len() + self.marks.iter().map(|(_, name)| name.len()).sum::<usize>();
        while self.marks.len() > 1 && (self.marks.len() >= MOST || bytes > NAMES_MAX) {
            bytes -= self.marks.remove(1).1.len();
        }
        self.marks.push((kind, name.to_owned()));
    }

    /// What is kept, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (MarkKind, &str)> {
        self.marks.iter().map(|(kind, name)| (*kind, name.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(marks: &[(MarkKind, &str)]) -> Vec<(MarkKind, String)> {
        let mut early = EarlyMarks::new();
        marks.iter().for_each(|&(kind, name)| early.add(kind, name));
        early.iter().map(|(kind, name)| (kind, name.to_owned())).collect()
    }

    #[test]
    fn the_marks_of_the_present_step_are_kept_and_those_of_the_step_before_are_not() {
        use MarkKind::{Forward, Optimizer, Other, Step};
        let marks = [(Other, "built"), (Step, "0"), (Optimizer, ""), (Step, "1"), (Forward, "")];
        assert_eq!(kept(&marks), [(Step, "1".to_owned()), (Forward, String::new())]);
        let marks = [(Step, "0"), (Forward, ""), (Optimizer, "")];
        assert_eq!(kept(&marks).len(), 3, "the optimizer is a part of a step");
        let marks = [(Optimizer, "0"), (Forward, ""), (Optimizer, "1")];
        assert_eq!(kept(&marks), [(Optimizer, "1".to_owned())]);
    }

    #[test]
    fn of_too_many_marks_the_first_and_the_latest_are_kept() {
        let mut marks = vec![(MarkKind::Step, "7")];
        marks.resize(2 * MOST, (MarkKind::ForwardIn, "layer"));
        marks.push((MarkKind::Backward, ""));
        let kept = kept(&marks);
        assert_eq!(kept.len(), MOST);
        assert_eq!((kept[0].0, kept[MOST - 1].0), (MarkKind::Step, MarkKind::Backward));
    }

    #[test]
    fn long_names_are_no_reason_to_keep_more() {
        let name = "n".repeat(1 << 14);
        let mut marks = vec![(MarkKind::Step, "7")];
        marks.resize(100, (MarkKind::ForwardIn, name.as_str()));
        let endless = "n".repeat(NAMES_MAX);
        marks.push((MarkKind::Backward, &endless));
        let kept = kept(&marks);
        assert!(kept.iter().map(|(_, name)| name.len()).sum::<usize>() <= NAMES_MAX);
        assert_eq!((kept[0].0, kept.last().unwrap().0), (MarkKind::Step, MarkKind::Backward));
    }
}
