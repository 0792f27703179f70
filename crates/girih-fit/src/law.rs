//! Laws: how the bytes of one request depend on the parameter.
//!
//! Two recordings give two points of each request. In dense training a request has a constant part and a part for each
//! sample or token, so a line goes through them. What rises faster than a line through nothing has a part that goes by
//! the square: the scores of attention, where they are kept, by the tokens.
//!
//! ```text
//!  bytes         curve
//!   │          ./  line
//!   │        .//
//!   │      .//‾‾‾‾‾ same
//!   │   .⟋⟋
//!   └─────┼─────┼───── value
//!         a     b        recorded
//! ```

/// What a recorder may have rounded bytes up to (`kMinBlockSize`): so much is no sign of a square.
const ROUNDING: u64 = 512;

/// A value of the parameter and the bytes that a request had there.
type Point = (u64, u64);

/// The bytes of a request, for any value of the parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Law {
    /// As many everywhere.
    Same(u64),
    /// On the line through two points, which does not fall below nothing. Rounded up to whole bytes.
    Line(Point, Point),
    /// `p n + q n^2` through two points, neither factor negative.
    Curve(Point, Point),
    /// Fewer at the larger of two values, such as a workspace of another algorithm: the more of both everywhere.
    Falling(u64),
    /// Seen in one recording only: as many everywhere.
    Alone(u64),
}

/// Which law it is, for counting.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// [`Law::Same`].
    Same,
    /// [`Law::Line`] with a whole number of bytes for each one more of the parameter: exact.
    Line,
    /// [`Law::Line`] without: what was recorded was rounded, or padded.
    Uneven,
    /// [`Law::Curve`].
    Curve,
    /// [`Law::Falling`].
    Falling,
    /// [`Law::Alone`].
    Alone,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 6] =
        [Kind::Same, Kind::Line, Kind::Uneven, Kind::Curve, Kind::Falling, Kind::Alone];

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Same => "same",
            Kind::Line => "line",
            Kind::Uneven => "uneven",
            Kind::Curve => "curve",
            Kind::Falling => "falling",
            Kind::Alone => "alone",
        }
    }

    /// True if bytes that follow it are those that the program would ask for, as far as two recordings can tell.
    pub fn is_exact(self) -> bool {
        matches!(self, Kind::Same | Kind::Line)
    }
}

impl Law {
    /// The law through two points, the first at the smaller value. Values are at least 1.
    pub fn through(first: Point, second: Point) -> Law {
        let ((from, low), (to, high)) = (first, second);
        if low == high || from == to {
            return Law::Same(low.max(high));
        }
        if high < low {
            return Law::Falling(low);
        }
        // Not below nothing at the value 0, as near as rounding lets that be seen: low / from >= high / to.
        let low_at_most = u128::from(low) + u128::from(ROUNDING);
        let is_line = low_at_most * u128::from(to) >= u128::from(high) * u128::from(from);
        if is_line { Law::Line(first, second) } else { Law::Curve(first, second) }
    }

    /// The bytes at a value, at least 1: no request of the recordings was for nothing.
    pub fn at(self, value: u64) -> u64 {
        match self {
            Law::Same(bytes) | Law::Falling(bytes) | Law::Alone(bytes) => bytes,
            Law::Line((from, low), (to, high)) => {
                let (rise, run) = (i128::from(high) - i128::from(low), i128::from(to - from));
                let over = rise * (i128::from(value) - i128::from(from));
                // Rounded up, below the first point too.
                let bytes = i128::from(low) + over.div_euclid(run) + i128::from(over % run != 0);
                u64::try_from(bytes.max(1)).unwrap_or(u64::MAX)
            }
            Law::Curve((from, low), (to, high)) => {
                // Bytes for each one of the parameter lie on a line. Doubles hold bytes to 2^53, and events have at
                // most 2^48.
                let (first, second) = (low as f64 / from as f64, high as f64 / to as f64);
                let square = (second - first) / (to - from) as f64;
                let linear = first - square * from as f64;
                let value = value as f64;
                let bytes = match linear < 0.0 {
                    true => second / to as f64 * value * value,
                    false => (linear + square * value) * value,
                };
                bytes.round().max(1.0) as u64
            }
        }
    }

    /// Which law it is.
    pub fn kind(self) -> Kind {
        match self {
            Law::Same(_) => Kind::Same,
            Law::Line((from, low), (to, high)) if (high - low).is_multiple_of(to - from) => {
                Kind::Line
            }
            Law::Line(..) => Kind::Uneven,
            Law::Curve(..) => Kind::Curve,
            Law::Falling(_) => Kind::Falling,
            Law::Alone(_) => Kind::Alone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_exact_to_the_byte_on_both_sides_of_its_points() {
        let bytes = |n: u64| 700 + 36 * n;
        let law = Law::through((4, bytes(4)), (8, bytes(8)));
        assert_eq!(law.kind(), Kind::Line);
        assert!((1..5000).all(|n| law.at(n) == bytes(n)));
    }

    #[test]
    fn what_was_recorded_stays_as_it_was_at_its_value() {
        arbtest::arbtest(|u| {
            let (from, more) = (u.int_in_range(1..=1 << 20)?, u.int_in_range(1..=1 << 20)?);
            let (low, high) = (u.int_in_range(1..=1 << 44)?, u.int_in_range(1..=1 << 44)?);
            let (first, second) = ((from, low), (from + more, high));
            let law = Law::through(first, second);
            match law {
                Law::Falling(bytes) => assert_eq!(bytes, low),
                // Faster than by the square: below it is taken as by the square.
                Law::Curve(..) => {
                    assert_eq!(law.at(second.0), high);
                    assert!(law.at(first.0) >= low);
                }
                _ => assert_eq!((law.at(first.0), law.at(second.0)), (low, high)),
            }
            Ok(())
        });
    }

    #[test]
    fn no_law_falls() {
        arbtest::arbtest(|u| {
            let (from, more) = (u.int_in_range(1..=4096)?, u.int_in_range(1..=4096)?);
            let (low, high) = (u.int_in_range(1..=1 << 40)?, u.int_in_range(1..=1 << 40)?);
            let law = Law::through((from, low), (from + more, high));
            let at: u64 = u.int_in_range(1..=1 << 20)?;
            assert!(law.at(at) <= law.at(at + 1), "{law:?} at {at}");
            assert!(law.at(at) >= 1);
            Ok(())
        });
    }

    #[test]
    fn squares_are_found_and_a_constant_part_is_no_square() {
        let law = Law::through((1024, 2 << 20), (2048, 8 << 20));
        assert_eq!((law.kind(), law.at(4096)), (Kind::Curve, 32 << 20));
        // Nothing constant and something of both.
        let bytes = |n: u64| 96 * n + 2 * n * n;
        let law = Law::through((512, bytes(512)), (768, bytes(768)));
        assert_eq!((law.kind(), law.at(5000)), (Kind::Curve, bytes(5000)));
    }

    #[test]
    fn what_falls_is_never_less_than_it_was() {
        let law = Law::through((1, 900), (2, 100));
        assert_eq!((law.kind(), law.at(1), law.at(50)), (Kind::Falling, 900, 900));
    }

    #[test]
    fn sizes_that_were_rounded_are_uneven() {
        let law = Law::through((1, 512), (4, 1024));
        assert_eq!((law.kind(), law.at(1), law.at(4)), (Kind::Uneven, 512, 1024));
        assert_eq!(law.at(2), 683);
    }
}
