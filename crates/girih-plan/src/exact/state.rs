//! A layout while it grows from the bottom: what is placed, what is decided, and how it is undone.
//!
//! Each section has a *floor*: everything below it is decided. From the *top* of the last item
//! placed there up to the floor nothing will ever lie. Above the floor is what is not placed yet.
//!
//! ```text
//!  capacity -----------------------
//!            .  .  .  .  .  .  .       floor + load of what is unplaced <= capacity
//!            .  .  .  .  #  #  #
//!            -  -  .  .  #  #  #       - floor    an item that lives here and there cannot
//!            x  x  -  -  #  #  #       x waste    begin lower than the highest floor of its life:
//!            #  #  #  #  #  #  #       # placed   its *lowest* offset
//!            +------------------ sections
//! ```
//!
//! A layout is *canonical* if no single item could be moved down to a place that is free. Moving
//! items down ends, so that every layout can be made canonical, and only such are looked for:
//!
//! - An item rests on the ground or on the top of another: its lowest offset is one if it equals
//!   its *base*, the highest top in its life.
//! - What is wasted must not have room for an item that comes to lie above.
//! - Equal items lie in the order of their index.
//!
//! A floor rises to the least lowest offset of what is unplaced in its section. That raises no
//! lowest offset, so that nothing need be repeated. All changes are noted and taken back in
//! reverse; nothing is copied and nothing is allocated.

use super::model::{Model, NONE, in_both};

/// What is known of a section.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Section {
    /// Everything below is decided.
    pub(super) floor: u64,
    /// The end of the topmost item placed in it.
    pub(super) top: u64,
    /// Sum of the sizes of its unplaced items.
    pub(super) load: u64,
    /// The keys of its unplaced items, added without carry.
    pub(super) key: u64,
    /// Number of its unplaced items.
    pub(super) count: u32,
    /// Those of them that are alive in the section before, too.
    pub(super) crossing: u32,
}

/// What is known of an unplaced item.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// The highest floor in its life.
    lowest: u64,
    /// The highest top in its life; at most `lowest`.
    base: u64,
}

/// A change, as it is taken back.
#[derive(Clone, Copy, Debug)]
enum Change {
    Placed { item: u32 },
    Section { section: u32, floor: u64, top: u64 },
    Place { item: u32, place: Place },
}

/// See the top of the file. All sizes and offsets are in steps of the model.
pub(super) struct State<'m> {
    model: &'m Model,
    /// No item may end above it.
    pub(super) capacity: u64,
    /// What is known of each section.
    pub(super) sections: Vec<Section>,
    /// The row of the items not placed yet.
    pub(super) unplaced: Vec<u64>,
    /// The offset of each item that is placed.
    pub(super) layout: Vec<u64>,
    places: Vec<Place>,
    /// For each section an item that was the lowest of it when last asked: a hint, for most floors
    /// stay where they are.
    witnesses: Vec<u32>,
    changes: Vec<Change>,
}

