//! The search for the largest value that fits.
//!
//! What a job asks for grows with its parameter, and what an allocator reserves for it mostly does: a hole that is just
//! large enough at 8 may be too small at 7. So halving finds a value that fits below one that does not, and then the
//! neighbours above are tried; where one of them fits after all, the search goes on from there.
//!
//! ```text
//!  value   1 . . 4 . . 7 8 9 . . 12        12: no more than that can be alive at once
//!  fits    y     y     n y n      n        7 is refused; its neighbour 8 fits; then 9 and 10 are tried
//! ```

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// How many values above a refused one are tried. Of 192 searches over generated jobs (`examples/neighbours.rs`) 4 ended
/// below the largest value that fits without any neighbour, 1 with one, and none with two.
pub const NEIGHBOURS: u64 = 2;

/// What a search found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found<T> {
    /// The largest value that fits, with what came of it; none if none was found.
    pub largest: Option<(u64, T)>,
    /// The values that were tried and did not fit, rising.
    pub refused: Vec<u64>,
}

impl<T> Found<T> {
    /// The refused values below the largest that fits.
    pub fn gaps(&self) -> Vec<u64> {
        let largest = self.largest.as_ref().map_or(0, |(value, _)| *value);
        self.refused.iter().copied().filter(|&value| value < largest).collect()
    }
}

/// The largest value of a range that fits. `fits` gives what came of a value, and none if it does not fit; it is asked
/// once for each value, about as often as the range has binary digits.
///
/// # Errors
/// Those of `fits`.
pub fn largest<T, E>(
    range: RangeInclusive<u64>,
    fits: impl FnMut(u64) -> Result<Option<T>, E>,
) -> Result<Found<T>, E> {
    largest_with(range, NEIGHBOURS, fits)
}

/// The same with another number of neighbours.
///
/// # Errors
/// Those of `fits`.
pub fn largest_with<T, E>(
    range: RangeInclusive<u64>,
    neighbours: u64,
    mut fits: impl FnMut(u64) -> Result<Option<T>, E>,
) -> Result<Found<T>, E> {
    let (least, most) = range.into_inner();
    let mut tried: BTreeMap<u64, Option<T>> = BTreeMap::new();
    let mut ask = |value: u64, tried: &mut BTreeMap<u64, Option<T>>| match tried.get(&value) {
        Some(known) => Ok(known.is_some()),
        None => {
            let outcome = fits(value)?;
            let is_there = outcome.is_some();
            tried.insert(value, outcome);
            Ok(is_there)
        }
    };
    if least <= most && !ask(most, &mut tried)? {
        // One below the range stands for what surely fits.
        let (mut low, mut high) = (least.saturating_sub(1), most);
        loop {
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                match ask(middle, &mut tried)? {
                    true => low = middle,
                    false => high = middle,
                }
            }
            let mut above = None;
            for value in high + 1..=high.saturating_add(neighbours).min(most) {
                if ask(value, &mut tried)? {
                    above = Some(value);
                }
            }
            let Some(value) = above else { break };
            let refused = tried.range(value..).find(|(_, outcome)| outcome.is_none());
            (low, high) = (value, refused.map_or(most, |(&refused, _)| refused));
        }
    }
    let refused = tried.iter().filter(|(_, outcome)| outcome.is_none()).map(|(&v, _)| v).collect();
    let largest = tried.into_iter().rev().find_map(|(value, outcome)| Some((value, outcome?)));
    Ok(Found { largest, refused })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn search(range: RangeInclusive<u64>, fits: impl Fn(u64) -> bool) -> (Found<()>, usize) {
        let mut asked = Vec::new();
        let found = largest(range, |value| {
            asked.push(value);
            Ok::<_, Infallible>(fits(value).then_some(()))
        });
        let Ok(found) = found;
        let count = asked.len();
        asked.sort_unstable();
        asked.dedup();
        assert_eq!(asked.len(), count, "each value is asked for once");
        (found, count)
    }

    #[test]
    fn where_all_below_a_value_fit_that_value_is_found() {
        arbtest::arbtest(|u| {
            let most = u.int_in_range(1..=5000)?;
            let limit = u.int_in_range(0..=6000)?;
            let (found, count) = search(1..=most, |value| value <= limit);
            let expected = (limit > 0).then(|| limit.min(most));
            assert_eq!(found.largest.map(|(value, ())| value), expected);
            assert!(count <= 14 + NEIGHBOURS as usize, "{count} replays");
            Ok(())
        });
    }

    #[test]
    fn a_refusal_that_is_an_accident_is_passed_over_and_said() {
        // 16, 8, 4, 6 and 7 are asked for, then 7's neighbours, of which 9 fits.
        let (found, _) = search(1..=16, |value| value <= 6 || value == 9);
        assert_eq!((found.gaps(), found.largest), (vec![7, 8], Some((9, ()))));
    }

    #[test]
    fn what_is_found_fits_and_its_neighbours_above_do_not() {
        arbtest::arbtest(|u| {
            let fits: Vec<bool> = u.arbitrary()?;
            let most = fits.len() as u64;
            let at = |value: u64| fits[value as usize - 1];
            let (found, _) = search(1..=most, at);
            let value = found.largest.map_or(0, |(value, ())| value);
            assert!(value == 0 || at(value));
            let above = value + 1..=(value + 1 + NEIGHBOURS).min(most);
            assert!(above.into_iter().all(|value| !at(value)), "{fits:?}: {value}");
            assert!(found.refused.iter().all(|&value| !at(value)));
            Ok(())
        });
    }

    #[test]
    fn a_range_without_values_has_none() {
        #[expect(clippy::reversed_empty_ranges, reason = "it is what nothing fits below")]
        let (found, count) = search(1..=0, |_| true);
        assert_eq!((found.largest, count), (None, 0));
    }
}
