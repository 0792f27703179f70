//! A writer of pickles, protocol 4, with the opcodes that PyTorch's viewer reads too.
//!
//! It writes while it is told, so that a recording of any length needs no second copy of itself. Keys
//! that come a million times are memoized: written once, then fetched by number.

use std::io::{self, Write};

use rustc_hash::FxHashMap;

/// Items that one opcode takes: the viewer spreads them over arguments of a function.
const BATCH: usize = 500;

/// Writes one object.
pub struct Pickler<'a> {
    out: &'a mut dyn Write,
    memo: FxHashMap<&'static str, u32>,
    memoized: u32,
}

impl<'a> Pickler<'a> {
    /// Begins a pickle.
    ///
    /// # Errors
    /// Those of the writer, here and below.
    pub fn new(out: &'a mut dyn Write) -> io::Result<Pickler<'a>> {
        out.write_all(&[0x80, 4])?;
        Ok(Pickler { out, memo: FxHashMap::default(), memoized: 0 })
    }

    /// Ends it.
    pub fn end(self) -> io::Result<()> {
        self.out.write_all(b".")
    }

    /// An integer.
    pub fn int(&mut self, value: u64) -> io::Result<()> {
        match value {
            0..=0xff => self.out.write_all(&[b'K', value as u8]),
            0x100..=0xffff => {
                self.out.write_all(b"M")?;
                self.out.write_all(&(value as u16).to_le_bytes())
            }
            0x1_0000..=0x7fff_ffff => {
                self.out.write_all(b"J")?;
                self.out.write_all(&(value as u32).to_le_bytes())
            }
            // Two's complement: a byte more than the bits need, for the sign.
            _ => {
                let bytes = (72 - value.leading_zeros() as usize) / 8;
                let wide = u128::from(value).to_le_bytes();
                self.out.write_all(&[0x8a, bytes as u8])?;
                self.out.write_all(&wide[..bytes])
            }
        }
    }

    /// An integer that may be negative.
    pub fn signed(&mut self, value: i64) -> io::Result<()> {
        match u64::try_from(value) {
            Ok(value) => self.int(value),
            Err(_) => {
                self.out.write_all(&[0x8a, 8])?;
                self.out.write_all(&value.to_le_bytes())
            }
        }
    }

    /// True or false.
    pub fn bool(&mut self, value: bool) -> io::Result<()> {
        self.out.write_all(&[if value { 0x88 } else { 0x89 }])
    }

    /// A string.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        match u8::try_from(text.len()) {
            Ok(length) => self.out.write_all(&[0x8c, length])?,
            Err(_) => {
                // No name of a recording has four gibibytes; one that did would be cut.
                let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
                self.out.write_all(b"X")?;
                self.out.write_all(&length.to_le_bytes())?;
                return self.out.write_all(&text.as_bytes()[..length as usize]);
            }
        }
        self.out.write_all(text.as_bytes())
    }

    /// A string of ours: written once, then fetched.
    pub fn word(&mut self, word: &'static str) -> io::Result<()> {
        if let Some(&number) = self.memo.get(word) {
            return self.fetch(number);
        }
        self.text(word)?;
        let number = self.memoize()?;
        self.memo.insert(word, number);
        Ok(())
    }

    /// Notes the object that was just written, and gives its number.
    pub fn memoize(&mut self) -> io::Result<u32> {
        self.out.write_all(&[0x94])?;
        self.memoized += 1;
        Ok(self.memoized - 1)
    }

    /// The object of a number.
    pub fn fetch(&mut self, number: u32) -> io::Result<()> {
        match u8::try_from(number) {
            Ok(number) => self.out.write_all(&[b'h', number]),
            Err(_) => {
                self.out.write_all(b"j")?;
                self.out.write_all(&number.to_le_bytes())
            }
        }
    }

    /// A pair.
    pub fn pair(&mut self, (first, second): (u64, u64)) -> io::Result<()> {
        self.int(first)?;
        self.int(second)?;
        self.out.write_all(&[0x86])
    }

    /// A list of what `item` writes for each of `items`.
    pub fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut item: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.out.write_all(b"]")?;
        let mut items = items.into_iter().peekable();
        while items.peek().is_some() {
            self.out.write_all(b"(")?;
            for one in items.by_ref().take(BATCH) {
                item(self, one)?;
            }
            self.out.write_all(b"e")?;
        }
        Ok(())
    }

    /// A dict: `fill` writes keys and values in turn.
    pub fn dict(&mut self, fill: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.out.write_all(b"}(")?;
        fill(self)?;
        self.out.write_all(b"u")
    }

    /// A key with an integer.
    pub fn item(&mut self, key: &'static str, value: u64) -> io::Result<()> {
        self.word(key)?;
        self.int(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Pickler<'_>) -> io::Result<()>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut pickler = Pickler::new(&mut bytes).expect("a vector takes everything");
        write(&mut pickler).expect("a vector takes everything");
        bytes[2..].to_vec()
    }

    #[test]
    fn integers_take_the_shortest_form_and_keep_their_sign() {
        let of = |value| written(|pickler| pickler.int(value));
        assert_eq!(of(255), [b'K', 255]);
        assert_eq!(of(256), [b'M', 0, 1]);
        assert_eq!(of(0x7fff_ffff), [b'J', 255, 255, 255, 127]);
        assert_eq!(of(0x8000_0000), [0x8a, 5, 0, 0, 0, 128, 0], "a byte for the sign");
        assert_eq!(of(1 << 32), [0x8a, 5, 0, 0, 0, 0, 1]);
        assert_eq!(of(u64::MAX).len(), 2 + 9);
        assert_eq!(written(|pickler| pickler.signed(-2))[..3], [0x8a, 8, 0xfe]);
    }

    #[test]
    fn a_word_is_written_once_and_then_fetched() {
        let bytes = written(|pickler| {
            pickler.word("addr")?;
            pickler.word("size")?;
            pickler.word("addr")
        });
        assert_eq!(bytes, b"\x8c\x04addr\x94\x8c\x04size\x94h\x00");
    }

    #[test]
    fn a_long_list_is_appended_in_parts() {
        let bytes = written(|pickler| pickler.list(0..1200, |pickler, _| pickler.bool(true)));
        assert_eq!(bytes.iter().filter(|&&byte| byte == b'e').count(), 3);
        assert_eq!(bytes.iter().filter(|&&byte| byte == 0x88).count(), 1200);
    }
}
