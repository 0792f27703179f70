//! The streams of a program, and what it owes them.
//!
//! A scenario names three streams. One that is destroyed is replaced: the program goes on with another under the
//! same name.

use girih_trace::StreamId;

/// Streams by the names that a scenario has for them.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// Streams that have taken the place of others: the name, and who has it now.
    replaced: Vec<(StreamId, StreamId)>,
    /// The second is yet to come after the first.
    owed: Vec<(StreamId, StreamId)>,
}

/// Streams that scenarios name.
const NAMES: u16 = 8;

impl Streams {
    /// The stream that has a name now.
    pub(super) fn now(&self, name: StreamId) -> StreamId {
        let found = self.replaced.iter().rfind(|(known, _)| *known == name);
        found.map_or(name, |&(_, stream)| stream)
    }

    /// Another stream has the name from now on.
    pub(super) fn replace(&mut self, name: StreamId) {
        let next = StreamId(NAMES + self.replaced.len() as u16);
        self.replaced.push((name, next));
    }

    /// The highest id of a stream.
    pub(super) fn newest(&self) -> StreamId {
        self.replaced.last().map_or(StreamId(0), |&(_, stream)| stream)
    }

    /// `after` has to come after the present work of `before` before it is given more.
    pub(super) fn owe(&mut self, before: StreamId, after: StreamId) {
        self.owed.push((before, after));
    }

    /// What is owed and asked for, once.
    pub(super) fn take_orders(
        &mut self,
        wanted: impl Fn(&(StreamId, StreamId)) -> bool,
    ) -> Vec<(StreamId, StreamId)> {
        let (taken, left) = std::mem::take(&mut self.owed).into_iter().partition(wanted);
        self.owed = left;
        taken
    }
}
