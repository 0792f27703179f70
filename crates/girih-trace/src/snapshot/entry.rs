//! The record that a trace entry's dict is reduced to while the pickle is read.

use std::num::NonZeroU32;

use super::words::{self, WORDS};
use crate::event::Action;
use crate::pickle::{Record, Text, Value};

/// A trace entry: a dict with the key `action`. It does not know yet whether it stands in a trace;
/// what is wrong with it is kept in `bad` and becomes an error only if it does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// `addr`, or `device_free` of an `oom`.
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) stream: u64,
    pub(super) time_us: i64,
    /// `pool_id`, by its number among the pairs on the heap; none before torch 2.12.
    pub(super) pool: Option<PairId>,
    pub(super) action: Text,
    /// The list `frames`, if there was one.
    pub(super) frames: Option<FrameList>,
    /// `user_metadata`, if it is a string; [`words::EMPTY`] if not.
    pub(super) metadata: Text,
    pub(super) has_address: bool,
    pub(super) has_size: bool,
    /// True if a key is none that this version knows.
    pub(super) has_unknown_key: bool,
    /// The last key whose value was of a wrong type.
    pub(super) bad: Option<BadKey>,
}

/// An index into the heap. Kept plus one, so that an option of it costs nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct HeapIndex(NonZeroU32);

/// A list of frames.
pub(super) type FrameList = HeapIndex;
/// A tuple of two integers.
pub(super) type PairId = HeapIndex;

impl HeapIndex {
    pub(super) fn new(index: u32) -> Option<Self> {
        index.checked_add(1).and_then(NonZeroU32::new).map(HeapIndex)
    }

    pub(super) fn get(self) -> u32 {
        self.0.get() - 1
    }
}

/// A key with a value of a wrong type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BadKey {
    Action,
    Addr,
    Size,
    Stream,
    TimeUs,
    PoolId,
}

impl BadKey {
    /// The key, and what was wanted.
    pub(super) fn wanted(self) -> (&'static str, &'static str) {
        match self {
            BadKey::Action => ("action", "a string"),
            BadKey::Addr => ("addr", "an integer of 0 .. 2^64"),
            BadKey::Size => ("size", "an integer of 0 .. 2^64"),
            BadKey::Stream => ("stream", "an integer of 0 .. 2^64"),
            BadKey::TimeUs => ("time_us", "an integer of 64 bits"),
            BadKey::PoolId => ("pool_id", "a tuple of two integers of 0 .. 2^64"),
        }
    }
}

impl Default for Entry {
    fn default() -> Self {
        Entry {
            address: 0,
            size: 0,
            stream: 0,
            time_us: 0,
            pool: None,
            action: words::EMPTY,
            frames: None,
            metadata: words::EMPTY,
            has_address: false,
            has_size: false,
            has_unknown_key: false,
            bad: None,
        }
    }
}

impl Entry {
    /// The action, if it is one that this version knows.
    pub(super) fn known_action(&self) -> Option<Action> {
        Action::ALL.get(self.action.0 as usize).copied()
    }

    /// What makes it unfit for a trace, if anything does.
    #[inline]
    pub(super) fn problem(&self, action: Option<Action>) -> Option<String> {
        let Some(action) = action else {
            // An action that is not known has keys of its own.
            return (self.bad == Some(BadKey::Action)).then(|| self.describe_problem());
        };
        let has_address = self.has_address || matches!(action, Action::Oom | Action::Snapshot);
        let ends = action == Action::Oom || self.address.checked_add(self.size).is_some();
        if self.bad.is_none() && self.has_size && has_address && ends {
            return None;
        }
        Some(self.describe_problem())
    }

    #[cold]
    fn describe_problem(&self) -> String {
        if let Some(bad) = self.bad {
            let (key, wanted) = bad.wanted();
            return format!("`{key}` is not {wanted}");
        }
        match (self.has_size, self.has_address) {
            (false, _) => "has no `size`".to_owned(),
            (true, false) => "has no `addr`".to_owned(),
            _ => format!("`size` {} reaches beyond the last address", self.size),
        }
    }

    fn set_address(&mut self, value: Value) {
        self.has_address = true;
        set(&mut self.address, value.as_u64(), &mut self.bad, BadKey::Addr);
    }
}

impl Record for Entry {
    const WORDS: &'static [&'static str] = WORDS;
    const KEY: Text = words::ACTION;

    #[inline]
    fn set(&mut self, key: Value, value: Value) {
        // No key that is known has the id of the default.
        match key.as_text().unwrap_or(words::EMPTY) {
            words::ACTION => set(&mut self.action, value.as_text(), &mut self.bad, BadKey::Action),
            words::ADDR => self.set_address(value),
            // An `oom` has `device_free` and no `addr`; nothing else has it.
            words::DEVICE_FREE => self.set_address(value),
            words::SIZE => {
                self.has_size = true;
                set(&mut self.size, value.as_u64(), &mut self.bad, BadKey::Size);
            }
            words::STREAM => {
                set(&mut self.stream, value.as_u64(), &mut self.bad, BadKey::Stream);
            }
            words::TIME_US => {
                set(&mut self.time_us, value.as_i64(), &mut self.bad, BadKey::TimeUs);
            }
            words::USER_METADATA => {
                self.metadata = value.as_text().unwrap_or(words::EMPTY);
            }
            words::FRAMES => {
                self.frames = value.as_list().and_then(FrameList::new);
            }
            words::POOL_ID => {
                let pair = value.as_pair().and_then(PairId::new).map(Some);
                set(&mut self.pool, pair, &mut self.bad, BadKey::PoolId);
            }
            words::COMPILE_CONTEXT | words::FORWARD_FRAMES | words::INTERNAL_METADATA => {}
            _ => self.has_unknown_key = true,
        }
    }
}

/// Sets a field, or notes that its value was of a wrong type.
#[inline]
fn set<T>(field: &mut T, value: Option<T>, bad: &mut Option<BadKey>, key: BadKey) {
    match value {
        Some(value) => *field = value,
        None => *bad = Some(key),
    }
}
