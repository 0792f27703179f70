//! The bytes of a pickle, one buffer at a time, and the errors that name a byte of it.

use std::io::{self, Read};

use thiserror::Error;

use super::opcode;
use crate::compress::fill;

/// What is wrong with a pickle, and where.
#[derive(Debug, Error)]
#[error("{}", self.text())]
pub struct PickleError {
    /// Offset of the opcode in the decompressed stream.
    pub offset: u64,
    /// What is wrong there.
    pub kind: PickleErrorKind,
}

impl PickleError {
    fn text(&self) -> String {
        let PickleError { offset, kind } = self;
        match kind.advice() {
            Some(advice) => format!("{advice}: at byte {offset} of the pickle: {kind}"),
            // The cause says what to do.
            None => format!("{kind}, at byte {offset} of the pickle"),
        }
    }
}

/// What is wrong with a pickle.
#[derive(Debug, Error)]
pub enum PickleErrorKind {
    /// The source failed, or what it held could not be decompressed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The stream ended before its STOP.
    #[error("the file ends in the middle")]
    Truncated,
    /// An opcode that imports or calls something.
    #[error(
        "opcode {} would {action}, which no memory snapshot needs; nothing of it was executed",
        opcode::name(*.code)
    )]
    Refused {
        /// The opcode.
        code: u8,
        /// What Python would do, with the name if it is known.
        action: String,
    },
    /// A byte that is no opcode of protocols 0 to 5, or one of Python 2's alone.
    #[error("byte {0:#04x} is no opcode that can be read")]
    UnknownOpcode(u8),
    /// A protocol from the future.
    #[error("protocol {0} is not known, protocols 0 to 5 are")]
    Protocol(u8),
    /// An opcode took more from the stack than was there.
    #[error("opcode {} finds too little on the stack", opcode::name(*.0))]
    StackUnderflow(u8),
    /// An opcode that works on a list or a dict found something else.
    #[error("opcode {} wants {wanted}, found {found}", opcode::name(*.code))]
    Type {
        /// The opcode.
        code: u8,
        /// What it works on.
        wanted: &'static str,
        /// What was there.
        found: &'static str,
    },
    /// A memo slot was read that was never written.
    #[error("memo slot {0} is read before it is written")]
    MemoUnset(u64),
    /// A memo slot was written that is far beyond what the bytes so far can have filled.
    #[error("memo slot {0} is written, far beyond what the file so far can have filled")]
    MemoSparse(u64),
    /// A number in text form that is none.
    #[error("`{0}` is not a number")]
    Number(String),
    /// A structure that is deeper or wider than any snapshot.
    #[error("more than {limit} {what} are open at once")]
    TooDeep {
        /// What there is too much of.
        what: &'static str,
        /// The most that is accepted.
        limit: usize,
    },
    /// More objects than can be numbered.
    #[error("more than 2147483648 objects of one kind")]
    TooMany,
    /// A string that is longer than any.
    #[error("a string has more than {TEXT_MAX} bytes")]
    TooLong,
    /// Few compressed bytes that become far more objects than a recording has.
    #[error(
        "{consumed} compressed bytes have become more than the {memory_max} bytes of memory that a \
         recording takes"
    )]
    Swells {
        /// Compressed bytes read so far.
        consumed: u64,
        /// Bytes of memory that are allowed for them.
        memory_max: u64,
    },
}

impl PickleErrorKind {
    /// What to do about it; none where the cause says that.
    fn advice(&self) -> Option<&'static str> {
        Some(match self {
            PickleErrorKind::Io(_) => return None,
            PickleErrorKind::Truncated => "write or copy it again, it was cut short",
            PickleErrorKind::Refused { .. } => "do not unpickle it, it would run code",
            PickleErrorKind::Protocol(_) => "update girih, or copy it again",
            PickleErrorKind::UnknownOpcode(_) => "copy it again, it is no pickle or damaged",
            PickleErrorKind::StackUnderflow(_)
            | PickleErrorKind::Type { .. }
            | PickleErrorKind::MemoUnset(_)
            | PickleErrorKind::MemoSparse(_)
            | PickleErrorKind::Number(_) => "copy it again, it is damaged",
            PickleErrorKind::TooDeep { .. }
            | PickleErrorKind::TooMany
            | PickleErrorKind::TooLong
            | PickleErrorKind::Swells { .. } => "record it again, PyTorch writes no such snapshot",
        })
    }
}

