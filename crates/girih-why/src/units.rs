//! Bytes and counts as people read them, and text that they can.

use std::borrow::Cow;

/// Bytes with a binary unit and three digits: `12.3 GiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ if value < 10.0 => format!("{value:.2} {}", UNITS[unit]),
        _ if value < 100.0 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// Text that comes from a file, fit for a terminal: what a terminal would obey is escaped.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escape =
        |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(escape).collect())
}

/// A count with its digits in groups of three.
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_printed_with_three_digits_and_a_unit() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(20 << 20), "20.0 MiB");
        assert_eq!(bytes(19_413_336_064), "18.1 GiB");
        assert_eq!(bytes(1023 << 20), "1.00 GiB");
    }

    #[test]
    fn what_a_terminal_would_obey_is_escaped_and_all_else_stays() {
        assert_eq!(printable("a\u{1b}[31m\n\u{9b}b\u{7f}"), "a\\u{1b}[31m\\n\\u{9b}b\\u{7f}");
        assert!(matches!(printable("größe.py:3 f"), Cow::Borrowed("größe.py:3 f")));
    }

    #[test]
    fn counts_have_their_digits_in_groups() {
        assert_eq!(count(7), "7");
        assert_eq!(count(869_250), "869,250");
        assert_eq!(count(1_000_000), "1,000,000");
    }
}
