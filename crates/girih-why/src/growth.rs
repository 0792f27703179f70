//! What stays behind from step to step: a leak.
//!
//! ```text
//!            step 0    step 1    step 2    step 3    step 4 (refused)
//!  leak      ##        ##        ##        ##        ##
//!  no leak   ####                          # until the next step      ####
//! ```
//!
//! What is alive at the error and was asked for in a step that is long over has outlived its step.
//! The first step leaves states of the optimizer, which are no leak, and the last two may still
//! need what they have. If most of the steps between left something, it grows.

use girih_trace::{Lifetimes, Tick};

/// What stayed behind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Growth {
    /// Bytes that stayed, in all.
    pub bytes: u64,
    /// Bytes that a step leaves: the median of those that were looked at.
    pub each_step: u64,
    /// Steps that were looked at.
    pub steps: usize,
    /// The requests that stayed.
    pub requests: Vec<u32>,
}

/// Steps of which it is looked at what they left, at least: fewer show no growth.
const STEPS_LEAST: usize = 2;

/// What of the live `requests` stayed behind from the steps that begin at `starts`. None if nothing
/// grows.
pub fn find(lives: &Lifetimes, requests: &[u32], starts: &[Tick]) -> Option<Growth> {
    // The last two are the one that was refused and the one before it.
    let over = starts.len().checked_sub(2)?;
    let mut left: Vec<(u64, Vec<u32>)> = vec![(0, Vec::new()); over];
    let mut later = Vec::new();
    for &index in requests.iter().filter(|&&index| index as usize >= lives.older) {
        let life = &lives.requests[index as usize];
        let Some(step) = starts.partition_point(|&start| start <= life.birth).checked_sub(1) else {
            continue;
        };
        match left.get_mut(step) {
            Some((bytes, stayed)) => {
                *bytes += life.size;
                stayed.push(index);
            }
            None if step == over => later.push(index),
            None => {}
        }
    }
    // With three steps or more that are over the first says nothing; with fewer it is all there is.
    let skip = usize::from(over > STEPS_LEAST);
    let looked_at = &left[skip..];
    let mut amounts: Vec<u64> = looked_at.iter().map(|(bytes, _)| *bytes).collect();
    amounts.sort_unstable();
    let each_step = amounts.get(amounts.len() / 2).copied().unwrap_or(0);
    let alike = amounts.iter().filter(|&&bytes| bytes > 0 && 2 * bytes >= each_step).count();
    if looked_at.len() < STEPS_LEAST || each_step == 0 || 3 * alike < 2 * amounts.len() {
        return None;
    }
    let mut requests: Vec<u32> =
        looked_at.iter().flat_map(|(_, stayed)| stayed.iter().copied()).collect();
    let steps = looked_at.len();
    // The step before last has left as much, once it is over, and so has the first beside its
    // states.
    if skip == 1 {
        requests.extend(like(lives, &left[0].1, &requests));
    }
    requests.extend(like(lives, &later, &requests));
    let bytes = requests.iter().map(|&index| lives.requests[index as usize].size).sum();
    Some(Growth { bytes, each_step, steps, requests })
}

/// Of `some`, those that ask for what one of `known` asked for, with the same stack.
fn like(lives: &Lifetimes, some: &[u32], known: &[u32]) -> Vec<u32> {
    let key = |&index: &u32| {
        let life = &lives.requests[index as usize];
        (life.stack.0, if life.stack.is_some() { 0 } else { life.size })
    };
    let known: rustc_hash::FxHashSet<(u32, u64)> = known.iter().map(key).collect();
    some.iter().copied().filter(|index| known.contains(&key(index))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use girih_trace::{Action, Event, PoolId, StreamId, Trace};

    /// Steps that ask for 10 bytes, give them back, and keep so many.
    fn kept(kept: &[u64]) -> Option<Growth> {
        let (mut events, mut starts, mut next) = (Vec::new(), Vec::new(), 0);
        let mut push = |action, address, size| {
            events.push(Event::of(action, address, size, StreamId(0), PoolId::DEFAULT));
        };
        for &kept in kept {
            starts.push(Tick(next));
            push(Action::Alloc, 1 << 20, 10);
            push(Action::FreeRequested, 1 << 20, 10);
            push(Action::FreeCompleted, 1 << 20, 10);
            next += 3;
            if kept > 0 {
                push(Action::Alloc, 1 << 30 | u64::from(next) << 12, kept);
                next += 1;
            }
        }
        let trace = Trace { events, ..Trace::default() };
        let lives = Lifetimes::of(&trace);
        let alive = crate::moment::alive(&lives, Tick(next));
        find(&lives, &alive, &starts)
    }

    #[test]
    fn what_each_step_leaves_is_a_leak_and_what_the_first_leaves_is_not() {
        let growth = kept(&[500, 8, 8, 8, 8, 8]).expect("a leak");
        assert_eq!((growth.each_step, growth.steps), (8, 3));
        assert_eq!(growth.bytes, 8 * 4, "the last but one has left it too");
        assert_eq!(kept(&[500, 0, 0, 0, 0, 0]), None);
        assert_eq!(kept(&[0, 0, 0, 0, 7, 7]), None, "the last two may need it");
        assert_eq!(kept(&[5, 0, 90, 0, 0, 0, 0]), None, "once is no growth");
        assert_eq!(kept(&[8, 8]), None, "too few steps");
    }
}
