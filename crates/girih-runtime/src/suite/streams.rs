//! The streams of a program, and what it owes them.
//!
//! A scenario names three streams of each device. One that is destroyed is replaced: the program goes on with
//! another under the same name.
//!
//! Each device has a policy with ids of its own for the streams of all devices, as a heap has: those of its
//! own device come first.

use girih_trace::StreamId;

/// Streams by the names that a scenario has for them.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// Streams that have taken the place of others: the name, and who has it now.
    replaced: Vec<(StreamId, StreamId)>,
    /// The second is yet to come after the first.
    owed: Vec<(StreamId, StreamId)>,
}

/// Names of the streams of one device; those of the next begin after them.
pub(super) const NAMES_OF_ONE: u16 = 4;
/// Streams that scenarios name.
const NAMES: u16 = 2 * NAMES_OF_ONE;

/// The device of a stream, by its name.
pub(super) fn device_of(name: StreamId) -> usize {
    usize::from(name.0 / NAMES_OF_ONE) % 2
}

/// The id that a stream has for the policy of a device, by its name; and by that id the name. What has taken
/// the place of another has the same everywhere.
pub(super) fn id_for(device: usize, stream: StreamId) -> StreamId {
    let is_name = stream.0 < NAMES;
    if is_name && device == 1 { StreamId(stream.0 ^ NAMES_OF_ONE) } else { stream }
}

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
