//! The record that a trace entry's dict is reduced to while the pickle is read.

use std::num::NonZeroU32;

use super::words::{self, WORDS};
use crate::event::Action;
use crate::pickle::{Record, Text, Value};

/// A trace entry: a dict with the key `action`. It does not know yet whether it stands in a trace;
/// what is wrong with it is kept in `bad` and becomes an error only if it does. 48 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// `addr`, or `device_free` of an `oom`.
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) stream: u64,
    pub(super) time_us: i64,
    /// `pool_id`, by its number among the pairs on the heap; none before torch 2.12.
    pub(super) pool: Option<PairId>,
    /// The list `frames`, if there was one.
    pub(super) frames: Option<FrameList>,
    /// `user_metadata`, if it is a string; [`words::EMPTY`] if not. For an action that is not
    /// known, its name.
    pub(super) text: Text,
    /// The action, if it is one that this version knows.
    pub(super) action: Option<Action>,
    /// The last key whose value was of a wrong type.
    pub(super) bad: Option<BadKey>,
    /// Which of [`HAS_ACTION`] and its like hold.
    has: u8,
}

const HAS_ACTION: u8 = 1;
const HAS_ADDRESS: u8 = 2;
const HAS_SIZE: u8 = 4;
const HAS_UNKNOWN_KEY: u8 = 8;

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
            frames: None,
            text: words::EMPTY,
            action: None,
            bad: None,
            has: 0,
        }
    }
}

impl Entry {
    /// True if a key is none that this version knows.
    pub(super) fn has_unknown_key(&self) -> bool {
        self.has & HAS_UNKNOWN_KEY != 0
    }

    /// What makes it unfit for a trace, if anything does.
    #[inline]
    pub(super) fn problem(&self) -> Option<String> {
        let Some(action) = self.action else {
            // An action that is not known has keys of its own.
            return (self.bad == Some(BadKey::Action)).then(|| self.describe_problem());
        };
        let needed = match action {
            Action::Oom | Action::Snapshot => HAS_SIZE,
            _ => HAS_SIZE | HAS_ADDRESS,
        };
        let ends = action == Action::Oom || self.address.checked_add(self.size).is_some();
        if self.bad.is_none() && self.has & needed == needed && ends {
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
        match (self.has & HAS_SIZE != 0, self.has & HAS_ADDRESS != 0) {
            (false, _) => "has no `size`".to_owned(),
            (true, false) => "has no `addr`".to_owned(),
            _ => format!("`size` {} reaches beyond the last address", self.size),
        }
    }

    #[inline]
    fn set_action(&mut self, value: Value) {
        let Some(name) = value.as_text() else {
            self.bad = Some(BadKey::Action);
            return;
        };
        // The first words are the actions, by their codes.
        self.action = Action::ALL.get(name.0 as usize).copied();
        self.has |= HAS_ACTION;
        if self.action.is_none() {
            self.text = name;
        }
    }

    #[inline]
    fn set_metadata(&mut self, value: Value) {
        let names_action = self.has & HAS_ACTION != 0 && self.action.is_none();
        if !names_action {
            self.text = value.as_text().unwrap_or(words::EMPTY);
        }
    }
}

impl Record for Entry {
    const WORDS: &'static [&'static str] = WORDS;
    const KEY: Text = words::ACTION;

    #[inline]
    fn set(&mut self, key: Text, value: Value) {
        match key {
            words::ACTION => self.set_action(value),
            // An `oom` has `device_free` and no `addr`; nothing else has it.
            words::ADDR | words::DEVICE_FREE => {
                self.has |= HAS_ADDRESS;
                set(&mut self.address, value.as_u64(), &mut self.bad, BadKey::Addr);
            }
            words::SIZE => {
                self.has |= HAS_SIZE;
                set(&mut self.size, value.as_u64(), &mut self.bad, BadKey::Size);
            }
            words::STREAM => set(&mut self.stream, value.as_u64(), &mut self.bad, BadKey::Stream),
            words::TIME_US => {
                set(&mut self.time_us, value.as_i64(), &mut self.bad, BadKey::TimeUs);
            }
            words::USER_METADATA => self.set_metadata(value),
            words::FRAMES => self.frames = value.as_list().and_then(FrameList::new),
            words::POOL_ID => {
                let pair = value.as_pair().and_then(PairId::new).map(Some);
                set(&mut self.pool, pair, &mut self.bad, BadKey::PoolId);
            }
            words::COMPILE_CONTEXT | words::FORWARD_FRAMES | words::INTERNAL_METADATA => {}
            _ => self.has |= HAS_UNKNOWN_KEY,
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
