//! Looking at what is held, by address; and the walk that checks everything.
//!
//! A primitive block is shown as a segment with one block. A stitched block is shown by its parts,
//! at their own addresses: physical memory is shown once.

use std::collections::BTreeMap;

use girih_trace::{BlockState, PoolId};

use super::Gmlake;
use super::kinds::{HANDLE, Place, Primitive, PrimitiveId, RangeId, StitchId, Stitched};
use super::pools::{Pools, rounded};
use crate::caching::rounding::SMALL_SIZE;
use crate::policy::{Backing, BlockId, BlockView, Policy, SegmentView};
use crate::simulate::Simulated;
use crate::stats::Stats;
use crate::wrapper::Wrapper;

impl Gmlake {
    /// Every primitive block, and every segment of the splitter with its blocks, by address.
    pub(super) fn views(&self) -> Vec<(SegmentView, Vec<BlockView>)> {
        let requested = self.requested();
        let view = |(id, primitive): (PrimitiveId, &Primitive)| {
            let &Primitive { address, size, stream, owner, .. } = primitive;
            let (pool, is_small) = (PoolId::DEFAULT, false);
            let backing = Backing::Expandable { page: HANDLE };
            let segment = SegmentView { address, size, stream, pool, is_small, backing };
            let state = owner.map_or(BlockState::Inactive, |owner| self.grants[owner].state);
            let requested = requested.get(&id).copied().unwrap_or(0);
            let whole = if state == BlockState::Inactive { size } else { 0 };
            (segment, vec![BlockView { address, size, requested, whole, state }])
        };
        let mut views: Vec<_> = self.pools.primitives.iter().map(view).collect();
        self.beside.inner().visit(&mut |segment, blocks| views.push((segment, blocks.to_vec())));
        views.sort_unstable_by_key(|(segment, _)| segment.address);
        views
    }

    /// The bytes requested of each primitive block that is active.
    fn requested(&self) -> BTreeMap<PrimitiveId, u64> {
        let mut requested = BTreeMap::new();
        for (_, grant) in self.grants.iter() {
            let mut left = grant.requested;
            for part in self.pools.parts(grant.place) {
                let share = left.min(self.pools.primitives[part].size);
                requested.insert(part, share);
                left -= share;
            }
        }
        requested
    }

    /// Walks everything; see [`Policy::check`].
    pub(super) fn check_all(&self) -> Result<(), String> {
        self.beside.inner().check().map_err(|fault| format!("the splitter: {fault}"))?;
        let mut last_end = 0;
        for (segment, _) in self.views() {
            if segment.address < last_end {
                return Err(format!("{segment:?} overlaps what is before it"));
            }
            last_end = segment.address + segment.size;
        }
        self.pools.check_ranges()?;
        self.pools.check_stitches()?;
        self.pools.check_sets()?;
        self.check_owners()?;
        self.check_waiting()?;
        self.check_counters()
    }

    /// A block of the program holds its parts, and nobody else does.
    fn check_owners(&self) -> Result<(), String> {
        let mut held = 0;
        for (id, grant) in self.grants.iter() {
            if self.pools.extent(grant.place) != (grant.address, grant.size) {
                return Err(format!("{id:?} has moved: {grant:?}"));
            }
            for part in self.pools.parts(grant.place) {
                let primitive = &self.pools.primitives[part];
                if primitive.owner != Some(id) || primitive.stream != grant.stream {
                    return Err(format!("{id:?} does not hold its part {primitive:?}"));
                }
                held += 1;
            }
        }
        let owned = self.pools.primitives.iter().filter(|(_, part)| part.owner.is_some()).count();
        if owned != held {
            return Err(format!("{owned} primitive blocks are active, {held} are held"));
        }
        Ok(())
    }

    /// A block that was freed waits for its events or for the end of the capture, not for both.
    fn check_waiting(&self) -> Result<(), String> {
        let mut events: BTreeMap<BlockId, u32> = BTreeMap::new();
        for id in self.pending.iter() {
            *events.entry(id).or_default() += 1;
        }
        for (id, grant) in self.grants.iter() {
            let listed = self.deferred.iter().filter(|&&other| other == id).count();
            let waits = listed + usize::from(grant.events > 0);
            let expected = usize::from(grant.state == BlockState::PendingFree);
            if waits != expected || grant.events != events.remove(&id).unwrap_or(0) {
                return Err(format!("{id:?} waits in {waits} ways: {grant:?}"));
            }
        }
        if let Some(id) = events.keys().next() {
            return Err(format!("events of {id:?} are left, and it is gone"));
        }
        Ok(())
    }

    /// Counts everything anew and compares it with the statistics.
    fn check_counters(&self) -> Result<(), String> {
        let mut counted = Stats::default();
        counted.add_change(&Stats::default(), self.beside.inner().stats());
        for (_, range) in self.pools.ranges.iter() {
            counted.segment.increase(false, 1);
            counted.reserved_bytes.increase(false, range.held as u64 * HANDLE);
        }
        for (_, grant) in self.grants.iter() {
            counted.active.increase(false, 1);
            counted.active_bytes.increase(false, grant.size);
            counted.requested_bytes.increase(false, grant.requested);
            if grant.state == BlockState::Allocated {
                counted.allocation.increase(false, 1);
                counted.allocated_bytes.increase(false, grant.size);
            }
        }
        self.beside.stats.check_present(&counted)
    }
}

