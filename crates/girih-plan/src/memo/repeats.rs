//! Where requests of the same sizes come again and again.
//!
//! All layers of a transformer ask for the same sizes in the same order, so that a pass through them
//! is a *run*: a stretch of requests in which each has the size of the one a *period* before it.
//!
//! ```text
//!  sizes   7 | a b a c d  a b a c d  a b a c d  a b | 9 7 ...
//!            '------------- period 5 ---------------'
//! ```
//!
//! Microbatches repeat as well as layers, with a longer period, and so do parts of a layer, with a
//! shorter one. So the shortest period is taken whose runs cover a good part of what there is; that
//! of the forward pass comes first where it is the shorter one, and what is left is looked at again
//! for the backward pass.

use std::ops::Range;

use rustc_hash::FxHashMap;

/// Fewer requests than this are no layer. Every pattern of training has runs of shorter periods.
const PERIOD_MIN: usize = 4;
/// The runs of a period must cover at least one of so many requests that are left.
const COVER: usize = 4;
/// Periods that are tried in a round, those that are seen most often.
const TRIED: usize = 64;
/// Rounds at most: kinds of layers, forward and backward.
const ROUNDS: usize = 8;

/// Requests that repeat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Run {
    /// At least two periods.
    pub(super) requests: Range<usize>,
    /// Each request but the first ones has the size of the one so many before it.
    pub(super) period: usize,
}

/// The runs of `sizes` within the given stretches, which are disjoint and ascending. No two runs
/// share a request. They come in no order.
pub(super) fn runs(sizes: &[u64], mut stretches: Vec<Range<usize>>) -> Vec<Run> {
    let mut found = Vec::new();
    for _ in 0..ROUNDS {
        let left: usize = stretches.iter().map(ExactSizeIterator::len).sum();
        let is_much = |runs: &Vec<Run>| {
            let covered: usize = runs.iter().map(|run| run.requests.len()).sum();
            covered > 0 && covered * COVER >= left
        };
        let of_period = |period| -> Vec<Run> {
            stretches.iter().flat_map(|within| runs_within(sizes, within, period)).collect()
        };
        let Some(runs) = periods(sizes, &stretches).into_iter().map(of_period).find(is_much) else {
            break;
        };
        stretches = without(&stretches, &runs);
        found.extend(runs);
    }
    found
}

/// Distances at which the same few sizes come again, ascending.
fn periods(sizes: &[u64], stretches: &[Range<usize>]) -> Vec<usize> {
    let mut times: FxHashMap<usize, usize> = FxHashMap::default();
    for within in stretches {
        let mut last: FxHashMap<&[u64], usize> = FxHashMap::default();
        for (at, word) in sizes[within.clone()].windows(PERIOD_MIN).enumerate() {
            if let Some(before) = last.insert(word, at)
                && at - before >= PERIOD_MIN
            {
                *times.entry(at - before).or_default() += 1;
            }
        }
    }
    let mut periods: Vec<(usize, usize)> = times.into_iter().collect();
    periods.sort_unstable_by_key(|&(period, times)| (usize::MAX - times, period));
    periods.truncate(TRIED);
    let mut periods: Vec<usize> = periods.into_iter().map(|(period, _)| period).collect();
    periods.sort_unstable();
    periods
}

/// The longest runs of `period` in a stretch, two periods or more each.
fn runs_within(sizes: &[u64], within: &Range<usize>, period: usize) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut start = within.start;
    for at in within.start..within.end.saturating_sub(period).max(within.start) + 1 {
        let goes_on = at + period < within.end && sizes[at] == sizes[at + period];
        if !goes_on {
            let requests = start..(at + period).min(within.end);
            if at - start >= period && !repeats_itself(&sizes[start..start + period]) {
                runs.push(Run { requests, period });
            }
            start = at + 1;
        }
    }
    // Where two overlap, the first has what they share.
    let mut end = 0;
    for run in &mut runs {
        run.requests.start = run.requests.start.max(end);
        end = run.requests.end.max(end);
    }
    runs.retain(|run| run.requests.len() >= 2 * period);
    runs
}

