//! How often something went wrong of late, iteration by iteration.

/// Iterations in which something went wrong, less those in which it did not. Of those that follow each
/// other only every second counts: what comes between two steps, such as an evaluation, takes pages
/// from a plan, and the step after it takes them back. That happened once and not twice.
///
/// ```text
///  wrong     x x . x x . x x .      x . x . x .      x x x x x
///  strikes   1 1 0 1 1 0 1 1 0      1 0 1 0 1 0      1 1 2 2 3
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Strikes {
    count: u32,
    /// Iterations up to now that went wrong, without one between that did not.
    in_a_row: u32,
}

impl Strikes {
    /// An iteration has ended.
    pub(crate) fn note(&mut self, is_wrong: bool) {
        if is_wrong {
            self.count += u32::from(self.in_a_row.is_multiple_of(2));
            self.in_a_row += 1;
        } else {
            self.count = self.count.saturating_sub(1);
            self.in_a_row = 0;
        }
    }

    /// How many of the latest iterations went wrong, one after the other.
    pub(crate) fn in_a_row(self) -> u32 {
        self.in_a_row
    }

    /// How many there are.
    pub(crate) fn count(self) -> u32 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_count_once_and_what_goes_on_counts_more_and_more() {
        let counts = |pattern: &str| -> Vec<u32> {
            let mut strikes = Strikes::default();
            let noted = pattern.chars().map(|is| {
                strikes.note(is == 'x');
                strikes.count()
            });
            noted.collect()
        };
        assert_eq!(counts("xx.xx.xx."), [1, 1, 0, 1, 1, 0, 1, 1, 0]);
        assert_eq!(counts("x.x.x."), [1, 0, 1, 0, 1, 0]);
        assert_eq!(counts("xxxxx"), [1, 1, 2, 2, 3]);
        assert_eq!(counts("xxxxx...xx"), [1, 1, 2, 2, 3, 2, 1, 0, 1, 1]);
    }
}
