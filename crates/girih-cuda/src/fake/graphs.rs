//! The functions of the fake driver that tell of graphs which are being captured.

use std::ffi::c_uint;

use super::functions::{INVALID, call, check, get, put};
use crate::driver::types::{
    CAPTURE_ACTIVE, CAPTURE_NONE, CuEdge, CuGraph, CuNode, CuResult, CuStream,
};

/// `CUDA_ERROR_LOSSY_QUERY`.
const LOSSY_QUERY: CuResult = CuResult(402);

pub(super) extern "C" fn capture_info(
    stream: CuStream,
    status: *mut c_uint,
    id: *mut u64,
    graph: *mut CuGraph,
    nodes: *mut *const CuNode,
    edges: *mut *const CuEdge,
    count: *mut usize,
) -> CuResult {
    call("cuStreamGetCaptureInfo", |state| {
        state.current()?;
        state.names(stream.0);
        let Some((capture, ends)) = state.captured.get(&stream.0) else {
            put(status, CAPTURE_NONE);
            return Ok(());
        };
        check(!(edges.is_null() && state.has_other_edges), LOSSY_QUERY)?;
        put(status, CAPTURE_ACTIVE);
        put(id, *capture);
        put(graph, CuGraph(1));
        put(nodes, ends.as_ptr());
        put(count, ends.len());
        Ok(())
    })
}

pub(super) extern "C" fn node_dependencies(
    node: CuNode,
    out: *mut CuNode,
    edges: *mut CuEdge,
    count: *mut usize,
) -> CuResult {
    call("cuGraphNodeGetDependencies", |state| {
        let found = state.nodes.get(&node.0).ok_or(INVALID)?;
        check(!(edges.is_null() && state.has_other_edges), LOSSY_QUERY)?;
        if !out.is_null() {
            for (place, &node) in found.iter().enumerate().take(get(count)) {
                put(out.wrapping_add(place), node);
            }
        }
        put(count, found.len());
        Ok(())
    })
}
