//! Decompression that a hostile file cannot turn into a bomb.
//!
//! An [`Input`] finds out by the first bytes whether its source is gzip, zstd or neither, and gives
//! the decompressed bytes as a stream: the whole text is never held. A few kilobytes of gzip can
//! stand for a gigabyte of zeros, so the stream ends with an error once it has given more than
//! [`Limits`] allow for what was read.
//!
//! ```text
//!  source ──► head (magic) ──► gzip │ zstd │ as it is ──► count ──► reader
//!     └─────────── bytes consumed ──────── compared with ───┘
//! ```

use std::io::{self, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use thiserror::Error;

/// How much a compressed file may grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Decompressed bytes that one compressed byte may stand for. Snapshots of long runs reach
    /// about 60 with zstd; deflate cannot pass 1032.
    pub max_expansion: u64,
    /// Decompressed bytes that are always allowed, however small the file.
    pub floor_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { max_expansion: 1000, floor_bytes: 64 << 20 }
    }
}

impl Limits {
    /// Bytes that `consumed` compressed bytes may become.
    pub(crate) fn allowance(&self, consumed: u64) -> u64 {
        consumed.saturating_mul(self.max_expansion).max(self.floor_bytes)
    }

    /// The fewest compressed bytes that `produced` bytes may come of: the other way round.
    pub(crate) fn least(&self, produced: u64) -> u64 {
        if produced <= self.floor_bytes { 0 } else { produced.div_ceil(self.max_expansion.max(1)) }
    }
}

/// Bytes of memory that one compressed byte may stand for once it is understood. A trace entry takes some
/// 150, and no less than one byte even where steps repeat: its time is its own.
const MEMORY_PER_BYTE: u64 = 256;
/// Bytes of memory that are always allowed.
const MEMORY_FLOOR: u64 = 256 << 20;

/// A source that knows of how many bytes it is made: a file that was compressed may become many more.
pub(crate) trait Compressed: Read {
    /// Compressed bytes read so far.
    fn consumed(&self) -> u64;

    /// Bytes of memory that what was read may take.
    fn memory_max(&self) -> u64 {
        self.consumed().saturating_mul(MEMORY_PER_BYTE).max(MEMORY_FLOOR)
    }
}

impl<R: Read> Compressed for Input<R> {
    fn consumed(&self) -> u64 {
        Input::consumed(self)
    }
}

/// What was looked at of an input, and the rest of it.
impl<H: Read, R: Read> Compressed for io::Chain<H, Input<R>> {
    fn consumed(&self) -> u64 {
        self.get_ref().1.consumed()
    }
}

/// A compressed file grew beyond its [`Limits`]. Comes inside an [`io::Error`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "decompress it first (`gunzip`, `zstd -d`) if you trust it: {consumed} compressed bytes have \
     become more than {allowed} bytes"
)]
pub struct ExpansionError {
    /// Compressed bytes read so far.
    pub consumed: u64,
    /// Bytes that the limits allow for them.
    pub allowed: u64,
}

/// A byte stream, decompressed if it was gzip or zstd.
pub struct Input<R: Read> {
    decoder: Decoder<BufReader<Sniffed<R>>>,
    limits: Limits,
    produced: u64,
}

enum Decoder<B: io::BufRead> {
    Plain(B),
    Gzip(Box<MultiGzDecoder<B>>),
    Zstd(zstd::Decoder<'static, B>),
}

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const BUFFER_BYTES: usize = 128 << 10;

impl<R: Read> Input<R> {
    /// Looks at the first bytes of `source` and prepares to decompress it.
    ///
    /// # Errors
    /// Those of `source`, and zstd's if it cannot set up its decoder.
    pub fn new(source: R, limits: Limits) -> io::Result<Self> {
        let sniffed = Sniffed::new(source)?;
        let head = *sniffed.head();
        let buffered = BufReader::with_capacity(BUFFER_BYTES, sniffed);
        let decoder = if head.starts_with(&GZIP_MAGIC) {
            Decoder::Gzip(Box::new(MultiGzDecoder::new(buffered)))
        } else if head == ZSTD_MAGIC {
            Decoder::Zstd(zstd::Decoder::with_buffer(buffered)?)
        } else {
            Decoder::Plain(buffered)
        };
        Ok(Input { decoder, limits, produced: 0 })
    }

