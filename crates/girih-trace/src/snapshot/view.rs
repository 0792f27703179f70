//! Typed access to what the pickle built, within a budget.

use std::cell::Cell;

use super::entry::{Entry, PairId};
use super::error::ReadError;
use super::stacks::Seen;
use super::words;
use crate::pickle::{DictKind, ENTRY_BYTES, Heap, Items, Loaded, Pairs, Text, Value};

/// Items that are always allowed: small files may repeat themselves.
const FLOOR_ITEMS: u64 = 1 << 16;
/// Text that is always allowed, and text for each byte of the pickle. Frames share their file
/// names by reference, and so may have more text than the file has bytes.
const FLOOR_TEXT: u64 = 64 << 20;
const TEXT_PER_BYTE: u64 = 16;

/// A pickle's heap, seen as dicts and lists of known types.
///
/// Objects may be shared: the same list of blocks may be in a million segments. Each object of its
/// own takes bytes of the file, so that only sharing can make the items that are visited more than
/// the bytes that were read; the budget stops that. Nor may they become more than the memory that is
/// allowed for the compressed bytes: an entry that is visited becomes an event.
pub(super) struct View<'a> {
    heap: &'a Heap<Entry>,
    bytes: u64,
    items_left: Cell<u64>,
    text_left: Cell<u64>,
    /// The stacks that lists became, and the frames that dicts did.
    pub(super) lists_seen: Seen,
    pub(super) frames_seen: Seen,
}

impl<'a> View<'a> {
    pub(super) fn new(loaded: &'a Loaded<Entry>) -> Self {
        View {
            heap: &loaded.heap,
            bytes: loaded.bytes,
            items_left: Cell::new(loaded.bytes.min(loaded.memory_max / ENTRY_BYTES) + FLOOR_ITEMS),
            text_left: Cell::new(
                loaded.bytes.saturating_mul(TEXT_PER_BYTE).min(loaded.memory_max) + FLOOR_TEXT,
            ),
            lists_seen: Seen::new(loaded.heap.lists.distinct()),
            frames_seen: Seen::new(loaded.heap.dicts.len()),
        }
    }

    /// Pays for visiting `count` items.
    pub(super) fn spend(&self, count: usize) -> Result<(), ReadError> {
        self.pay(&self.items_left, count)
    }

    /// Pays for keeping a text of `count` bytes.
    pub(super) fn spend_text(&self, count: usize) -> Result<(), ReadError> {
        self.pay(&self.text_left, count)
    }

    fn pay(&self, left: &Cell<u64>, count: usize) -> Result<(), ReadError> {
        match left.get().checked_sub(count as u64) {
            Some(rest) => left.set(rest),
            None => return Err(ReadError::Unfolds { bytes: self.bytes }),
        }
        Ok(())
    }

    /// The items of a list or tuple; pays for them.
    pub(super) fn items(&self, value: Option<Value>) -> Result<Option<&'a [Value]>, ReadError> {
        let list = value.and_then(Value::as_list).map(|list| self.heap.lists.get(list));
        let tuple = value.and_then(Value::as_tuple);
        let tuple = tuple.map(|tuple| &self.heap.tuples[tuple as usize][..]);
        let Some(items) = list.or(tuple) else { return Ok(None) };
        self.spend(items.len())?;
        Ok(Some(items))
    }

    /// Where the items of the heap's list of that index lie.
    #[inline]
    pub(super) fn items_of(&self, list: u32) -> Items {
        self.heap.lists.items_of(list)
    }

    /// The items of the heap's list of that index; pays for them.
    pub(super) fn list(&self, list: u32) -> Result<&'a [Value], ReadError> {
        let items = self.heap.lists.get(list);
        self.spend(items.len())?;
        Ok(items)
    }

    /// A dict that is no record; pays for its pairs.
    pub(super) fn dict(&self, value: Value) -> Result<Option<Fields<'a>>, ReadError> {
        let Some(dict) = value.as_dict() else { return Ok(None) };
        let items = match self.heap.dicts[dict as usize].kind() {
            DictKind::Empty => &[][..],
            DictKind::Items(items) => &self.heap.items[items],
            DictKind::Record(_) => return Ok(None),
        };
        self.spend(items.len())?;
        Ok(Some(Fields { items, pairs: &self.heap.pairs }))
    }

    /// The record that a dict was reduced to, by its index.
    #[inline]
    pub(super) fn record(&self, value: Value) -> Option<usize> {
        self.heap.dicts[value.as_dict()? as usize].as_record()
    }

    /// A string of the heap.
    pub(super) fn text(&self, text: Text) -> &'a str {
        self.heap.text(text)
    }

    /// A value as a string, if it is one.
    pub(super) fn as_text(&self, value: Option<Value>) -> Option<&'a str> {
        value.and_then(Value::as_text).map(|text| self.heap.text(text))
    }

    /// A tuple of two integers.
    pub(super) fn pair(&self, pair: PairId) -> (u64, u64) {
        self.heap.pairs.get(pair.get())
    }
}

/// The keys and values of a dict.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    items: &'a [(Value, Value)],
    pairs: &'a Pairs,
}

impl Fields<'_> {
    /// The value of a key: the last one, if it was set twice.
    pub(super) fn get(&self, key: Text) -> Option<Value> {
        let wanted = Value::text(key);
        self.items.iter().rev().find(|(key, _)| *key == wanted).map(|(_, value)| *value)
    }

    /// An integer that must be there. `place` says where, for the error.
    pub(super) fn number(&self, key: Text, place: &dyn Place) -> Result<u64, ReadError> {
        self.number_or(key, None, place)
    }

    /// An integer, or `missing` if the key is not there.
    pub(super) fn number_or(
        &self,
        key: Text,
        missing: Option<u64>,
        place: &dyn Place,
    ) -> Result<u64, ReadError> {
        let name = words::name(key);
        match self.get(key) {
            Some(value) => value.as_u64().ok_or_else(|| {
                let found = value.type_name();
                place.error(format!("`{name}` is {found}, wanted an integer of 0 .. 2^64"))
            }),
            None => missing.ok_or_else(|| place.error(format!("has no `{name}`"))),
        }
    }

    /// A pool id: a pair, or (0, 0) where it is not there.
    pub(super) fn pool(&self, key: Text, place: &dyn Place) -> Result<(u64, u64), ReadError> {
        let Some(value) = self.get(key) else { return Ok((0, 0)) };
        value.as_pair().map(|pair| self.pairs.get(pair)).ok_or_else(|| {
            let (name, found) = (words::name(key), value.type_name());
            place.error(format!("`{name}` is {found}, wanted a tuple of two integers"))
        })
    }
}

/// Where something stands in the snapshot; made into words only for an error.
pub(super) trait Place {
    /// The words, as `device 0, entry 17`.
    fn describe(&self) -> String;

    /// An error at this place.
    fn error(&self, problem: String) -> ReadError {
        ReadError::Shape { place: self.describe(), problem }
    }
}

impl<F: Fn() -> String> Place for F {
    fn describe(&self) -> String {
        self()
    }
}
