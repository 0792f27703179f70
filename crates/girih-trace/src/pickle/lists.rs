//! The lists that a pickle builds.
//!
//! Where stacks were recorded, each entry of a snapshot has a list of frames, and a training step has few
//! distinct ones: a million lists are some hundreds. So lists that are filled alike share their items, as
//! long as nothing is appended to them.

use std::hash::Hasher;

use rustc_hash::FxHasher;

use super::value::Value;

/// Where the items of a list lie: lists of the same [`Items`] have the same items.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Items(u32);

impl Items {
    /// Its number: below [`Lists::distinct`].
    pub(crate) fn get(self) -> u32 {
        self.0
    }
}

/// Bytes that are reckoned for an item: a trace entry becomes an event of as many.
pub(crate) const ENTRY_BYTES: u64 = 48;

/// Every list of a pickle.
pub(crate) struct Lists {
    lists: Vec<Items>,
    stored: Vec<Stored>,
    /// The items of all of `stored`.
    item_count: u64,
    /// The items that were stored last of those with that hash. One place for each: a file made for
    /// collisions has lists that are not shared, and nothing else.
    recent: Vec<Option<Items>>,
}

struct Stored {
    items: Vec<Value>,
    /// Another list may have them too: they must not change.
    is_shared: bool,
}

/// Places of [`Lists::recent`]: a few times the stacks that a program has where it allocates.
const RECENT: usize = 1 << 14;

impl Lists {
    pub(super) fn new() -> Lists {
        Lists { lists: Vec::new(), stored: Vec::new(), item_count: 0, recent: vec![None; RECENT] }
    }

    pub(super) fn len(&self) -> usize {
        self.lists.len()
    }

    /// How many there are of different [`Items`].
    pub(crate) fn distinct(&self) -> usize {
        self.stored.len()
    }

    /// Where the items of a list lie.
    #[inline]
    pub(crate) fn items_of(&self, list: u32) -> Items {
        self.lists[list as usize]
    }

    #[inline]
    pub(crate) fn get(&self, list: u32) -> &[Value] {
        &self.stored[self.items_of(list).0 as usize].items
    }

    /// Adds a list with these items.
    #[inline]
    pub(super) fn add(&mut self, items: &[Value]) {
        let place = place_of(items);
        let items = match self.recent[place] {
            Some(known) if self.stored[known.0 as usize].items == items => known,
            _ => {
                let new = self.store(items.to_vec(), true);
                self.recent[place] = Some(new);
                new
            }
        };
        self.lists.push(items);
    }

    /// Appends items to a list.
    pub(super) fn append(&mut self, list: u32, items: &[Value]) {
        self.own(list).extend_from_slice(items);
        self.item_count += items.len() as u64;
    }

    /// Bytes that they take, and what they become, about.
    pub(super) fn weight(&self) -> u64 {
        let places = self.lists.len() * size_of::<Items>();
        let stored = self.stored.len() * size_of::<Stored>();
        (places + stored) as u64 + self.item_count.saturating_mul(ENTRY_BYTES)
    }

    /// The items of a list that nothing else has, to append to.
    fn own(&mut self, list: u32) -> &mut Vec<Value> {
        let mut items = self.items_of(list);
        if self.stored[items.0 as usize].is_shared {
            let copy = self.stored[items.0 as usize].items.clone();
            items = self.store(copy, false);
            self.lists[list as usize] = items;
        }
        &mut self.stored[items.0 as usize].items
    }

    /// Lists are numbered by 31 bits, and each stores items at most twice: itself, and its own.
    fn store(&mut self, items: Vec<Value>, is_shared: bool) -> Items {
        let new = Items(self.stored.len() as u32);
        self.item_count += items.len() as u64;
        self.stored.push(Stored { items, is_shared });
        new
    }
}

fn place_of(items: &[Value]) -> usize {
    let mut hasher = FxHasher::default();
    for item in items {
        hasher.write_u64(item.bits());
    }
    hasher.finish() as usize % RECENT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(numbers: &[u64]) -> Vec<Value> {
        numbers.iter().map(|&number| Value::unsigned(number)).collect()
    }

    #[test]
    fn lists_that_are_filled_alike_share_and_one_that_grows_has_its_own() {
        let mut lists = Lists::new();
        for numbers in [&[1, 2][..], &[], &[1, 2], &[2, 1], &[]] {
            lists.add(&values(numbers));
        }
        assert_eq!((lists.len(), lists.distinct()), (5, 3));
        assert_eq!(lists.items_of(0), lists.items_of(2));
        lists.append(0, &values(&[3]));
        lists.append(0, &values(&[4]));
        lists.append(4, &values(&[5]));
        let seen: Vec<Vec<u64>> = (0..5)
            .map(|list| lists.get(list).iter().filter_map(|value| value.as_u64()).collect())
            .collect();
        assert_eq!(seen, [&[1, 2, 3, 4][..], &[], &[1, 2], &[2, 1], &[5]]);
        // What has grown is not what an equal list shares with, whose items must stay.
        lists.add(&values(&[1, 2]));
        assert_eq!(lists.get(5), values(&[1, 2]));
        lists.own(5).clear();
        assert_eq!(lists.get(2), values(&[1, 2]));
    }
}
