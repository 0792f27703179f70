//! A driver without a GPU, for tests: functions with the driver's signatures that keep books.
//!
//! Its state belongs to the thread, so that tests do not meet. It refuses what the driver refuses,
//! can be told which call fails, and can describe itself, to be compared before and after.

mod copies;
mod functions;
mod graphs;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use crate::driver::Driver;
use crate::driver::table::Table;
use crate::driver::types::{CuCaptureMode, CuNode, CuResult};

pub(crate) const MIB: u64 = 1 << 20;
/// Granularity of the fake.
pub(crate) const UNIT: u64 = 2 * MIB;
/// Devices of the fake. The last is connected to no other.
pub(crate) const DEVICES: i32 = 3;

/// What the fake is, and what happened on it.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) total: u64,
    pub(crate) used: u64,
    /// The next address and the next number of anything.
    next: u64,
    pub(crate) allocations: BTreeMap<u64, u64>,
    pub(crate) reservations: BTreeMap<u64, u64>,
    pub(crate) memories: BTreeMap<u64, Memory>,
    pub(crate) mappings: BTreeMap<u64, Mapped>,
    /// Events, and the streams whose work each waits for.
    pub(crate) events: BTreeMap<usize, BTreeSet<usize>>,
    /// Streams whose work is not done.
    pub(crate) held: BTreeSet<usize>,
    /// Contexts that are current, the last on top.
    pub(crate) contexts: Vec<usize>,
    pub(crate) retained: BTreeMap<i32, u32>,
    pub(crate) mode: CuCaptureMode,
    /// A graph is being captured.
    pub(crate) captures: bool,
    /// Streams from which graphs are captured in this thread.
    pub(crate) capturing: BTreeSet<usize>,
    /// Of those from which work is captured: the number of the capture, and the nodes that it ends in.
    pub(crate) captured: BTreeMap<usize, (u64, Vec<CuNode>)>,
    /// What each node of a graph comes after.
    pub(crate) nodes: BTreeMap<usize, Vec<CuNode>>,
    /// An edge of every graph is of another kind than the common one.
    pub(crate) has_other_edges: bool,
    /// Streams that are destroyed.
    pub(crate) gone: BTreeSet<usize>,
    /// It is captured from a stream that nobody has named.
    pub(crate) hides_capture: bool,
    /// A call spoiled the capture.
    pub(crate) spoiled: bool,
    /// Contexts that reach others: who, whom.
    pub(crate) peers: BTreeSet<(usize, usize)>,
    /// Allocations of other processes that are open.
    pub(crate) opened: BTreeMap<u64, u64>,
    /// The devices are parts of one card.
    pub(crate) is_partitioned: bool,
    /// Addresses cannot be reserved, nor memory mapped.
    pub(crate) without_virtual_memory: bool,
    /// The same, though the device says that they can.
    pub(crate) refuses_virtual_memory: bool,
    /// Features that memory cannot have, though the device says so.
    pub(crate) without_rdma: bool,
    pub(crate) without_sharing: bool,
    /// The number of the stream that a handle is, where it is not the handle.
    pub(crate) identities: BTreeMap<usize, u64>,
    /// No context can be pushed.
    pub(crate) refuses_push: bool,
    /// Memory of the host that is pinned: first address and bytes.
    pub(crate) pinned: BTreeMap<usize, usize>,
    /// What was copied to an address of the device.
    pub(crate) contents: BTreeMap<u64, Vec<u8>>,
    /// Words that streams were told to wait for.
    pub(crate) gates: BTreeSet<u64>,
    /// What was in them when pages were made accessible last.
    pub(crate) gates_at_access: Vec<u32>,
    calls: Vec<&'static str>,
    fault: Option<(usize, CuResult)>,
}

/// Physical memory of the fake.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) size: u64,
    /// Owners: the creator, each importer, each mapping.
    pub(crate) references: u32,
    pub(crate) shareable: bool,
    pub(crate) rdma: bool,
}

/// A mapping of the fake.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    pub(crate) size: u64,
    pub(crate) memory: u64,
    /// Devices that may use it.
    pub(crate) access: BTreeSet<i32>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::new(State::new());
}

