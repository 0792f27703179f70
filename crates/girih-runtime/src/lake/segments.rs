//! The segments, by their places and by address.

use super::pages::Segment;
use crate::device::Address;

/// All segments. They do not overlap.
#[derive(Debug, Default)]
pub(super) struct Segments {
    /// Vacant places are `None`.
    places: Vec<Option<Segment>>,
    /// First bytes and places, in order of address. A program has a segment or two for each of its streams, and some have
    /// thousands of those.
    by_address: Vec<(Address, u32)>,
}

impl Segments {
    /// Takes a segment in, at the first vacant place.
    pub(super) fn insert(&mut self, segment: Segment) -> u32 {
        let place = self.places.iter().position(Option::is_none).unwrap_or(self.places.len());
        if place == self.places.len() {
            self.places.push(None);
        }
        let at = self.by_address.partition_point(|(base, _)| *base < segment.base);
        self.by_address.insert(at, (segment.base, place as u32));
        self.places[place] = Some(segment);
        place as u32
    }

    /// Makes a place vacant.
    pub(super) fn remove(&mut self, place: u32) -> Option<Segment> {
        let segment = self.places.get_mut(place as usize)?.take()?;
        self.by_address.retain(|(_, other)| *other != place);
        Some(segment)
    }

    /// The segment at a place.
    #[inline]
    pub(super) fn get(&self, place: u32) -> Option<&Segment> {
        self.places.get(place as usize)?.as_ref()
    }

    /// The segment at a place.
    pub(super) fn get_mut(&mut self, place: u32) -> Option<&mut Segment> {
        self.places.get_mut(place as usize)?.as_mut()
    }

    /// The segment that an address lies in, with its place.
    #[inline]
    pub(super) fn over(&self, address: Address) -> Option<(u32, &Segment)> {
        let behind = self.by_address.partition_point(|(base, _)| *base <= address);
        let (_, place) = *self.by_address[..behind].last()?;
        let segment = self.get(place).filter(|segment| segment.contains(address))?;
        Some((place, segment))
    }

    /// All of them, with their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Segment)> {
        let places = (0..).zip(&self.places);
        places.filter_map(|(place, segment)| Some((place, segment.as_ref()?)))
    }
}
