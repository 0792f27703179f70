//! The graphs that are being captured on the simulated device: which work comes after which.

use girih_trace::StreamId;
use rustc_hash::FxHashMap;

use crate::device::{CapturedEnds, DeviceError, GraphNode};

/// All captures under way. See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// What each node comes after, by its number.
    nodes: Vec<Vec<GraphNode>>,
    /// The streams that are captured.
    streams: FxHashMap<StreamId, CapturedEnds>,
    captures: u64,
}

impl Graph {
    /// A graph is captured from a stream.
    pub(super) fn begin(&mut self, stream: StreamId) {
        self.captures += 1;
        self.streams.insert(stream, CapturedEnds { capture: self.captures, nodes: Vec::new() });
    }

    /// The capture from a stream is over. All streams that were a part of it.
    pub(super) fn end(&mut self, stream: StreamId) -> Vec<StreamId> {
        let Some(CapturedEnds { capture, .. }) = self.streams.remove(&stream) else {
            return vec![];
        };
        let gone = self.streams.extract_if(|_, other| other.capture == capture);
        gone.map(|(stream, _)| stream).collect()
    }

    /// Work of a stream, if it is captured.
    pub(super) fn add(&mut self, stream: StreamId) {
        if let Some(ends) = self.streams.get_mut(&stream) {
            let node = GraphNode(self.nodes.len() as u64);
            self.nodes.push(std::mem::replace(&mut ends.nodes, vec![node]));
        }
    }

    /// Later work of `after` comes after the present work of `before`. True if both are captured now.
    pub(super) fn join(&mut self, before: StreamId, after: StreamId) -> bool {
        let Some(CapturedEnds { capture, nodes }) = self.streams.get(&before).cloned() else {
            return false;
        };
        let after = self.streams.entry(after).or_insert(CapturedEnds { capture, nodes: vec![] });
        after.nodes.extend(nodes);
        after.nodes.sort_unstable();
        after.nodes.dedup();
        true
    }

    /// Where the work of a stream ends, if it is captured.
    pub(super) fn ends(&self, stream: StreamId) -> Option<CapturedEnds> {
        self.streams.get(&stream).cloned()
    }

    /// What a node comes after.
    pub(super) fn dependencies(&self, node: GraphNode) -> Result<Vec<GraphNode>, DeviceError> {
        let found = usize::try_from(node.0).ok().and_then(|at| self.nodes.get(at));
        found.cloned().ok_or_else(|| DeviceError::Misuse {
            call: "graph_dependencies",
            reason: format!("there is no {node:?}"),
        })
    }
}