impl State {
    fn new() -> State {
        State {
            total: 1 << 40,
            used: 0,
            next: 0x10_0000_0000,
            allocations: BTreeMap::new(),
            reservations: BTreeMap::new(),
            memories: BTreeMap::new(),
            mappings: BTreeMap::new(),
            events: BTreeMap::new(),
            held: BTreeSet::new(),
            contexts: Vec::new(),
            retained: BTreeMap::new(),
            mode: CuCaptureMode::GLOBAL,
            captures: false,
            hides_capture: false,
            capturing: BTreeSet::new(),
            captured: BTreeMap::new(),
            nodes: BTreeMap::new(),
            has_other_edges: false,
            gone: BTreeSet::new(),
            spoiled: false,
            peers: BTreeSet::new(),
            opened: BTreeMap::new(),
            without_virtual_memory: false,
            is_partitioned: false,
            refuses_virtual_memory: false,
            without_rdma: false,
            without_sharing: false,
            identities: BTreeMap::new(),
            pinned: BTreeMap::new(),
            contents: BTreeMap::new(),
            gates: BTreeSet::new(),
            gates_at_access: Vec::new(),
            refuses_push: false,
            calls: Vec::new(),
            fault: None,
        }
    }

    /// Room of `size` addresses that was never given before.
    pub(crate) fn fresh(&mut self, size: u64) -> u64 {
        let address = self.next;
        self.next += size.next_multiple_of(UNIT) + UNIT;
        address
    }

    /// Gives `address` again: the next place is there.
    pub(crate) fn back_to(&mut self, address: u64) {
        self.next = address;
    }

    /// So many bytes from an address of the device on: what was copied there, and zeros where nothing was.
    pub(crate) fn contents_from(&self, from: u64, size: usize) -> Vec<u8> {
        let copied = self.contents.range(..=from).next_back();
        let copied = copied.and_then(|(&at, bytes)| bytes.get((from - at) as usize..));
        let mut bytes = copied.unwrap_or_default().to_vec();
        bytes.resize(size, 0);
        bytes
    }

    /// Counts a call; fails if it is the one that shall.
    pub(crate) fn enter(&mut self, name: &'static str) -> Result<(), CuResult> {
        self.calls.push(name);
        match self.fault {
            Some((call, code)) if call == self.calls.len() => Err(code),
            _ => Ok(()),
        }
    }

    /// The device whose context is current.
    pub(crate) fn current(&self) -> Result<i32, CuResult> {
        match self.contexts.last() {
            Some(context) if *context > 0 => Ok(*context as i32 - 1),
            _ => Err(CuResult(201)),
        }
    }

    /// A call that needs virtual memory.
    pub(crate) fn of_virtual_memory(&self) -> Result<(), CuResult> {
        match self.without_virtual_memory || self.refuses_virtual_memory {
            true => Err(CuResult::NOT_SUPPORTED),
            false => Ok(()),
        }
    }

    /// A call names a stream.
    pub(crate) fn names(&self, stream: usize) {
        assert!(!self.gone.contains(&stream), "the driver crashes: stream {stream} is gone");
    }

    /// A call that a capture cannot hold.
    pub(crate) fn forbidden_in_capture(&mut self) -> Result<(), CuResult> {
        if self.captures && self.mode != CuCaptureMode::RELAXED {
            self.spoiled = true;
            return Err(CuResult(900));
        }
        Ok(())
    }

    /// Lets go of physical memory once; it is gone with its last owner.
    pub(crate) fn let_go(&mut self, memory: u64) {
        if let Some(found) = self.memories.get_mut(&memory) {
            found.references -= 1;
            if found.references == 0 {
                self.used -= found.size;
                self.memories.remove(&memory);
            }
        }
    }
}

/// The driver of the fake.
pub(crate) fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| Driver::from_table(functions::table()))
}

/// The same, of CUDA 11: without what came later.
pub(crate) fn old_driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let table = functions::table();
        Driver::from_table(Table {
            context_record_event: None,
            stream_wait_value: None,
            stream_id: None,
            device_uuid_of_part: None,
            capture_info: None,
            node_dependencies: None,
            ..table
        })
    })
}

fn with<T>(body: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(body)
}

