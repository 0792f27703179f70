//! Small ids for the streams and pools of one trace.

use std::collections::HashMap;
use std::hash::Hash;

/// Numbers values in the order in which they appear, after a first one that is always there.
pub(super) struct Ids<K> {
    values: Vec<K>,
    last: (K, u16),
    known: HashMap<K, u16>,
}

impl<K: Copy + Eq + Hash> Ids<K> {
    /// With `first` as number 0.
    pub(super) fn new(first: K) -> Self {
        Ids { values: vec![first], last: (first, 0), known: HashMap::from([(first, 0)]) }
    }

    /// The number of a value; none if there are 65536 others already.
    #[inline]
    pub(super) fn id(&mut self, value: K) -> Option<u16> {
        if self.last.0 != value {
            self.last = (value, self.look_up(value)?);
        }
        Some(self.last.1)
    }

    fn look_up(&mut self, value: K) -> Option<u16> {
        if let Some(&id) = self.known.get(&value) {
            return Some(id);
        }
        let id = u16::try_from(self.values.len()).ok()?;
        self.values.push(value);
        self.known.insert(value, id);
        Some(id)
    }

    /// The values, by number.
    pub(super) fn into_values(self) -> Vec<K> {
        self.values
    }
}