/// Whether a word is a shorter one several times over: then its length is no period worth the name.
fn repeats_itself(word: &[u64]) -> bool {
    let length = word.len();
    let is_period = |shorter: usize| word[shorter..] == word[..length - shorter];
    (1..=length / 2).any(|shorter| length.is_multiple_of(shorter) && is_period(shorter))
}

/// What the runs leave of the stretches.
fn without(stretches: &[Range<usize>], runs: &[Run]) -> Vec<Range<usize>> {
    let mut runs = runs.iter().map(|run| &run.requests).peekable();
    let mut left = Vec::new();
    for within in stretches {
        let mut start = within.start;
        while let Some(run) = runs.next_if(|run| run.start < within.end) {
            left.push(start..run.start);
            start = run.end;
        }
        left.push(start..within.end);
    }
    left.retain(|stretch| !stretch.is_empty());
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, usize, usize)> {
        let sizes: Vec<u64> = text.bytes().map(u64::from).collect();
        let mut runs: Vec<_> = (runs(&sizes, std::iter::once(0..sizes.len()).collect()).iter())
            .map(|run| (run.requests.start, run.requests.end, run.period))
            .collect();
        runs.sort_unstable();
        runs
    }

    #[test]
    fn layers_repeat_between_what_does_not() {
        assert_eq!(found("7abacdabacdabacdab97"), [(1, 18, 5)]);
        assert_eq!(found("abcdefg"), []);
        assert_eq!(found(""), []);
    }

    #[test]
    fn forward_and_backward_have_periods_of_their_own() {
        assert_eq!(found("xabcdabcdabcdyefghijefghijefghijz"), [(1, 13, 4), (14, 32, 6)]);
    }

    #[test]
    fn microbatches_are_not_taken_for_layers() {
        let microbatch = "xabcdeabcdeabcdeyefghijkefghijkefghijkz";
        let runs = found(&microbatch.repeat(4));
        assert_eq!(runs.len(), 8, "{runs:?}");
        assert!(runs.iter().all(|&(_, _, period)| period == 5 || period == 7), "{runs:?}");
    }

    #[test]
    fn a_size_that_comes_many_times_is_no_layer() {
        assert_eq!(found("aaaaaaaaaaaaaaaaaaaaaaaa"), []);
        // But it may be a part of one.
        assert_eq!(found("aaaaaaaabaaaaaaaabaaaaaaaab"), [(0, 27, 9)]);
        // Nor are two short words a long one, where others have its length.
        assert_eq!(found("abcabcabcabcuvwxyzuvwxyzuvwxyz"), [(12, 30, 6)]);
    }

    #[test]
    fn what_two_runs_share_has_the_first() {
        assert_eq!(found("abcdabcdxbcdxbcdxbcdx"), [(0, 8, 4), (8, 21, 4)]);
    }

    #[test]
    fn a_part_of_a_layer_that_comes_twice_is_no_layer() {
        let layer = "abcdabcdABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
        assert_eq!(found(&layer.repeat(4)), [(0, 4 * layer.len(), layer.len())]);
    }

    #[test]
    fn runs_lie_within_the_stretches_and_share_nothing() {
        arbtest::arbtest(|u| {
            let sizes: Vec<u64> = (0..u.int_in_range(0..=120)?)
                .map(|_| u.int_in_range(0..=2))
                .collect::<Result<_, _>>()?;
            let cut = u.int_in_range(0..=sizes.len())?;
            let stretches = vec![0..cut / 2, cut..sizes.len()];
            let mut runs = runs(&sizes, stretches.clone());
            runs.sort_by_key(|run| run.requests.start);
            for Run { requests, period } in &runs {
                assert!(requests.len() >= 2 * period);
                assert!(
                    stretches.iter().any(|s| s.start <= requests.start && requests.end <= s.end)
                );
                assert!(
                    (requests.start + period..requests.end)
                        .all(|at| sizes[at] == sizes[at - period])
                );
            }
            assert!(runs.windows(2).all(|pair| pair[0].requests.end <= pair[1].requests.start));
            Ok(())
        });
    }
}
