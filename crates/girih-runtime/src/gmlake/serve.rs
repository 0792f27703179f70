//! From the state that `BestFit` found to a block: split, stitch, grow.
//!
//! ```text
//!  S1  [ exact ]                          given as it is, no call of the device
//!  S2  [ given |  left  ]                 split, no call of the device
//!  S3  [ p1 ][ p2 ][ p3 | left ]          p3 is split; p1 p2 p3 mapped once more, side by side
//!  S4  [ p1 ][ p2 ]  + [ new ]            created; p1 p2 new mapped once more, side by side
//! ```
//!
//! The device is called first and the books are written when all calls are made: one that fails
//! leaves the blocks as they were.

use girih_trace::{Action, BlockState, PoolId, StreamId};

use super::Gmlake;
use super::best_fit::Fit;
use super::grants::Grant;
use super::kinds::{HANDLE, Place, PrimitiveId, Range};
use super::mapping::{create_range, drop_range, map_handles};
use super::pools::Pools;
use crate::device::{DeviceError, Handle};
use crate::policy::{Env, Granted, Request};

impl Gmlake {
    /// An inactive block for `size` bytes, a multiple of [`HANDLE`]. None if the device has too
    /// little memory, or if the limit leaves too little.
    pub(super) fn find(
        &mut self,
        env: &mut Env<'_>,
        stream: StreamId,
        size: u64,
    ) -> Result<Option<Place>, DeviceError> {
        let found = match self.pools.best_fit(stream, size, &self.config) {
            Fit::Exact(place) => Ok(place),
            Fit::Single(id) => Ok(self.halve(id, size)),
            Fit::Multiple(parts) if self.may_stitch(env, size)? => {
                self.stitch(env, &parts, size, None)
            }
            // The cheapest that is left: new memory for all of it.
            Fit::Multiple(_) if !self.beside.allows(env, size) => return Ok(None),
            Fit::Multiple(_) => self.grow(env, stream, &[], size),
            Fit::Insufficient(parts, missing) => {
                let is_added = self.config.grows_by_deficit
                    && !parts.is_empty()
                    && self.may_stitch(env, size)?;
                let (parts, missing) = if is_added { (parts, missing) } else { (vec![], size) };
                if !self.beside.allows(env, missing) {
                    return Ok(None);
                }
                self.grow(env, stream, &parts, missing)
            }
        };
        match found {
            Ok(place) => Ok(Some(place)),
            Err(DeviceError::OutOfMemory { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes room for a stitched block of `size` bytes ([`Gmlake::free_stitches`]). False if those that
    /// cannot be given up are too many, or the device maps a handle at one address alone.
    fn may_stitch(&mut self, env: &mut Env<'_>, size: u64) -> Result<bool, DeviceError> {
        if !env.device.maps_twice() {
            return Ok(false);
        }
        if !self.pools.has_room_for_stitch(size) {
            self.free_stitches(env, size)?;
        }
        Ok(self.pools.has_room_for_stitch(size))
    }

    /// S2: what is needed of a larger block; all of it if it may not be split.
    fn halve(&mut self, id: PrimitiveId, size: u64) -> Place {
        if Pools::may_split(self.pools.primitives[id].size, &self.config) {
            self.pools.split(id, size);
        }
        Place::Primitive(id)
    }

    /// S4: so many bytes more, stitched to `parts` if there are any.
    fn grow(
        &mut self,
        env: &mut Env<'_>,
        stream: StreamId,
        parts: &[PrimitiveId],
        missing: u64,
    ) -> Result<Place, DeviceError> {
        let range = create_range(env.device, &mut self.limbo, missing)?;
        if parts.is_empty() {
            return Ok(Place::Primitive(self.add_range(env, range, stream)));
        }
        let held: u64 = parts.iter().map(|&part| self.pools.primitives[part].size).sum();
        self.stitch(env, parts, held + missing, Some((range, stream)))
    }

    /// Maps the handles of primitive blocks, and of a new range after them, side by side, `size`
    /// bytes in all. What the last block has beyond that is split off.
    fn stitch(
        &mut self,
        env: &mut Env<'_>,
        parts: &[PrimitiveId],
        size: u64,
        new: Option<(Range, StreamId)>,
    ) -> Result<Place, DeviceError> {
        let mut handles: Vec<Handle> = Vec::with_capacity((size / HANDLE) as usize);
        let mut last = 0;
        for &part in parts {
            let left = size - handles.len() as u64 * HANDLE;
            last = left.min(self.pools.primitives[part].size);
            handles.extend(self.pools.handles(part, last));
        }
        if let Some((range, _)) = &new {
            handles.extend(range.handles.iter().flatten());
        }
        let mapped = self
            .free_stitches(env, size)
            .and_then(|()| map_handles(env.device, &mut self.limbo, &handles));
        let address = match mapped {
            Ok(address) => address,
            Err(error) => {
                if let Some((range, _)) = &new {
                    drop_range(env.device, &mut self.limbo, range);
                }
                return Err(error);
            }
        };
        let mut parts = parts.to_vec();
        if let Some((range, stream)) = new {
            parts.push(self.add_range(env, range, stream));
        } else if let Some(&cut) = parts.last()
            && last < self.pools.primitives[cut].size
        {
            self.pools.split(cut, last);
        }
        self.beside.stats.num_stitches += 1;
        Ok(Place::Stitched(self.pools.add_stitch(address, parts, true)))
    }

    /// Takes a new range into the books.
    fn add_range(&mut self, env: &mut Env<'_>, range: Range, stream: StreamId) -> PrimitiveId {
        let (address, size) = (range.address, range.size());
        env.log(Action::SegmentMap, address, size, stream, PoolId::DEFAULT);
        self.beside.stats.segment.increase(false, 1);
        self.beside.stats.reserved_bytes.increase(false, size);
        self.beside.stats.num_device_alloc += 1;
        self.pools.add_range(range, stream)
    }

    /// Gives an inactive block to the program.
    pub(super) fn give(&mut self, env: &mut Env<'_>, request: Request, place: Place) -> Granted {
        let Request { size: requested, stream, pool } = request;
        let (address, size) = self.pools.extent(place);
        let (state, events, users) = (BlockState::Allocated, 0, Vec::new());
        let grant = Grant { place, address, size, requested, stream, state, events, users };
        let block = self.grants.add(grant);
        self.pools.take(place, block);
        env.log(Action::Alloc, address, requested, stream, pool);
        self.beside.stats.count_allocation(false, size, requested);
        Granted { block, address, size }
    }
}