impl Pools {
    /// The primitive blocks of a place.
    fn parts(&self, place: Place) -> Vec<PrimitiveId> {
        match place {
            Place::Primitive(id) => vec![id],
            Place::Stitched(id) => self.stitches[id].parts.clone(),
        }
    }

    /// Primitive blocks own each handle of their ranges, once.
    fn check_ranges(&self) -> Result<(), String> {
        let mut owned: BTreeMap<RangeId, usize> = BTreeMap::new();
        for (id, primitive) in self.primitives.iter() {
            let range = &self.ranges[primitive.range];
            let slots = range.slots(primitive.address, primitive.size);
            let handles = &range.handles[slots];
            if handles.is_empty() || handles.iter().any(Option::is_none) {
                return Err(format!("{id:?} has no memory in places: {primitive:?}"));
            }
            *owned.entry(primitive.range).or_default() += handles.len();
        }
        // Primitive blocks do not overlap, so equal numbers mean that each handle has its block.
        for (id, range) in self.ranges.iter() {
            let held = range.handles.iter().flatten().count();
            if held != range.held || owned.get(&id) != Some(&held) {
                return Err(format!("{id:?} holds {held} handles, {} counted", range.held));
            }
        }
        Ok(())
    }

    /// Stitched blocks and their parts know each other and agree.
    fn check_stitches(&self) -> Result<(), String> {
        let mut links = 0;
        for (id, stitch) in self.stitches.iter() {
            self.check_stitch(id, stitch)?;
            links += stitch.parts.len();
        }
        let known: usize = self.primitives.iter().map(|(_, part)| part.stitches.len()).sum();
        if known != links {
            return Err(format!("stitched blocks have {links} parts, {known} know of it"));
        }
        let bytes: u64 = self.stitches.iter().map(|(_, stitch)| stitch.size).sum();
        if bytes != self.stitched_bytes {
            return Err(format!("{} bytes stitched, {bytes} counted", self.stitched_bytes));
        }
        Ok(())
    }

    fn check_stitch(&self, id: StitchId, stitch: &Stitched) -> Result<(), String> {
        let (mut size, mut busy) = (0, 0);
        for &part in &stitch.parts {
            let primitive = &self.primitives[part];
            let links = primitive.stitches.iter().filter(|&&over| over == id).count();
            if links != 1 || primitive.stream != stitch.stream {
                return Err(format!("{id:?} and its part {primitive:?} disagree"));
            }
            if !stitch.is_mapped && primitive.address != stitch.address + size {
                return Err(format!("{id:?} is not where its part {primitive:?} is"));
            }
            size += primitive.size;
            busy += usize::from(primitive.owner.is_some());
        }
        if (size, busy) != (stitch.size, stitch.busy) {
            return Err(format!("{id:?} has {size} bytes, {busy} parts active: {stitch:?}"));
        }
        Ok(())
    }

    /// The sets of inactive blocks hold what is inactive, and nothing else.
    fn check_sets(&self) -> Result<(), String> {
        let idle = self.primitives.iter().filter(|(_, primitive)| primitive.owner.is_none());
        let mut idle: Vec<_> =
            idle.map(|(id, part)| (part.stream, part.size, part.address, id)).collect();
        idle.sort_unstable();
        if !idle.iter().eq(&self.idle) {
            return Err(format!("inactive are {idle:?}, listed {:?}", self.idle));
        }
        if idle.iter().map(|key| key.1).sum::<u64>() != self.idle_bytes {
            return Err(format!("{} bytes inactive, of {idle:?}", self.idle_bytes));
        }
        let stitches = self.stitches.iter().filter(|(_, stitch)| stitch.busy == 0);
        let mut stitches: Vec<_> =
            stitches.map(|(id, stitch)| (stitch.stream, stitch.size, id)).collect();
        stitches.sort_unstable();
        if !stitches.iter().eq(&self.idle_stitches) {
            return Err(format!("inactive are {stitches:?}, listed {:?}", self.idle_stitches));
        }
        let mut by_use: Vec<_> =
            stitches.iter().map(|&(.., id)| (self.stitches[id].used, id)).collect();
        by_use.sort_unstable();
        if !by_use.iter().eq(&self.by_use) {
            return Err(format!("by use {by_use:?}, listed {:?}", self.by_use));
        }
        Ok(())
    }
}

impl Simulated for Gmlake {
    fn rounded(&self, size: u64) -> u64 {
        if size > SMALL_SIZE {
            rounded(size)
        } else {
            Simulated::rounded(self.beside.inner(), size)
        }
    }

    /// What was requested: blocks are whole handles, and what a request leaves of them nobody uses.
    fn used_peak(&self, stats: &Stats) -> u64 {
        stats.requested_bytes.all().peak
    }
}