/// Begins anew with `total` bytes.
pub(crate) fn reset(total: u64) {
    with(|state| *state = State { total, ..State::new() });
}

/// Sets something up.
pub(crate) fn arrange(body: impl FnOnce(&mut State)) {
    with(body);
}

/// Lets the call of number `call` from now on, from 1, fail with `code`.
pub(crate) fn fail(call: usize, code: CuResult) {
    with(|state| state.fault = Some((state.calls.len() + call, code)));
}

/// Takes the fault away; true if it came to pass.
pub(crate) fn fault_came() -> bool {
    with(|state| state.fault.take().is_some_and(|(call, _)| call <= state.calls.len()))
}

/// The calls since this was last asked, without those about contexts and modes.
pub(crate) fn calls() -> Vec<&'static str> {
    let quiet = ["cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuThreadExchange"];
    let calls = with(|state| std::mem::take(&mut state.calls));
    calls.into_iter().filter(|call| !quiet.contains(call)).collect()
}

/// Keeps the work of a stream from being done.
pub(crate) fn hold(stream: u64) {
    with(|state| state.held.insert(stream as usize));
}

/// Does the work of a stream.
pub(crate) fn resume(stream: u64) {
    with(|state| {
        state.held.remove(&(stream as usize));
        for waits in state.events.values_mut() {
            waits.remove(&(stream as usize));
        }
    });
}

/// A graph is captured from a stream, or no more.
pub(crate) fn capture_from(stream: u64, begins: bool) {
    with(|state| {
        if begins {
            state.capturing.insert(stream as usize);
        } else {
            state.capturing.remove(&(stream as usize));
        }
    });
}

/// Work of a stream becomes a node of the graph of this capture, after its work so far. The node.
pub(crate) fn captured_work(stream: u64, capture: u64) -> u64 {
    with(|state| {
        let node = CuNode(state.fresh(MIB) as usize);
        let (of, ends) = state.captured.entry(stream as usize).or_default();
        *of = capture;
        let before = std::mem::replace(ends, vec![node]);
        state.nodes.insert(node.0, before);
        node.0 as u64
    })
}

/// Later work of `after` comes after the captured work of `before`.
pub(crate) fn join_captured(before: u64, after: u64) {
    with(|state| {
        let (capture, nodes) = state.captured[&(before as usize)].clone();
        let (of, ends) = state.captured.entry(after as usize).or_default();
        *of = capture;
        ends.extend(nodes);
    });
}

/// A stream is destroyed: the driver crashes if it is named again.
pub(crate) fn destroy(stream: u64) {
    with(|state| {
        state.gone.insert(stream as usize);
    });
}

/// A graph capture of another thread begins, or ends. True if it was not spoiled.
pub(crate) fn capture(begins: bool) -> bool {
    with(|state| {
        state.captures = begins;
        !std::mem::take(&mut state.spoiled)
    })
}

/// All that a caller could tell apart: memory, access, contexts, modes, peers. Events are left out,
/// for they are kept on purpose.
pub(crate) fn picture() -> String {
    with(|state| {
        format!(
            "{:?}",
            (
                (state.used, &state.allocations, &state.reservations, &state.memories),
                (&state.mappings, &state.contexts, state.mode, &state.peers, &state.retained),
                &state.opened,
            )
        )
    })
}

/// Whether device `device` may use all of `size` bytes at `address`.
pub(crate) fn usable(device: i32, address: u64, size: u64) -> bool {
    with(|state| {
        let (mut at, end) = (address, address + size);
        if let Some((start, bytes)) = state.allocations.range(..=address).next_back()
            && end <= start + bytes
        {
            return true;
        }
        while at < end {
            match state.mappings.range(..=at).next_back() {
                Some((start, mapped))
                    if at < start + mapped.size && mapped.access.contains(&device) =>
                {
                    at = start + mapped.size;
                }
                _ => return false,
            }
        }
        true
    })
}

/// Whether nothing is held any more: allocations, reservations, memory, mappings.
pub(crate) fn is_empty() -> bool {
    with(|state| {
        let memory = state.allocations.is_empty() && state.memories.is_empty();
        memory && state.reservations.is_empty() && state.mappings.is_empty() && state.used == 0
    })
}
