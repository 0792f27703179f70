//! Segments that are taken from the device without the lock (`release_lock_on_cudamalloc`).
//!
//! An allocation of the device may take milliseconds, or wait for its work. With this setting other threads
//! go on with what is cached:
//!
//! ```text
//!  request ─► lock ─► policy ─► "a segment of n bytes" ─► unlock ─► device ─► lock ─► policy ─► block
//!                        └─ served of what is held ─► unlock
//! ```
//!
//! As in PyTorch this is of `cudaMalloc` alone: pages of expandable segments are mapped under the lock, and so
//! is everything in the modes that PyTorch does not have. If the device refuses, the request is made again
//! with the lock, from its beginning: what is then tried, and the error, are those without the setting.

use girih_runtime::{Address, Env, Request};

use super::{Heap, State};
use crate::device::BegunAlloc;
use crate::error::{HeapError, Outcome, SegmentLeft};
use crate::sources::Source;

impl Heap {
    /// Goes on with a request that ended in this error: takes its segment if that was left to do.
    ///
    /// # Errors
    /// The same error, if it is another; or as [`Heap::allocate`].
    #[cold]
    #[inline(never)]
    pub(super) fn go_on(&self, error: Box<HeapError>) -> Outcome<Address> {
        let HeapError::SegmentLeft(left) = *error else { return Err(error) };
        let (begun, source) = self.with(|state| Ok(state.begin_segment(&left)))?;
        let taken = begun.and_then(|alloc| alloc().ok());
        self.with(|state| state.finish_segment(&left, source, taken))
    }
}

impl State {
    /// The policy leaves segments to the heap, or no more, as the settings say now.
    pub(super) fn follow_lock_setting(&mut self) {
        self.engine.leave_segments(self.mode.takes_segments_unlocked(&self.config));
    }

    /// A request whose segment was left to the heap, under names that last while the lock is let go.
    pub(super) fn segment_left(&self, request: Request, segment: u64) -> SegmentLeft {
        let pool = self.journal.pools.pool(request.pool.0).unwrap_or_default();
        let stream = self.journal.stream_handle(request.stream);
        SegmentLeft { segment, size: request.size, stream, pool }
    }

    /// The allocation of the segment, if the device can make it without the lock, and the allocator of the
    /// pool that makes it, if it has one of its own.
    fn begin_segment(&mut self, left: &SegmentLeft) -> (Option<BegunAlloc>, Option<Source>) {
        let source = self.sources.get(&left.pool).copied();
        self.device.take_from(source);
        let begun = self.device.begin_alloc(left.segment);
        self.device.take_from(None);
        (begun, source)
    }

    /// Serves the request of the segment, or without it.
    fn finish_segment(
        &mut self,
        left: &SegmentLeft,
        source: Option<Source>,
        taken: Option<Address>,
    ) -> Outcome<Address> {
        self.device.take_from(source);
        if let Some(address) = taken {
            self.device.finish_alloc(address, left.segment);
        }
        let served = self.serve(left, taken);
        self.device.take_from(None);
        served
    }

    fn serve(&mut self, left: &SegmentLeft, taken: Option<Address>) -> Outcome<Address> {
        let ids = self.stream(left.stream).and_then(|stream| Ok((stream, self.pool(left.pool)?)));
        let (stream, pool) = match ids {
            Ok(ids) => ids,
            Err(error) => {
                // The pool went while the lock was let go, and there are too many others.
                if let Some(address) = taken {
                    self.device.free(address)?;
                }
                return Err(error);
            }
        };
        let request = Request { size: left.size, stream, pool };
        let taken = taken.map(|address| (address, left.segment));
        let mut env = Env::new(&mut *self.device, &mut self.journal);
        match self.engine.go_on(&mut env, request, taken) {
            Ok(granted) => Ok(self.enter(granted)),
            Err(error) => Err(self.explain(request, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use girih_trace::PoolId;

    use super::*;
    use crate::settings::Settings;

    #[test]
    fn a_heap_follows_what_the_program_sets() {
        let settings = r#"{"mode": "native", "sim": {"capacity": 1073741824}}"#;
        let settings = Settings::parse(settings).expect("right settings");
        let heap = Heap::new(0, &settings).expect("a simulated device");
        let is_left = || {
            let given = heap.with(|state| state.allocate(30 << 20, 0, PoolId::DEFAULT));
            matches!(given.as_ref().map_err(|error| &**error), Err(HeapError::SegmentLeft(_)))
        };
        assert!(!is_left());
        for (word, expected) in [("True", true), ("False", false)] {
            let changed = settings.changed(&format!("release_lock_on_cudamalloc:{word}"));
            heap.configure(&changed.config).expect("nothing refuses");
            assert_eq!(is_left(), expected);
            heap.allocate(40 << 20, 0, (0, 0)).expect("there is room");
        }
    }
}