impl<'m> State<'m> {
    /// Nothing is placed, and nothing has room.
    pub(super) fn new(model: &'m Model) -> State<'m> {
        let count = model.sizes.len();
        let mut state = State {
            model,
            capacity: 0,
            sections: vec![Section::default(); model.sections as usize],
            unplaced: vec![0; model.words],
            layout: vec![0; count],
            places: vec![Place::default(); count],
            witnesses: first_of(model),
            changes: Vec::new(),
        };
        (0..count).for_each(|item| state.give_back(item));
        state
    }

    /// The number of changes so far, for [`State::undo`].
    pub(super) fn mark(&self) -> usize {
        self.changes.len()
    }

    /// Takes back all changes after `mark`.
    pub(super) fn undo(&mut self, mark: usize) {
        while self.changes.len() > mark {
            match self.changes.pop().expect("there are more than `mark`") {
                Change::Placed { item } => self.give_back(item as usize),
                Change::Section { section, floor, top } => {
                    let section = &mut self.sections[section as usize];
                    (section.floor, section.top) = (floor, top);
                }
                Change::Place { item, place } => self.places[item as usize] = place,
            }
        }
    }

    /// Enters `item` among those that are unplaced.
    fn give_back(&mut self, item: usize) {
        let (size, key) = (self.model.sizes[item], self.model.keys[item]);
        self.unplaced[item / 64] |= 1 << (item % 64);
        for (nth, section) in self.model.life(item).enumerate() {
            let section = &mut self.sections[section as usize];
            section.load += size;
            section.key ^= key;
            section.count += 1;
            section.crossing += u32::from(nth > 0);
        }
    }

    /// Places `item` at its lowest offset, and raises those that it meets above it.
    pub(super) fn place(&mut self, item: usize) {
        let model = self.model;
        let (size, key) = (model.sizes[item], model.keys[item]);
        let offset = self.places[item].lowest;
        let top = offset + size;
        self.layout[item] = offset;
        self.unplaced[item / 64] &= !(1 << (item % 64));
        self.changes.push(Change::Placed { item: item as u32 });
        for (nth, at) in model.life(item).enumerate() {
            let section = &mut self.sections[at as usize];
            let Section { floor, top: before, .. } = *section;
            self.changes.push(Change::Section { section: at, floor, top: before });
            (section.floor, section.top) = (top, top);
            section.load -= size;
            section.key ^= key;
            section.count -= 1;
            section.crossing -= u32::from(nth > 0);
        }
        for other in in_both(model.meets(item), &self.unplaced) {
            let place = &mut self.places[other];
            if place.base < top {
                self.changes.push(Change::Place { item: other as u32, place: *place });
                *place = Place { lowest: place.lowest.max(top), base: top };
            }
        }
    }

    /// Leaves the bytes from the floor of `section` up to `level` empty.
    pub(super) fn waste(&mut self, section: u32, level: u64) {
        self.set_floor(section, level);
        for item in in_both(self.model.alive(section), &self.unplaced) {
            let place = &mut self.places[item];
            if place.lowest < level {
                self.changes.push(Change::Place { item: item as u32, place: *place });
                place.lowest = level;
            }
        }
    }

    /// Raises the floor of `section` to the lowest offset that is left in it. False if what is
    /// unplaced has no room above.
    pub(super) fn settle(&mut self, section: u32) -> bool {
        let Section { floor, load, .. } = self.sections[section as usize];
        let witness = self.witnesses[section as usize] as usize;
        if self.places[witness].lowest == floor && self.is_unplaced(witness) {
            return floor + load <= self.capacity;
        }
        let mut lowest = u64::MAX;
        for item in in_both(self.model.alive(section), &self.unplaced) {
            if self.places[item].lowest < lowest {
                lowest = self.places[item].lowest;
                self.witnesses[section as usize] = item as u32;
                if lowest == floor {
                    break;
                }
            }
        }
        if lowest == u64::MAX {
            return true;
        }
        if lowest > floor {
            self.set_floor(section, lowest);
        }
        lowest + load <= self.capacity
    }

    fn set_floor(&mut self, section: u32, level: u64) {
        let Section { floor, top, .. } = self.sections[section as usize];
        self.changes.push(Change::Section { section, floor, top });
        self.sections[section as usize].floor = level;
    }

    /// Whether the unplaced `item`, which will lie higher, could lie in what is wasted.
    pub(super) fn fits_in_waste(&self, item: usize) -> bool {
        let Place { lowest, base } = self.places[item];
        let top = base + self.model.sizes[item];
        let mut life = self.model.life(item);
        lowest >= top && life.all(|section| self.sections[section as usize].floor >= top)
    }

    /// Whether the unplaced `item` may be the one that begins at `floor`, in a canonical layout.
    pub(super) fn may_begin_at(&self, item: usize, floor: u64) -> bool {
        let Place { lowest, base } = self.places[item];
        let twin = self.model.twins[item];
        lowest == floor && base == floor && (twin == NONE || !self.is_unplaced(twin as usize))
    }

    fn is_unplaced(&self, item: usize) -> bool {
        self.unplaced[item / 64] >> (item % 64) & 1 == 1
    }

    /// The lowest offset at which the bottom item of `section` can begin if not at the floor:
    /// where an item that lives on higher floors rests, or what may yet come to lie under an item
    /// elsewhere ends. [`u64::MAX`] if there is none.
    pub(super) fn next_level(&self, section: u32) -> u64 {
        let floor = self.sections[section as usize].floor;
        let here = self.model.alive(section);
        let mut level = u64::MAX;
        for item in in_both(here, &self.unplaced) {
            let Place { lowest, base } = self.places[item];
            if lowest > floor && lowest == base {
                level = level.min(lowest);
            } else if lowest < level {
                level = level.min(lowest.max(self.lowest_support(item, here)));
            }
        }
        level
    }

    /// The least end of an unplaced item that `item` meets but not `here`.
    fn lowest_support(&self, item: usize, here: &[u64]) -> u64 {
        let mut lowest = u64::MAX;
        for (word, (meets, here)) in self.model.meets(item).iter().zip(here).enumerate() {
            let mut bits = meets & !here & self.unplaced[word];
            while bits != 0 {
                let other = word * 64 + bits.trailing_zeros() as usize;
                lowest = lowest.min(self.places[other].lowest + self.model.sizes[other]);
                bits &= bits - 1;
            }
        }
        lowest
    }
}

/// An item of each section.
fn first_of(model: &Model) -> Vec<u32> {
    let row = |section| model.alive(section);
    let first = |section| in_both(row(section), row(section)).next().unwrap_or(0) as u32;
    (0..model.sections).map(first).collect()
}
