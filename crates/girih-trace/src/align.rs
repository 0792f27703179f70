//! Alignment of two iterations: which request of one has the place of which request of the other.
//!
//! Iterations are alike in structure and may differ in size: where lengths vary or experts are
//! routed, few sizes repeat, but the same requests come in the same order and live about as long.
//! So requests are compared by size first; where that leaves much without a place, a life of about
//! as many requests will do instead:
//!
//! ```text
//!  template   a   b   c   d           e   f       <- x, y came in between
//!  other      a   b'  c   d   x   y   e   f       <- b' stands where b stood: the same place
//! ```
//!
//! The walk is greedy: on a mismatch it looks for the nearest pair of positions from which several
//! requests in a row agree again. That is linear for iterations that are alike, which is the case
//! that matters, and bounded for those that are not.

use crate::event::StreamId;
use crate::lifetimes::Lifetime;
use crate::lifetimes::Lifetimes;

/// What is compared of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Bytes requested.
    pub size: u64,
    /// Requests born during its life, itself included; [`Key::FOREVER`] if it is never freed.
    pub life: u32,
    /// The stream.
    pub stream: StreamId,
}

impl Key {
    /// The life of a request that is never freed.
    pub const FOREVER: u32 = u32::MAX;
}

/// What two requests must have in common to have the same place, besides their stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// The same size.
    Size,
    /// The same size or about the same life.
    SizeOrLife,
}

impl By {
    fn agree(self, a: Key, b: Key) -> bool {
        a.stream == b.stream && (a.size == b.size || (self == By::SizeOrLife && lives_agree(a, b)))
    }
}

/// Lives of the same length; long ones may differ by 1 part in 32, for what comes in between in one
/// of the iterations makes them longer.
fn lives_agree(a: Key, b: Key) -> bool {
    a.life == b.life
        || (a.life.max(b.life) != Key::FOREVER
            && a.life.abs_diff(b.life) <= a.life.max(b.life) / 32)
}

/// The keys of all requests of a trace, in their order.
pub fn keys(lives: &Lifetimes) -> Vec<Key> {
    let births = births_before(lives);
    let key = |(index, request): (usize, &Lifetime)| {
        let life = match births.get(request.death.index()) {
            Some(&next) => next - index.min(next as usize) as u32,
            None => Key::FOREVER,
        };
        Key { size: request.size, life, stream: request.stream }
    };
    lives.requests.iter().enumerate().map(key).collect()
}

/// For each tick, the index of the first request that is born at it or later.
pub fn births_before(lives: &Lifetimes) -> Vec<u32> {
    let mut births = Vec::with_capacity(lives.request_of.len());
    let mut next = lives.older as u32;
    for (tick, &request) in lives.request_of.iter().enumerate() {
        births.push(next);
        let is_birth = request != Lifetimes::NONE
            && request >= next
            && lives.requests[request as usize].birth.index() == tick;
        next += u32::from(is_birth);
    }
    births
}

/// How many requests in a row must agree before the walk trusts that it is in step again.
const IN_STEP: usize = 8;
/// How far it looks ahead in both sequences at once.
const NEAR: usize = 32;
/// How far it looks ahead in one of them for the end of an insertion or a removal.
const FAR: usize = 4096;

/// For each request of `other`, the request of `template` whose place it has, if any. Places are
/// used once and in order.
pub fn align(template: &[Key], other: &[Key]) -> Vec<Option<u32>> {
    let found = |places: &[Option<u32>]| places.iter().flatten().count();
    let walk = |by: By| {
        let agree = |at: usize, index: usize| by.agree(template[at], other[index]);
        let may_stand = |at: usize, index: usize| template[at].stream == other[index].stream;
        align_where((template.len(), other.len()), agree, may_stand)
    };
    let by_size = walk(By::Size);
    if found(&by_size) * 100 >= template.len().min(other.len()) * 99 {
        return by_size;
    }
    let by_either = walk(By::SizeOrLife);
    if found(&by_either) > found(&by_size) { by_either } else { by_size }
}