    /// Bytes taken from the source so far, read ahead included.
    pub(crate) fn consumed(&self) -> u64 {
        let buffered = match &self.decoder {
            Decoder::Plain(reader) => reader,
            Decoder::Gzip(decoder) => decoder.get_ref(),
            Decoder::Zstd(decoder) => decoder.get_ref(),
        };
        buffered.get_ref().consumed
    }
}

impl<R: Read> Read for Input<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match &mut self.decoder {
            Decoder::Plain(reader) => return reader.read(buffer),
            Decoder::Gzip(decoder) => decoder.read(buffer).map_err(advised)?,
            Decoder::Zstd(decoder) => decoder.read(buffer).map_err(advised)?,
        };
        self.produced += count as u64;
        let consumed = self.consumed();
        let allowed = self.limits.allowance(consumed);
        if self.produced > allowed {
            return Err(io::Error::other(ExpansionError { consumed, allowed }));
        }
        Ok(count)
    }
}

/// An error of a decoder with what to do about it; one of the source as it is.
fn advised(error: io::Error) -> io::Error {
    let advice = match error.kind() {
        io::ErrorKind::UnexpectedEof => "write or copy it again, it was cut short",
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::Other => {
            "copy it again, it is damaged"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{advice}: {error}"))
}

/// A source whose first four bytes were looked at and are given again. Counts what it gives.
struct Sniffed<R> {
    head: [u8; 4],
    head_start: usize,
    head_end: usize,
    source: R,
    consumed: u64,
}

impl<R: Read> Sniffed<R> {
    fn new(mut source: R) -> io::Result<Self> {
        let mut head = [0; 4];
        let head_end = fill(&mut source, &mut head)?;
        Ok(Sniffed { head, head_start: 0, head_end, source, consumed: 0 })
    }

    /// The first bytes; zeros where the source has fewer than four.
    fn head(&self) -> &[u8; 4] {
        &self.head
    }
}

impl<R: Read> Read for Sniffed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = &self.head[self.head_start..self.head_end];
        let count = if left.is_empty() {
            self.source.read(buffer)?
        } else {
            let count = left.len().min(buffer.len());
            buffer[..count].copy_from_slice(&left[..count]);
            self.head_start += count;
            count
        };
        self.consumed += count as u64;
        Ok(count)
    }
}

/// Reads until `buffer` is full or the source ends. Returns the bytes read.
pub(crate) fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads `count` bytes, or as many as there are. The buffer grows with what arrives, so that a
/// false `count` costs nothing.
pub(crate) fn read_up_to(source: &mut impl Read, count: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(count).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn read(bytes: &[u8], limits: Limits) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        Input::new(bytes, limits)?.read_to_end(&mut text)?;
        Ok(text)
    }

    #[test]
    fn a_text_is_the_same_plain_gzipped_and_with_zstd() {
        for text in [&b""[..], b"a", b"abc", b"a longer text, with more than four bytes"] {
            let limits = Limits::default();
            assert_eq!(read(text, limits).unwrap(), text);
            assert_eq!(read(&gzip(text), limits).unwrap(), text);
            assert_eq!(read(&zstd::encode_all(text, 3).unwrap(), limits).unwrap(), text);
        }
    }

    #[test]
    fn a_bomb_is_an_error_that_names_the_limit() {
        let limits = Limits { max_expansion: 10, floor_bytes: 1 << 10 };
        let zeros = vec![0; 1 << 20];
        for bomb in [gzip(&zeros), zstd::encode_all(&zeros[..], 3).unwrap()] {
            let error = read(&bomb, limits).unwrap_err();
            let inner = error.get_ref().unwrap().downcast_ref::<ExpansionError>().unwrap();
            assert!(inner.consumed <= bomb.len() as u64, "{inner}");
        }
        assert_eq!(read(&zeros, limits).unwrap().len(), zeros.len(), "plain bytes never grow");
    }

    #[test]
    fn a_truncated_gzip_is_an_error() {
        let whole = gzip(b"some text that is cut short");
        assert!(read(&whole[..whole.len() - 6], Limits::default()).is_err());
    }
}
