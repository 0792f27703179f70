//! The objects that a pickle builds.

use std::collections::HashMap;

use rustc_hash::FxHashMap;

use super::Record;
use super::lists::Lists;
use super::value::{Text, Value};

/// A dict in 4 bytes: nothing yet, its pairs, or the record that it was reduced to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dict(u32);

/// What a [`Dict`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DictKind {
    /// Nothing was set yet.
    Empty,
    /// An index into [`Heap::items`].
    Items(usize),
    /// An index into [`Heap::records`].
    Record(usize),
}

impl Dict {
    pub(super) const EMPTY: Dict = Dict(u32::MAX);
    const RECORD: u32 = 1 << 31;

    /// Dicts are numbered by 32 bits; one bit more is needed here, and lost there.
    pub(super) const MAX: usize = 1 << 31;

    fn items(index: usize) -> Dict {
        Dict(index as u32)
    }

    pub(super) fn record(index: usize) -> Dict {
        Dict(index as u32 | Dict::RECORD)
    }

    /// Its index among the records, if it is one.
    #[inline]
    pub(crate) fn as_record(self) -> Option<usize> {
        match self.kind() {
            DictKind::Record(index) => Some(index),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn kind(self) -> DictKind {
        match self {
            Dict(u32::MAX) => DictKind::Empty,
            Dict(index) if index & Dict::RECORD == 0 => DictKind::Items(index as usize),
            Dict(index) => DictKind::Record((index & !Dict::RECORD) as usize),
        }
    }
}

/// Every object that a pickle built.
pub(crate) struct Heap<F> {
    pub(crate) lists: Lists,
    pub(crate) tuples: Vec<Box<[Value]>>,
    /// The distinct tuples of two integers.
    pub(crate) pairs: Pairs,
    pub(crate) dicts: Vec<Dict>,
    /// The keys and values of dicts that are no records, in the order in which they were set.
    pub(crate) items: Vec<Vec<(Value, Value)>>,
    pub(crate) records: Vec<F>,
    /// Values in tuples and in dicts that are no records.
    stored: u64,
    /// All strings after the words, one behind the other, and where each ends.
    text: String,
    text_ends: Vec<usize>,
    words: FxHashMap<&'static [u8], Text>,
    /// The string that was added last, word or not: newer releases of torch write the same one (`N/A`) into
    /// every entry, each time anew.
    last_text: Option<Text>,
}

impl<F: Record> Heap<F> {
    pub(super) fn new() -> Self {
        let words = F::WORDS.iter().zip(0..).map(|(word, id)| (word.as_bytes(), Text(id)));
        Heap {
            lists: Lists::new(),
            tuples: Vec::new(),
            pairs: Pairs::default(),
            dicts: Vec::new(),
            items: Vec::new(),
            records: Vec::new(),
            stored: 0,
            text: String::new(),
            text_ends: Vec::new(),
            words: words.collect(),
            last_text: None,
        }
    }

    /// The id of a string: that of the word if it is one, a new one if not. Bytes that are not
    /// UTF-8 (Python's lone surrogates) are replaced.
    pub(super) fn add_text(&mut self, bytes: &[u8]) -> Text {
        if let Some(known) = self.known_text(bytes) {
            return known;
        }
        let text = match self.words.get(bytes) {
            Some(&word) => word,
            None => {
                self.text.push_str(&String::from_utf8_lossy(bytes));
                self.text_ends.push(self.text.len());
                Text((F::WORDS.len() + self.text_ends.len() - 1) as u32)
            }
        };
        self.last_text = Some(text);
        text
    }

    /// The id of a string that is the same as the one before it.
    #[inline]
    pub(super) fn known_text(&self, bytes: &[u8]) -> Option<Text> {
        self.last_text.filter(|&last| self.text(last).as_bytes() == bytes)
    }

    /// How many strings there are.
    pub(super) fn text_count(&self) -> usize {
        F::WORDS.len() + self.text_ends.len()
    }

    /// The string of that id.
    #[inline]
    pub(crate) fn text(&self, text: Text) -> &str {
        let index = text.0 as usize;
        let Some(index) = index.checked_sub(F::WORDS.len()) else { return F::WORDS[index] };
        let start = if index == 0 { 0 } else { self.text_ends[index - 1] };
        &self.text[start..self.text_ends[index]]
    }

    /// The list that would be added next, if it can be numbered.
    #[inline]
    pub(super) fn next_list(&self) -> Option<Value> {
        let id = self.lists.len();
        (id < Dict::MAX).then(|| Value::list(id as u32))
    }

    /// Adds a dict that is a record already.
    #[inline]
    pub(super) fn add_record(&mut self, record: F) {
        self.dicts.push(Dict::record(self.records.len()));
        self.records.push(record);
    }

    /// Adds a tuple.
    pub(super) fn add_tuple(&mut self, items: &[Value]) {
        self.stored += items.len() as u64;
        self.tuples.push(items.into());
    }

    /// Bytes that all of it takes, about.
    pub(super) fn weight(&self) -> u64 {
        let dicts = self.dicts.len() * size_of::<Dict>()
            + self.items.len() * size_of::<Vec<(Value, Value)>>()
            + self.records.len() * size_of::<F>();
        let tuples = self.tuples.len() * size_of::<Box<[Value]>>() + self.pairs.weight();
        let texts = self.text.len() + self.text_ends.len() * size_of::<usize>();
        let values = self.stored.saturating_mul(size_of::<Value>() as u64);
        self.lists.weight() + (dicts + tuples + texts) as u64 + values
    }

    /// Sets `items` (key, value, key, value, ..) in a dict. Reduces it to a record as soon as it
    /// has the key for that.
    pub(super) fn set_items(&mut self, dict: u32, items: &[Value]) {
        let becomes_record = || items.iter().step_by(2).any(|&key| key.as_text() == Some(F::KEY));
        let pairs = items.as_chunks::<2>().0.iter().map(|&[key, value]| (key, value));
        match self.dicts[dict as usize].kind() {
            DictKind::Record(record) => {
                set_all(&mut self.records[record], pairs);
            }
            DictKind::Items(known) if !becomes_record() => {
                self.stored += items.len() as u64;
                self.items[known].extend(pairs);
            }
            DictKind::Empty if !becomes_record() => {
                self.stored += items.len() as u64;
                self.dicts[dict as usize] = Dict::items(self.items.len());
                self.items.push(pairs.collect());
            }
            kind => {
                let known = match kind {
                    DictKind::Items(index) => std::mem::take(&mut self.items[index]),
                    _ => Vec::new(),
                };
                let mut record = F::default();
                set_all(&mut record, known.into_iter().chain(pairs));
                self.dicts[dict as usize] = Dict::record(self.records.len());
                self.records.push(record);
            }
        }
    }
}

fn set_all(record: &mut impl Record, items: impl Iterator<Item = (Value, Value)>) {
    for (key, value) in items {
        record.set(key.as_text().unwrap_or(Text::NONE), value);
    }
}

/// The distinct tuples of two integers: a snapshot has a pool id in each entry, and few pools.
#[derive(Default)]
pub(crate) struct Pairs {
    values: Vec<(u64, u64)>,
    last: Option<((u64, u64), u32)>,
    known: HashMap<(u64, u64), u32>,
}

impl Pairs {
    /// The number of a pair. std's map, with its random keys: the pairs come from the file.
    pub(super) fn id(&mut self, pair: (u64, u64)) -> u32 {
        match self.last {
            Some((last, id)) if last == pair => id,
            _ => {
                let next = self.values.len() as u32;
                let id = *self.known.entry(pair).or_insert(next);
                if id == next {
                    self.values.push(pair);
                }
                self.last = Some((pair, id));
                id
            }
        }
    }

    /// Bytes that they take, about: each is in the list and in the map.
    fn weight(&self) -> usize {
        self.values.len() * 3 * size_of::<(u64, u64)>()
    }

    /// The pair of that number.
    pub(crate) fn get(&self, id: u32) -> (u64, u64) {
        self.values[id as usize]
    }
}
