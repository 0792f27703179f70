//! Giving up: stitched blocks by least recent use (`StitchFree`), and memory that is free.
//!
//! ```text
//!  inactive stitched block ─► retired, with an event on its stream ─► done ─► unmapped
//!  inactive primitive block ─► its stream is waited for ─► stitched blocks over it, then it itself
//! ```
//!
//! The driver does not wait for kernels when it unmaps. Work on a stream may still use addresses
//! that the program has given back, because reuse on the same stream needs no wait; so nothing is
//! unmapped before its stream has come past. Other streams that used a block were waited for before
//! it became inactive (`frees`).

use std::collections::VecDeque;

use girih_trace::{Action, PoolId, StreamId};

use super::Gmlake;
use super::kinds::{PrimitiveId, Stitched};
use super::pools::Removed;
use crate::device::{Address, Device, DeviceError, StreamEvent};
use crate::pending::Limbo;
use crate::policy::Env;

/// The addresses of stitched blocks that are gone, until their streams have come past.
#[derive(Debug, Default)]
pub(super) struct Retired(VecDeque<(StreamEvent, Address, u64)>);

impl Retired {
    /// Unmaps those whose event is done, and no more than the first that is not; with `waits`, all.
    pub(super) fn reap(
        &mut self,
        device: &mut dyn Device,
        limbo: &mut Limbo,
        waits: bool,
    ) -> Result<(), DeviceError> {
        while let Some(&(event, address, size)) = self.0.front() {
            if waits {
                device.synchronize_event(event)?;
            } else if !device.query_event(event)? {
                break;
            }
            self.0.pop_front();
            limbo.destroy_event(device, event);
            limbo.unmap(device, address, size);
            limbo.unreserve(device, address, size);
        }
        Ok(())
    }
}

impl Gmlake {
    /// Gives up stitched blocks that are inactive, the least recently used first, until one of
    /// `size` bytes more stays within [`Config::stitched_limit`](super::Config::stitched_limit).
    /// Stitched blocks with an active part stay, even if that exceeds it. Not during a capture, in
    /// which no event may be recorded.
    pub(super) fn free_stitches(
        &mut self,
        env: &mut Env<'_>,
        size: u64,
    ) -> Result<(), DeviceError> {
        while !self.beside.is_capturing()
            && self.pools.stitched_bytes.saturating_add(size) > self.config.stitched_limit
            && let Some(&(_, id)) = self.pools.by_use.first()
        {
            let &Stitched { address, size, stream, is_mapped, .. } = &self.pools.stitches[id];
            if is_mapped {
                let event = env.device.record_event(stream)?;
                self.retired.0.push_back((event, address, size));
            }
            self.pools.remove_stitch(id);
        }
        Ok(())
    }

    /// Gives back every inactive primitive block. Waits for the streams that used them. Does
    /// nothing during a capture, in which no stream may be waited for.
    pub(super) fn release_idle(&mut self, env: &mut Env<'_>) -> Result<(), DeviceError> {
        if self.beside.is_capturing() {
            return Ok(());
        }
        self.limbo.settle(env.device)?;
        self.retired.reap(env.device, &mut self.limbo, true)?;
        let idle: Vec<(StreamId, PrimitiveId)> =
            self.pools.idle.iter().map(|&(stream, .., id)| (stream, id)).collect();
        for same_stream in idle.chunk_by(|one, next| one.0 == next.0) {
            env.device.synchronize_stream(same_stream[0].0)?;
            for &(_, id) in same_stream {
                self.release_primitive(env, id);
            }
        }
        Ok(())
    }

    /// Gives back one inactive primitive block, whose stream has been waited for, and the stitched
    /// blocks over it: a part of each is inactive, so the program holds none of them.
    fn release_primitive(&mut self, env: &mut Env<'_>, id: PrimitiveId) {
        while let Some(&over) = self.pools.primitives[id].stitches.last() {
            let Stitched { address, size, is_mapped, .. } = self.pools.remove_stitch(over);
            if is_mapped {
                self.limbo.unmap(env.device, address, size);
                self.limbo.unreserve(env.device, address, size);
            }
        }
        let Removed { primitive, handles, range } = self.pools.remove_primitive(id);
        let (address, size, stream) = (primitive.address, primitive.size, primitive.stream);
        self.limbo.unmap(env.device, address, size);
        for handle in handles {
            self.limbo.release(env.device, handle);
        }
        if let Some((start, bytes)) = range {
            self.limbo.unreserve(env.device, start, bytes);
            self.beside.stats.segment.decrease(false, 1);
            self.beside.stats.num_device_free += 1;
        }
        env.log(Action::SegmentUnmap, address, size, stream, PoolId::DEFAULT);
        self.beside.stats.reserved_bytes.decrease(false, size);
    }
}