/// The error is boxed so that a result is one word: the machine returns a million of them.
pub(super) type Result<T> = std::result::Result<T, Box<PickleErrorKind>>;

impl From<io::Error> for Box<PickleErrorKind> {
    fn from(error: io::Error) -> Self {
        Box::new(PickleErrorKind::Io(error))
    }
}

/// Bytes that a string may have.
const TEXT_MAX: u64 = 64 << 20;

/// Large, since zlib saves its window of 32 KiB at the end of each buffer.
const BUFFER_BYTES: usize = 256 << 10;

/// A buffered byte stream that knows its offset.
pub(super) struct Source<R> {
    input: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Offset of the buffer's first byte in the stream.
    base: u64,
}

impl<R: Read> Source<R> {
    pub(super) fn new(input: R) -> Self {
        Source { input, buffer: vec![0; BUFFER_BYTES].into(), start: 0, end: 0, base: 0 }
    }

    /// Offset of the next byte.
    #[inline]
    pub(super) fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Where the bytes come from.
    pub(super) fn input(&self) -> &R {
        &self.input
    }

    /// The bytes that are in the buffer.
    #[inline]
    pub(super) fn available(&self) -> &[u8] {
        &self.buffer[..self.end][self.start..]
    }

    /// Takes `count` of the [available](Source::available) bytes.
    #[inline]
    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        if let Some(bytes) = self.buffer[..self.end][self.start..].first_chunk::<N>() {
            self.start += N;
            return Ok(*bytes);
        }
        self.refill(N)?;
        self.array()
    }

    /// The next `count` bytes, at most as many as the buffer holds.
    #[inline]
    pub(super) fn short(&mut self, count: u8) -> Result<&[u8]> {
        let count = usize::from(count);
        if self.end - self.start < count {
            self.refill(count)?;
        }
        let start = self.start;
        self.start += count;
        Ok(&self.buffer[start..start + count])
    }

    /// The next `count` bytes of a string. Holds no more than have arrived.
    pub(super) fn long(&mut self, count: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.for_each_piece(count.min(TEXT_MAX), |piece| bytes.extend_from_slice(piece))?;
        if count > TEXT_MAX {
            return Err(Box::new(PickleErrorKind::TooLong));
        }
        Ok(bytes)
    }

    pub(super) fn skip(&mut self, count: u64) -> Result<()> {
        self.for_each_piece(count, |_| ())
    }

    /// The bytes up to the next newline, which is taken too.
    pub(super) fn line(&mut self) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        loop {
            match self.byte()? {
                b'\n' => return Ok(line),
                _ if line.len() as u64 == TEXT_MAX => {
                    return Err(Box::new(PickleErrorKind::TooLong));
                }
                byte => line.push(byte),
            }
        }
    }

    /// Reads to the end, so that a checksum there is verified.
    pub(super) fn drain(&mut self) -> Result<()> {
        while self.end > 0 {
            self.base += self.end as u64;
            self.start = 0;
            self.end = fill(&mut self.input, &mut self.buffer)?;
        }
        Ok(())
    }

    fn for_each_piece(&mut self, mut count: u64, mut take: impl FnMut(&[u8])) -> Result<()> {
        while count > 0 {
            if self.start == self.end {
                self.refill(1)?;
            }
            let available = self.end - self.start;
            let piece = usize::try_from(count).map_or(available, |count| count.min(available));
            take(&self.buffer[self.start..self.start + piece]);
            self.start += piece;
            count -= piece as u64;
        }
        Ok(())
    }

    /// Makes at least `count` bytes available, or fails as truncated.
    #[cold]
    fn refill(&mut self, count: usize) -> Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.base += self.start as u64;
        self.end -= self.start;
        self.start = 0;
        self.end += fill(&mut self.input, &mut self.buffer[self.end..])?;
        if self.end < count {
            return Err(Box::new(PickleErrorKind::Truncated));
        }
        Ok(())
    }
}
