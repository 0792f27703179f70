//! Blocks that other streams used within a graph capture, used again within it
//! (`graph_capture_record_stream_reuse`: `record_free_markers`, `free_safe_blocks_in_capture`).
//!
//! Nothing runs during a capture, so no event tells when a block may be used again. The graph does: each
//! stream that is captured ends in some nodes, and what is captured next comes after these. The *marks* of a
//! freed block are the ends of all streams that used it. Once its own stream comes after all of them, so
//! does whatever uses the block next:
//!
//! ```text
//!  main ── a ─┬───────────── b ─┬── next      b is free here with marks {a, s}: s is not before b.
//!             └─ side ── s ─────┘             Behind the join, both are before what comes next.
//! ```
//!
//! A graph is walked backwards from where a stream ends now, and of what was walked before only what is new.
//! Nodes are numbers of the driver, which it uses again: none is kept beyond its capture. What the device
//! cannot tell is taken for no, and the block waits for the end of the capture. Other than PyTorch a block
//! waits too if a stream began to use it outside of this capture: that work is no part of the graph.

use girih_trace::StreamId;
use rustc_hash::{FxHashMap, FxHashSet};

use super::Caching;
use crate::device::{CapturedEnds, Device, DeviceError, GraphNode};
use crate::policy::{BlockId, Env};

/// What is known of the graphs that are being captured.
#[derive(Debug, Default)]
pub(super) struct CaptureReuse {
    /// The blocks that can be free again before their capture ends.
    marks: FxHashMap<BlockId, Marks>,
    /// For each stream the capture, and the nodes of its graph that come before what is captured next.
    before: FxHashMap<StreamId, (u64, FxHashSet<GraphNode>)>,
}

/// What comes before a block is free.
#[derive(Debug)]
struct Marks {
    capture: u64,
    nodes: Vec<GraphNode>,
}

impl CaptureReuse {
    /// Adds to the nodes that come before what is captured next from a stream, which ends in `ends` now.
    fn walk(
        &mut self,
        device: &mut dyn Device,
        stream: StreamId,
        capture: u64,
        mut ends: Vec<GraphNode>,
    ) -> Result<(), DeviceError> {
        let (of, before) = self.before.entry(stream).or_default();
        if *of != capture {
            (*of, *before) = (capture, FxHashSet::default());
        }
        while let Some(node) = ends.pop() {
            if before.insert(node) {
                match device.graph_dependencies(node) {
                    Ok(nodes) => ends.extend(nodes),
                    Err(error) => {
                        // Half a walk would pass for a whole one next time.
                        self.before.remove(&stream);
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// True if a node comes before what is captured next from a stream, as far as the last walk went.
    fn is_before(&self, stream: StreamId, node: GraphNode) -> bool {
        self.before.get(&stream).is_some_and(|(_, before)| before.contains(&node))
    }

    /// No graph is being captured any more.
    pub(super) fn forget(&mut self) {
        self.marks.clear();
        self.before.clear();
    }
}

impl Caching {
    /// The capture that work of a stream is a part of now, if a block that it uses may be marked.
    pub(super) fn capture_of(&self, device: &mut dyn Device, stream: StreamId) -> Option<u64> {
        if !self.config.graph_capture_record_stream_reuse || !self.is_capturing() {
            return None;
        }
        device.captured_ends(stream).ok().flatten().map(|ends| ends.capture)
    }

    /// Marks a block that is freed during a capture, if all its streams are captured into one graph.
    #[cold]
    #[inline(never)]
    pub(super) fn mark_captured(&mut self, device: &mut dyn Device, id: BlockId) {
        if !self.config.graph_capture_record_stream_reuse || !self.is_capturing() {
            return;
        }
        let uses = self.uses.get(&id).map(Vec::as_slice).unwrap_or_default();
        let home = self.blocks[id].home.stream;
        let Ok(Some(CapturedEnds { capture, mut nodes })) = device.captured_ends(home) else {
            return;
        };
        for entry in uses {
            if entry.graph != Some(capture) {
                return;
            }
            match device.captured_ends(entry.stream) {
                Ok(Some(ends)) if ends.capture == capture => nodes.extend(ends.nodes),
                _ => return,
            }
        }
        if !nodes.is_empty() {
            self.reuse.marks.insert(id, Marks { capture, nodes });
        }
    }

    /// Completes the frees of blocks of a stream that is being captured, where what is captured next from
    /// it comes after all their uses.
    #[cold]
    #[inline(never)]
    pub(super) fn complete_captured(&mut self, env: &mut Env<'_>, stream: StreamId) {
        let is_own = |id: &BlockId| self.blocks[*id].home.stream == stream;
        if !self.reuse.marks.keys().any(is_own) {
            return;
        }
        let Ok(Some(ends)) = env.device.captured_ends(stream) else { return };
        let capture = ends.capture;
        if self.reuse.walk(env.device, stream, capture, ends.nodes).is_err() {
            return;
        }
        let (reuse, blocks) = (&self.reuse, &self.blocks);
        let come_before = |marks: &Marks| {
            marks.capture == capture
                && marks.nodes.iter().all(|node| reuse.is_before(stream, *node))
        };
        let is_free = |id: &BlockId| {
            blocks[*id].home.stream == stream && reuse.marks.get(id).is_some_and(come_before)
        };
        let free: Vec<BlockId> = self.deferred.iter().copied().filter(is_free).collect();
        for id in free {
            self.deferred.retain(|&other| other != id);
            self.reuse.marks.remove(&id);
            self.forget_uses(id);
            self.complete_free(env, id);
        }
    }
}
