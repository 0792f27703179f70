//! `BestFit`: which blocks serve a request (the paper's Algorithm 1), within its stream.
//!
//! ```text
//!  S1 exact         an inactive block of the size, primitive or stitched     give it
//!  S2 single        the smallest primitive block that is larger              split it, give a half
//!  S3 multiple      the largest primitive blocks, until they are enough      stitch them
//!  S4 insufficient  all of them, and they are not enough                     grow, stitch
//!  S5               the device has no more                                   out of memory
//! ```
//!
//! A stitched block serves requests of its own size alone. S5 is not told here: it is S4 when the
//! device refuses.

use std::ops::Bound;

use girih_trace::StreamId;

use super::config::{Config, LimitOf};
use super::kinds::{Place, PrimitiveId};
use super::pools::{IdleKey, Pools};
use crate::slab::Id;

/// What serves a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    /// S1: this block.
    Exact(Place),
    /// S2: this primitive block, which is larger.
    Single(PrimitiveId),
    /// S3: these primitive blocks, the last of them perhaps in part.
    Multiple(Vec<PrimitiveId>),
    /// S4: these primitive blocks and so many bytes more.
    Insufficient(Vec<PrimitiveId>, u64),
}

impl Pools {
    /// Finds what serves `size` bytes for `stream`.
    pub(super) fn best_fit(&self, stream: StreamId, size: u64, config: &Config) -> Fit {
        if let Some(place) = self.exact(stream, size) {
            return Fit::Exact(place);
        }
        if let Some(id) = self.first(from(stream, size), stream) {
            return Fit::Single(id);
        }
        let smallest = match config.limit_of {
            LimitOf::Blocks => config.fragmentation_limit,
            LimitOf::Requests if size < config.fragmentation_limit => size,
            LimitOf::Requests => 0,
        };
        let (mut parts, mut missing) = (Vec::new(), size);
        if smallest < size {
            for &(_, bytes, _, id) in
                self.idle.range(from(stream, smallest)..from(stream, size)).rev()
            {
                parts.push(id);
                missing = missing.saturating_sub(bytes);
                if missing == 0 {
                    return Fit::Multiple(parts);
                }
            }
        }
        Fit::Insufficient(parts, missing)
    }

    /// True if what is held serves `size` bytes for `stream`.
    pub(super) fn has_room(&self, stream: StreamId, size: u64, config: &Config) -> bool {
        !matches!(self.best_fit(stream, size, config), Fit::Insufficient(..))
    }

    /// An inactive block of exactly this size. Primitive ones first: they take nothing from
    /// others.
    fn exact(&self, stream: StreamId, size: u64) -> Option<Place> {
        let primitive = self.idle.range(from(stream, size)..from(stream, size + 1)).next();
        if let Some(&(.., id)) = primitive {
            return Some(Place::Primitive(id));
        }
        let first = (stream, size, Id::of(0));
        let stitched = self.idle_stitches.range(first..=(stream, size, Id::of(u32::MAX))).next();
        stitched.map(|&(.., id)| Place::Stitched(id))
    }

    /// The first inactive primitive block of the stream from `start` on.
    fn first(&self, start: IdleKey, stream: StreamId) -> Option<PrimitiveId> {
        let found = self.idle.range((Bound::Included(start), Bound::Unbounded)).next();
        found.filter(|key| key.0 == stream).map(|&(.., id)| id)
    }

    /// True if a primitive block of `size` bytes may be split.
    pub(super) fn may_split(size: u64, config: &Config) -> bool {
        config.limit_of == LimitOf::Requests || size >= config.fragmentation_limit
    }
}

/// The first key of a stream with at least `size` bytes.
fn from(stream: StreamId, size: u64) -> IdleKey {
    (stream, size, 0, Id::of(0))
}
