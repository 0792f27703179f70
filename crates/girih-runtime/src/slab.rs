//! Things by their small ids. An id is used again after its thing is gone.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// An id of one kind of thing.
pub(crate) trait Id: Copy {
    fn of(index: u32) -> Self;
    fn index(self) -> usize;
}

/// Makes an id type.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub(super) struct $name(u32);

        impl crate::slab::Id for $name {
            fn of(index: u32) -> $name {
                $name(index)
            }

            fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}
pub(crate) use id;

/// Every thing of one kind by its id.
#[derive(Debug)]
pub(crate) struct Slab<I, T> {
    /// Vacant places are `None`.
    items: Vec<Option<T>>,
    vacant: Vec<u32>,
    id: PhantomData<I>,
}

impl<I, T> Default for Slab<I, T> {
    fn default() -> Slab<I, T> {
        Slab { items: Vec::new(), vacant: Vec::new(), id: PhantomData }
    }
}

impl<I: Id, T> Slab<I, T> {
    pub(crate) fn add(&mut self, item: T) -> I {
        let index = self.vacant.pop().unwrap_or(self.items.len() as u32);
        if index as usize == self.items.len() {
            self.items.push(None);
        }
        self.items[index as usize] = Some(item);
        I::of(index)
    }

    /// Forgets a thing, which is there.
    pub(crate) fn remove(&mut self, id: I) -> T {
        let item = self.items[id.index()].take().expect("a thing is removed once");
        self.vacant.push(id.index() as u32);
        item
    }

    pub(crate) fn get(&self, id: I) -> Option<&T> {
        self.items.get(id.index())?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: I) -> Option<&mut T> {
        self.items.get_mut(id.index())?.as_mut()
    }

    /// All that are there, by id.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        let items = (0..).zip(&self.items);
        items.filter_map(|(index, item)| Some((I::of(index), item.as_ref()?)))
    }
}

impl<I: Id, T> Index<I> for Slab<I, T> {
    type Output = T;

    fn index(&self, id: I) -> &T {
        self.get(id).expect("an id is kept no longer than its thing")
    }
}

impl<I: Id, T> IndexMut<I> for Slab<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        self.get_mut(id).expect("an id is kept no longer than its thing")
    }
}
