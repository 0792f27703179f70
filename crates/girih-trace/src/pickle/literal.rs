//! Numbers and texts, as a pickle writes them.

use super::value::Value;

/// A little-endian integer in two's complement, of any length.
#[inline]
pub(super) fn long(bytes: &[u8]) -> Value {
    if let Some(last) = bytes.last()
        && bytes.len() <= 8
    {
        let sign = if *last & 0x80 == 0 { 0 } else { 0xff };
        let mut wide = [sign; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        return Value::signed(i64::from_le_bytes(wide));
    }
    match bytes {
        [] => Value::unsigned(0),
        [low @ .., 0] if let Ok(low) = low.try_into() => Value::unsigned(u64::from_le_bytes(low)),
        _ => Value::HUGE,
    }
}

/// True if a text is an integer of any length.
pub(super) fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// Undoes Python's `raw-unicode-escape`: `\u` with four hexadecimal digits and `\U` with eight; all else is
/// Latin-1.
pub(super) fn unescape(line: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let [first, tail @ ..] = rest {
        let digits = match tail.first() {
            Some(b'u') if *first == b'\\' => 4,
            Some(b'U') if *first == b'\\' => 8,
            _ => 0,
        };
        let escaped = tail
            .get(1..=digits)
            .filter(|_| digits > 0)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u32::from_str_radix(digits, 16).ok());
        match escaped {
            Some(code) => {
                text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                rest = &tail[digits + 1..];
            }
            None => {
                text.push(char::from(*first));
                rest = tail;
            }
        }
    }
    text
}

/// A name from the file, fit for a message.
pub(super) fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().take(80).flat_map(char::escape_debug).collect()
}