/// The same for two sequences of these lengths of which only this is known: whether the place `at` of the template
/// and the place `index` of the other agree, and, where as many of both lie between places that agree, whether one
/// `may_stand` for the other.
pub fn align_where(
    lengths: (usize, usize),
    agree: impl Fn(usize, usize) -> bool,
    may_stand: impl Fn(usize, usize) -> bool,
) -> Vec<Option<u32>> {
    let mut places = vec![None; lengths.1];
    let (mut at, mut index) = (0, 0);
    while at < lengths.0 && index < lengths.1 {
        if agree(at, index) {
            places[index] = Some(at as u32);
            (at, index) = (at + 1, index + 1);
            continue;
        }
        let Some((skip, insert)) = resume(&agree, (at, index), lengths) else { break };
        // As many on both sides, and on the same streams: places whose size and life both changed.
        if skip == insert && (0..skip).all(|k| may_stand(at + k, index + k)) {
            for k in 0..skip {
                places[index + k] = Some((at + k) as u32);
            }
        }
        (at, index) = (at + skip, index + insert);
    }
    places
}

/// The nearest pair of positions from which both sequences are in step, as (skipped of the
/// template, inserted into the other). Near pairs first, by their sum; then pure insertions and
/// removals, however long.
fn resume(
    agree: &impl Fn(usize, usize) -> bool,
    (at, index): (usize, usize),
    lengths: (usize, usize),
) -> Option<(usize, usize)> {
    let in_step = |skip, insert| in_step(agree, (at + skip, index + insert), lengths);
    for sum in 1..=2 * NEAR {
        for skip in sum.saturating_sub(NEAR)..=sum.min(NEAR) {
            if in_step(skip, sum - skip) {
                return Some((skip, sum - skip));
            }
        }
    }
    for far in NEAR + 1..FAR {
        if in_step(0, far) {
            return Some((0, far));
        }
        if in_step(far, 0) {
            return Some((far, 0));
        }
    }
    None
}

fn in_step(
    agree: &impl Fn(usize, usize) -> bool,
    (at, index): (usize, usize),
    lengths: (usize, usize),
) -> bool {
    if at >= lengths.0 || index >= lengths.1 {
        return false;
    }
    // At the very end of a sequence fewer than IN_STEP are left; those must all agree.
    let count = IN_STEP.min(lengths.0 - at).min(lengths.1 - index);
    (0..count).all(|k| agree(at + k, index + k))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(keys: &[(u64, u32)]) -> Vec<Key> {
        keys.iter().map(|&(size, life)| Key { size, life, stream: StreamId(0) }).collect()
    }

    fn numbered(range: std::ops::Range<u64>) -> Vec<(u64, u32)> {
        range.map(|k| (1000 + k, 5 + k as u32)).collect()
    }

    #[test]
    fn equal_sequences_align_place_by_place() {
        let a = sequence(&numbered(0..50));
        let places = align(&a, &a);
        assert!(places.iter().enumerate().all(|(k, place)| *place == Some(k as u32)));
    }

    #[test]
    fn inserted_requests_have_no_place_and_the_rest_keep_theirs() {
        let a = numbered(0..100);
        let mut b = a.clone();
        b.splice(40..40, numbered(5000..5300));
        let places = align(&sequence(&a), &sequence(&b));
        assert!(places[40..340].iter().all(Option::is_none));
        assert_eq!(places[39], Some(39));
        assert_eq!(places[340], Some(40));
        assert_eq!(places[399], Some(99));
    }

    #[test]
    fn removed_requests_leave_their_places_unused() {
        let a = numbered(0..100);
        let mut b = a.clone();
        b.drain(10..13);
        let places = align(&sequence(&a), &sequence(&b));
        assert_eq!(places[9], Some(9));
        assert_eq!(places[10], Some(13));
    }

    #[test]
    fn a_request_of_another_size_and_the_same_life_keeps_its_place() {
        let a = numbered(0..30);
        let b: Vec<_> = a.iter().map(|&(size, life)| (size * 3 + 7, life)).collect();
        let places = align(&sequence(&a), &sequence(&b));
        assert!(places.iter().all(Option::is_some));
    }

    #[test]
    fn unrelated_sequences_do_not_align() {
        let places = align(&sequence(&numbered(0..50)), &sequence(&numbered(7000..7050)));
        assert!(places.iter().all(Option::is_none));
    }
}
