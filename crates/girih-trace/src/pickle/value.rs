//! A Python object in 8 bytes.
//!
//! Most objects of a snapshot are integers, and most integers are addresses, sizes and times. So
//! the integers of `0 .. 2^64 - 2^40` stand for themselves, which has room for every address that
//! a driver gives. The topmost `2^40` values hold everything else: a tag, and an index into the
//! [heap](super::Heap).
//!
//! ```text
//!   0x0000_0000_0000_0000 ..= 0xffff_feff_ffff_ffff   an integer, itself
//!   0xffff_ff TT iiii_iiii                            tag TT, payload iiii_iiii
//! ```

/// A string on the heap, by index. The first ones are [`WORDS`](super::Record::WORDS).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Text(pub(crate) u32);

impl Text {
    /// No string at all.
    pub(crate) const NONE: Text = Text(u32::MAX);
}

/// A Python object: a small integer, or a tag with an index into the heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Value(u64);

/// The first value that is not an integer itself.
const TAGGED: u64 = 0xffff_ff00_0000_0000;

/// Tags of the values that have an index.
const NEGATIVE: u8 = 1;
const TEXT: u8 = 2;
const TUPLE: u8 = 3;
const PAIR: u8 = 4;
const LIST: u8 = 5;
const DICT: u8 = 6;
/// The tag of the values that are only themselves.
const SINGLE: u8 = 0;

impl Value {
    pub(crate) const NONE: Value = Value::tagged(SINGLE, 0);
    pub(crate) const FALSE: Value = Value::tagged(SINGLE, 1);
    pub(crate) const TRUE: Value = Value::tagged(SINGLE, 2);
    /// A float. Nothing here wants its value.
    pub(crate) const FLOAT: Value = Value::tagged(SINGLE, 3);
    /// A `bytes` or `bytearray`. Nothing here wants its content.
    pub(crate) const BYTES: Value = Value::tagged(SINGLE, 4);
    /// An integer out of range.
    pub(crate) const HUGE: Value = Value::tagged(SINGLE, 5);
    /// A memo slot that was never written. Never on the stack.
    pub(crate) const UNSET: Value = Value::tagged(SINGLE, 6);

    const fn tagged(tag: u8, payload: u32) -> Value {
        Value(TAGGED | (tag as u64) << 32 | payload as u64)
    }

    #[inline]
    pub(crate) fn unsigned(value: u64) -> Value {
        if value < TAGGED { Value(value) } else { Value::HUGE }
    }

    /// An integer; of the negative ones, only those of 32 bits keep their value.
    #[inline]
    pub(crate) fn signed(value: i64) -> Value {
        match (u64::try_from(value), u32::try_from(-1 - value.max(-i64::MAX))) {
            (Ok(value), _) => Value(value),
            (_, Ok(complement)) => Value::tagged(NEGATIVE, complement),
            _ => Value::HUGE,
        }
    }

    #[inline]
    pub(crate) const fn text(text: Text) -> Value {
        Value::tagged(TEXT, text.0)
    }

    /// The tuple of that index.
    pub(crate) const fn tuple(index: u32) -> Value {
        Value::tagged(TUPLE, index)
    }

    /// The tuple of two integers of that index.
    pub(crate) const fn pair(index: u32) -> Value {
        Value::tagged(PAIR, index)
    }

    /// The list of that index.
    pub(crate) const fn list(index: u32) -> Value {
        Value::tagged(LIST, index)
    }

    /// The dict of that index.
    #[inline]
    pub(crate) const fn dict(index: u32) -> Value {
        Value::tagged(DICT, index)
    }

    /// What tells it from others.
    #[inline]
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    #[inline]
    fn payload(self, tag: u8) -> Option<u32> {
        ((self.0 >> 32) == (TAGGED >> 32 | u64::from(tag))).then_some(self.0 as u32)
    }

    /// A non-negative integer.
    #[inline]
    pub(crate) fn as_u64(self) -> Option<u64> {
        (self.0 < TAGGED).then_some(self.0)
    }

    /// An integer of 64 bits with a sign.
    #[inline]
    pub(crate) fn as_i64(self) -> Option<i64> {
        match self.payload(NEGATIVE) {
            Some(complement) => Some(-1 - i64::from(complement)),
            None => self.as_u64().and_then(|value| i64::try_from(value).ok()),
        }
    }

    #[inline]
    pub(crate) fn as_text(self) -> Option<Text> {
        self.payload(TEXT).map(Text)
    }

    pub(crate) fn as_tuple(self) -> Option<u32> {
        self.payload(TUPLE)
    }

    #[inline]
    pub(crate) fn as_pair(self) -> Option<u32> {
        self.payload(PAIR)
    }

    #[inline]
    pub(crate) fn as_list(self) -> Option<u32> {
        self.payload(LIST)
    }

    #[inline]
    pub(crate) fn as_dict(self) -> Option<u32> {
        self.payload(DICT)
    }

    /// The name of its type, for messages about a value that cannot be used.
    pub(crate) fn type_name(self) -> &'static str {
        match self {
            Value::NONE => "None",
            Value::FALSE | Value::TRUE => "a bool",
            Value::FLOAT => "a float",
            Value::BYTES => "bytes",
            Value::HUGE => "an integer out of range",
            _ if self.as_u64().is_some() => "an integer",
            _ => match (self.0 >> 32) as u8 {
                NEGATIVE => "a negative integer",
                TEXT => "a string",
                TUPLE | PAIR => "a tuple",
                LIST => "a list",
                DICT => "a dict",
                _ => "nothing",
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_keep_their_value_where_they_must() {
        for value in [0, 1, 255, 1 << 47, i64::MAX, -1, -(1 << 32)] {
            assert_eq!(Value::signed(value).as_i64(), Some(value));
        }
        for value in [0, u64::from(u32::MAX), 0xff00_ffff_fe20_0000, TAGGED - 1] {
            assert_eq!(Value::unsigned(value).as_u64(), Some(value));
        }
    }

    #[test]
    fn integers_beyond_are_huge_and_have_no_value() {
        for value in [i64::MIN, i64::MIN + 1, -(1 << 32) - 1] {
            assert_eq!(Value::signed(value), Value::HUGE);
        }
        assert_eq!(Value::unsigned(TAGGED), Value::HUGE);
        assert_eq!(Value::unsigned(u64::MAX), Value::HUGE);
        assert_eq!((Value::HUGE.as_u64(), Value::HUGE.as_i64()), (None, None));
    }

    #[test]
    fn a_value_is_of_one_type_only() {
        let dict = Value::dict(u32::MAX);
        assert_eq!(dict.as_dict(), Some(u32::MAX));
        assert_eq!((dict.as_list(), dict.as_text(), dict.as_u64()), (None, None, None));
        assert_eq!(dict.type_name(), "a dict");
        assert_eq!(Value::signed(-1).as_u64(), None);
    }
}
