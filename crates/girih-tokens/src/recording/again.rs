//! Programs that compute their layers again: what a layer would keep if they did not.
//!
//! With checkpoints a layer keeps nothing but its input, and the backward pass begins with the forward pass once more.
//! That asks for the same sizes in the same order, but for the last ones where it stops early:
//!
//! ```text
//!  forward pass     a b c d e f g                  all freed but the input
//!  backward pass    a b c d e | ...                of them b and d live on into the gradients
//! ```
//!
//! So b and d are what the layer would keep, the time up to `|` is what it takes to compute them again, and b and d of
//! the forward pass are theirs too. Full recomputation, as a decision, is then the run as it was recorded.

use std::ops::Range;

use girih_trace::Lifetimes;

use super::SMALL;
use super::passes::born;

/// A forward pass that runs again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Again {
    /// When, in ticks.
    pub ticks: Range<u32>,
    /// What it makes that lives on into the gradients, by birth.
    pub kept: Vec<u32>,
    /// The same tensors as the first forward pass made them.
    pub first: Vec<u32>,
}

/// What runs again of a layer in its backward pass, from a tick on at which marks say that it does; none if nothing does.
pub fn again(
    lives: &Lifetimes,
    forward: &Range<u32>,
    backward: &Range<u32>,
    from: u32,
) -> Option<Again> {
    let life = |request: u32| &lives.requests[request as usize];
    let size = |request: u32| life(request).size;
    let all = |ticks: &Range<u32>| born(lives, ticks).collect::<Vec<u32>>();
    let (first, second) = (all(forward), all(&(from.max(backward.start)..backward.end)));
    // Small ones (states of random generators) come and go.
    let largest = first.iter().map(|&it| size(it)).max()?;
    let large = |list: Vec<u32>| -> Vec<u32> {
        list.into_iter().filter(|&it| size(it) * SMALL >= largest).collect()
    };
    let (first, second) = (large(first), large(second));
    let pairs = first.iter().zip(&second);
    let same = pairs.take_while(|(first, second)| size(**first) == size(**second)).count();
    if same == 0 {
        return None;
    }
    let end = match second.get(same) {
        Some(&next) => life(next).birth.0,
        None => life(second[same - 1]).birth.0 + 1,
    };
    let lives_on = |request: u32| {
        let death = life(request).death.0;
        end < death && death <= backward.end
    };
    let kept = first[..same].iter().zip(&second[..same]).filter(|(_, second)| lives_on(**second));
    let (first, kept) = kept.unzip();
    let start = born(lives, &(from.max(backward.start)..backward.end)).next()?;
    Some(Again { ticks: life(start).birth.0..end, kept, first })
}
