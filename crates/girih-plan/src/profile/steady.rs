//! The steady iteration as a ring: the envelope of each of its places.

use girih_trace::Lifetime;

use super::{NO_PLACE, Profile};
use crate::plan::{Entry, Place};

/// The most iterations that go once round the ring. Two are needed where a block of one iteration
/// is replaced by that of the next: both are alive for a moment, in different places.
const ROUNDS_MAX: u32 = 2;

/// Blocks that outlive an iteration are worth a second round from this many bytes on.
const WORTH_A_ROUND: u64 = 1 << 20;

/// The steady iterations.
#[derive(Clone, Copy)]
pub(super) struct Steady {
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) model: usize,
    pub(super) places: u32,
}

impl Profile<'_> {
    /// The envelope of each place over all steady iterations. Places that cannot come back every
    /// iteration, for what is born there stays, lie outside the plan: `until` 0.
    pub(super) fn envelope(&self, steady: Steady) -> Vec<Entry> {
        let model = &self.iterations.list[steady.model].requests;
        let mut stays = vec![false; steady.places as usize];
        let mut entries: Vec<Entry> = model
            .clone()
            .zip(0..)
            .map(|(request, place)| {
                let request = &self.lives.requests[request as usize];
                let (size, stream) = (request.size, request.stream);
                let until = place + 1;
                Entry { size_min: size, size_max: size, stream, place: Place::Outside, until }
            })
            .collect();
        // When what crosses into another kind of iteration is freed there says little of the ring.
        let mut guessed: Vec<u32> = vec![0; steady.places as usize];
        let mut is_known = vec![false; steady.places as usize];
        for number in (steady.first..=steady.last).filter(|&number| self.is_member[number]) {
            let requests = self.iterations.list[number].requests.clone();
            let is_followed = self.is_member.get(number + 1).is_none_or(|&is_member| is_member);
            for index in requests.clone() {
                let place = self.place_of[index as usize];
                if place == NO_PLACE {
                    continue;
                }
                let request = &self.lives.requests[index as usize];
                let entry = &mut entries[place as usize];
                entry.size_min = entry.size_min.min(request.size);
                entry.size_max = entry.size_max.max(request.size);
                let crosses = self.end(request).is_none_or(|end| end > requests.end);
                match self.ring_time(steady, number, request) {
                    Some(until) if is_followed || !crosses => {
                        entry.until = entry.until.max(until);
                        is_known[place as usize] |= crosses;
                    }
                    Some(until) => {
                        guessed[place as usize] = guessed[place as usize].max(until);
                    }
                    // What is alive at the end of the trace says nothing of the last iteration.
                    None => stays[place as usize] |= number != steady.last,
                }
            }
        }
        for (entry, (guessed, is_known)) in entries.iter_mut().zip(guessed.iter().zip(is_known)) {
            if !is_known {
                entry.until = entry.until.max(*guessed);
            }
        }
        for (place, entry) in entries.iter_mut().enumerate() {
            if stays[place] || entry.until > place as u32 + ROUNDS_MAX * steady.places {
                entry.until = 0;
            }
        }
        entries
    }

    /// The moment at which the block of a request of iteration `from` is gone, in places since that
    /// iteration began. None if it stays, or if the trace does not tell.
    ///
    /// That is right after the place of the request before the free, not right before the place of
    /// the request after it: places in between did not come in this iteration, and what does not
    /// come is in nobody's way. Only after a request without a place is the next one all there is.
    fn ring_time(&self, steady: Steady, from: usize, request: &Lifetime) -> Option<u32> {
        let end = self.end(request)?;
        let gone = |request: u32, place: u32| {
            let iteration = self.iterations.index_of(request).filter(|&it| it <= steady.last)?;
            let rounds = (iteration - from) as u32;
            Some((rounds <= ROUNDS_MAX).then(|| rounds * steady.places + place))
        };
        let last = end - 1;
        let place = self.place_of[last as usize];
        if place != NO_PLACE
            && let Some(moment) = gone(last, place + 1)
        {
            return moment;
        }
        if end as usize == self.lives.requests.len() {
            // Freed after the last request of the trace: the ring closes there.
            return Some(steady.places);
        }
        gone(end, self.next_place[end as usize]).flatten()
    }
}

/// The ring of one iteration, or of two if blocks outlive one that are worth it, and how many.
/// What outlives the ring then still lies outside: `until` 0.
pub(super) fn unroll(mut entries: Vec<Entry>) -> (Vec<Entry>, u32) {
    let places = entries.len() as u32;
    let laps = |(index, entry): &(u32, &Entry)| entry.until > index + places;
    let lapping: u64 = (0..).zip(&entries).filter(laps).map(|(_, entry)| entry.size_max).sum();
    if lapping >= WORTH_A_ROUND {
        let mut second = entries.clone();
        for entry in second.iter_mut().filter(|entry| entry.until > 0) {
            entry.until += places;
        }
        entries.extend(second);
        return (entries, 2);
    }
    for (index, entry) in (0..).zip(&mut entries) {
        if entry.until > index + places {
            entry.until = 0;
        }
    }
    (entries, 1)
}
