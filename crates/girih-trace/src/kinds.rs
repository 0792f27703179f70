//! Kinds of iterations: those that ask for the same, whatever comes between them.
//!
//! A program may do one of several things in a step: a batch of one of a few resolutions, an update of one of
//! two models, now and then an evaluation. No two in a row need be alike, and yet each comes again:
//!
//! ```text
//!  iteration   0   1   2   3   4   5   6   7   8
//!  kind        -   A   A   B   C   A   B   A   C        A: 1 2 5 7   B: 3 6   C: 4 8
//! ```
//!
//! Two iterations are of one kind if their large requests are the same, one by one: as many bytes, on the same
//! stream, and there to stay or not. Small ones, which come and go with a batch's labels or a logged
//! number, are left out as PyTorch's allocator leaves them out of its large pool.

use rustc_hash::FxHashMap;

use crate::align::Key;
use crate::event::StreamId;
use crate::iterations::{Iteration, Iterations, model_iteration};

/// Requests above this are large. Bytes; PyTorch's `kSmallSize`.
pub const SMALL_MAX: u64 = 1 << 20;

/// What is compared of a request: its bytes, its stream, and whether it is ever freed.
type Large = (u64, StreamId, bool);

/// The kinds that come more than once, each as the indices of its iterations in order. First the one in whose last
/// iteration the most bytes are alive at once; of several, the one that came first. Linear in the requests.
///
/// The last iteration is of no kind if it leaves something that the others free: the recording's end does
/// not tell whether it stays.
pub fn kinds(list: &[Iteration], keys: &[Key]) -> Vec<Vec<usize>> {
    let mut of: FxHashMap<Vec<Large>, Vec<usize>> = FxHashMap::default();
    for (index, iteration) in list.iter().enumerate() {
        let own = &keys[iteration.requests.start as usize..iteration.requests.end as usize];
        let compared = |key: &Key| (key.size, key.stream, key.life == Key::FOREVER);
        let mut requests: Vec<Large> =
            own.iter().filter(|key| key.size > SMALL_MAX).map(compared).collect();
        if requests.is_empty() {
            requests = own.iter().map(compared).collect();
        }
        of.entry(requests).or_default().push(index);
    }
    let mut kinds: Vec<Vec<usize>> = of.into_values().filter(|kind| kind.len() > 1).collect();
    let live = live(keys);
    kinds.sort_by_cached_key(|kind| {
        let last = &list[kind[kind.len() - 1]].requests;
        let most = live[last.start as usize..last.end as usize].iter().max();
        (u64::MAX - most.copied().unwrap_or(0), kind[0])
    });
    kinds
}

/// The bytes alive after each request.
fn live(keys: &[Key]) -> Vec<u64> {
    let mut gone = vec![0u64; keys.len() + 1];
    let mut live = 0u64;
    let after = |(index, key): (usize, &Key)| {
        live = live.saturating_sub(gone[index]).saturating_add(key.size);
        let end = index.saturating_add(key.life as usize).min(keys.len());
        gone[end] = gone[end].saturating_add(key.size);
        live
    };
    keys.iter().enumerate().map(after).collect()
}

impl Iterations {
    /// The iterations that a plan's steady one is made of, in order: the steady run; or those of the largest kind,
    /// if more iterations than the run's, and half of all, are of one kind or another. Empty if nothing repeats.
    pub fn members(&self) -> Vec<usize> {
        let run = self.steady.map_or(0..0, |(first, last)| first..last + 1);
        let of_kinds = self.kinds.iter().map(Vec::len).sum::<usize>();
        let has_kinds = of_kinds > run.len() && of_kinds * 2 >= self.list.len();
        match self.kinds.first().filter(|_| has_kinds) {
            Some(kind) => kind.clone(),
            None => run.collect(),
        }
    }

    /// True if the [`Iterations::members`] are the steady run.
    pub fn is_run(&self) -> bool {
        let members = self.members();
        self.steady.is_some_and(|(first, last)| members.iter().copied().eq(first..=last))
    }

    /// The one of the [`Iterations::members`] that stands for all: the requests of a plan's steady iteration
    /// are its. Another iteration comes after it, which tells when what it leaves is freed; one of them if
    /// there is such a pair.
    pub fn model(&self) -> Option<usize> {
        let members = self.members();
        if let Some((first, last)) = self.steady.filter(|_| self.is_run()) {
            let inner = model_iteration(&self.list[first..=last]).unwrap_or(0);
            return Some((first + inner).min(last - 1));
        }
        let pairs = members.windows(2).filter(|pair| pair[0] + 1 == pair[1]);
        pairs.map(|pair| pair[0]).next_back().or(members.iter().rev().nth(1).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Iterations of requests of these sizes, all of them freed.
    fn kinds_of(iterations: &[&[u64]]) -> Vec<Vec<usize>> {
        let (mut list, mut keys) = (Vec::new(), Vec::new());
        for sizes in iterations {
            let start = keys.len() as u32;
            keys.extend(sizes.iter().map(|&size| Key { size, life: 1, stream: StreamId(0) }));
            let requests = start..keys.len() as u32;
            list.push(Iteration { ticks: requests.clone(), requests });
        }
        kinds(&list, &keys)
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_kind_comes_again_whatever_comes_between() {
        let (a, b, c) = ([2 * MIB, 3 * MIB], [2 * MIB, 4 * MIB], [9 * MIB, 9 * MIB]);
        // The one with the most in use comes first.
        assert_eq!(kinds_of(&[&a, &b, &a, &c, &b, &a]), [vec![1, 4], vec![0, 2, 5]]);
    }

    #[test]
    fn small_requests_make_no_kind_unless_there_are_no_others() {
        assert_eq!(kinds_of(&[&[2 * MIB, 7], &[2 * MIB, 9, 11], &[MIB]]), [vec![0, 1]]);
        assert_eq!(kinds_of(&[&[7, 8], &[7, 9], &[7, 8]]), [vec![0, 2]]);
    }

    #[test]
    fn the_same_requests_in_another_order_are_another_kind() {
        assert!(kinds_of(&[&[2 * MIB, 3 * MIB], &[3 * MIB, 2 * MIB]]).is_empty());
    }

    #[test]
    fn what_stays_is_not_what_is_freed() {
        let key = |life| Key { size: 2 * MIB, life, stream: StreamId(0) };
        let list: Vec<Iteration> =
            (0..3).map(|k| Iteration { requests: k..k + 1, ticks: k..k + 1 }).collect();
        assert_eq!(kinds(&list, &[key(Key::FOREVER), key(1), key(9)]), [vec![1, 2]]);
    }
}
