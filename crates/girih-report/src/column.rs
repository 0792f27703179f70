//! Columns of integers as the page reads them: LEB128, deflated, in base64.
//!
//! A page that needs no network carries its data in its text. Small differences take one byte, runs
//! of the same difference hardly any after deflating, and browsers inflate by themselves
//! (`DecompressionStream`). The alphabet of base64 has no `<`: nothing that a recording says can end
//! the element that it stands in.

use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;

/// The largest integer that a page can hold, whose numbers are floating point.
pub const INTEGER_MAX: u64 = (1 << 53) - 1;

/// Integers in a row, seven bits a byte, the lowest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Column {
    bytes: Vec<u8>,
}

impl Column {
    /// Adds an integer; one beyond [`INTEGER_MAX`] becomes that.
    pub fn push(&mut self, value: u64) {
        let mut rest = value.min(INTEGER_MAX);
        while rest >= 0x80 {
            self.bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.bytes.push(rest as u8);
    }

    /// Adds a difference: 0, -1, 1, -2, ... as 0, 1, 2, 3, ...
    pub fn push_signed(&mut self, value: i64) {
        let doubled = value.unsigned_abs().saturating_mul(2);
        self.push(if value < 0 { doubled - 1 } else { doubled });
    }

    /// Adds the difference of two sizes.
    pub fn push_change(&mut self, from: u64, to: u64) {
        let change = i128::from(to) - i128::from(from);
        self.push_signed(i64::try_from(change).unwrap_or(if change < 0 {
            i64::MIN
        } else {
            i64::MAX
        }));
    }

    /// Adds all of another.
    pub fn append(&mut self, other: &Column) {
        self.bytes.extend_from_slice(&other.bytes);
    }

    /// The bytes so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Deflates bytes, without a header.
pub fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(6));
    // A vector takes everything.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

/// Bytes in base64, padded.
pub fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for letter in 0..4 {
            if letter <= three.len() {
                let index = bits >> (18 - 6 * letter) & 63;
                text.push(char::from(LETTERS[index as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_take_seven_bits_a_byte_and_differences_alternate() {
        let mut column = Column::default();
        column.push(0);
        column.push(300);
        for value in [0, -1, 1, -2] {
            column.push_signed(value);
        }
        column.push_change(10, 7);
        assert_eq!(column.bytes(), [0, 0xac, 2, 0, 1, 2, 3, 5]);
    }

    #[test]
    fn what_a_page_cannot_count_becomes_the_most_that_it_can() {
        let most = |fill: &dyn Fn(&mut Column)| {
            let mut column = Column::default();
            fill(&mut column);
            column.bytes
        };
        let limit = most(&|column| column.push(INTEGER_MAX));
        assert_eq!(most(&|column| column.push(u64::MAX)), limit);
        assert_eq!(most(&|column| column.push_change(0, u64::MAX)), limit);
        assert_eq!(most(&|column| column.push_signed(i64::MIN)).len(), limit.len());
    }

    #[test]
    fn base64_is_that_of_the_standard() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }
}
