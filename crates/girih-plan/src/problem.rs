//! The planning problem, and what solves it.
//!
//! Time is a ring or a line. On a line (`period` 0) a buffer lives in `[lower, upper)`. On a ring
//! of `period` ticks a buffer with `upper <= period` lives in the same way; one with
//! `upper > period` wraps: it lives in `[lower, period)` and in `[0, upper - period)`, and holds
//! one place in both, so that a plan of one iteration can be followed for ever.
//!
//! ```text
//!  ring of 10:   lower 7, upper 12   ->   alive at 7 8 9 0 1
//! ```

use thiserror::Error;

/// One buffer. Sizes in bytes, times in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Buffer {
    /// First tick at which it is alive.
    pub lower: u32,
    /// First tick at which it is no longer alive; on a ring, at most `lower + period`.
    pub upper: u32,
    /// Bytes. A buffer of 0 bytes takes no room and may lie anywhere.
    pub size: u64,
}

/// A set of buffers to be placed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Problem {
    /// The buffers; their index is their identity.
    pub buffers: Vec<Buffer>,
    /// Ticks after which time begins again; 0 for a line.
    pub period: u32,
    /// Every offset must be a multiple of this; 1 for none. At least 1.
    pub alignment: u64,
}

/// An offset for each buffer of a [`Problem`], in its order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Solution {
    /// Bytes from the start of the arena.
    pub offsets: Vec<u64>,
    /// Bytes of the arena: the largest `offset + size`, rounded up to the alignment.
    pub height: u64,
    /// The planner that found it.
    pub planner: &'static str,
}

/// Why a [`Problem`] has no meaning. Buffers are named by their index.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ProblemError {
    /// The alignment is 0.
    #[error("give an alignment of 1 for none: it is 0, and every offset must be a multiple of it")]
    Alignment,
    /// More buffers than the planners can number.
    #[error(
        "split the problem: {buffers} buffers are more than the {} that can be planned at once",
        Problem::MAX_BUFFERS
    )]
    TooMany {
        /// How many there are.
        buffers: usize,
    },
    /// A buffer is never alive.
    #[error(
        "make upper more than lower: buffer {buffer} lives in [{lower}, {upper}), which is never"
    )]
    Empty {
        /// Its index.
        buffer: usize,
        /// Its birth.
        lower: u32,
        /// Its death.
        upper: u32,
    },
    /// A buffer is born after the ring has ended.
    #[error(
        "subtract the period {period} from the times of buffer {buffer}: it is born at tick {lower}, \
         but the ring has the ticks 0 to {}",
        period - 1
    )]
    OutsideRing {
        /// Its index.
        buffer: usize,
        /// Its birth.
        lower: u32,
        /// The period of the ring.
        period: u32,
    },
    /// A buffer lives longer than the ring is round, so that it would meet itself.
    #[error(
        "give a buffer that is always alive upper = lower + period: buffer {buffer} lives in \
         [{lower}, {upper}), longer than the period {period}"
    )]
    LapsItself {
        /// Its index.
        buffer: usize,
        /// Its birth.
        lower: u32,
        /// Its death.
        upper: u32,
        /// The period of the ring.
        period: u32,
    },
    /// The sizes, rounded up to the alignment, add up to more than can be addressed.
    #[error(
        "give smaller sizes: up to buffer {buffer} they add up to more than 2^64 - 1 bytes when \
         rounded up to the alignment"
    )]
    TooLarge {
        /// The buffer at which the sum overflows.
        buffer: usize,
    },
}

impl Problem {
    /// The most buffers that a problem may have: planners number buffers, and sections of a ring
    /// twice over, in 32 bits.
    pub const MAX_BUFFERS: usize = (1 << 30) - 1;

    /// Says whether the problem has a meaning, and names the first buffer that has none. Every
    /// planner asks this first, so that it can add sizes and times without fear.
    pub fn validate(&self) -> Result<(), ProblemError> {
        if self.alignment == 0 {
            return Err(ProblemError::Alignment);
        }
        if self.buffers.len() > Problem::MAX_BUFFERS {
            return Err(ProblemError::TooMany { buffers: self.buffers.len() });
        }
        let mut total = 0u64;
        for (index, buffer) in self.buffers.iter().enumerate() {
            self.validate_lifetime(index, buffer)?;
            total = (buffer.size.checked_next_multiple_of(self.alignment))
                .and_then(|size| total.checked_add(size))
                .ok_or(ProblemError::TooLarge { buffer: index })?;
        }
        Ok(())
    }

    fn validate_lifetime(&self, index: usize, buffer: &Buffer) -> Result<(), ProblemError> {
        let Buffer { lower, upper, .. } = *buffer;
        let period = self.period;
        if lower >= upper {
            return Err(ProblemError::Empty { buffer: index, lower, upper });
        }
        if period > 0 && lower >= period {
            return Err(ProblemError::OutsideRing { buffer: index, lower, period });
        }
        if period > 0 && upper - lower > period {
            return Err(ProblemError::LapsItself { buffer: index, lower, upper, period });
        }
        Ok(())
    }
}
