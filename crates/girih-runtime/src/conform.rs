//! Equality with PyTorch, tested on its own answers.
//!
//! An oracle file holds random sequences of operations that ran on a GPU under the native
//! allocator, with the counters after each, the trace, and the layout at the end. [`conform`] runs
//! the same operations on [`Caching`] and compares everything: each event, each counter, each block
//! at its address. The device gives the addresses that the GPU gave: they decide between free
//! blocks of one size.
//!
//! One number is not compared: the free bytes of the device in an `oom` event, which include what
//! other users of the GPU held.

use girih_trace::{Action, BlockState, Event, PoolId, StreamId};
use rustc_hash::FxHashMap;
use serde::Deserialize;

use crate::caching::{Caching, Config, TieOrder};
use crate::policy::{AllocError, Backing, BlockId, Env, Policy, Request};
use crate::sim::SimDevice;

/// What one setting did.
#[derive(Clone, Debug, Deserialize)]
pub struct OracleFile {
    /// Version of torch.
    pub torch: String,
    /// `PYTORCH_CUDA_ALLOC_CONF`.
    pub conf: String,
    /// The memory fraction was set to `cap_mib * 2^20 / total`; 0 is no limit.
    pub cap_mib: u64,
    /// Bytes of the device.
    pub total: u64,
    /// The sequences, in the order in which one process ran them.
    pub runs: Vec<OracleRun>,
}

/// One random sequence.
#[derive(Clone, Debug, Deserialize)]
pub struct OracleRun {
    /// The seed that made it.
    pub seed: u64,
    /// What the program did.
    pub ops: Vec<OracleOp>,
    /// The layout at the end.
    pub segments: Vec<OracleSegment>,
    /// What the allocator recorded.
    pub trace: Vec<OracleEntry>,
    /// Counters at the end.
    pub stats: OracleStats,
}

/// Operation (`alloc`, `free`, `empty_cache`, `oom`), id, size, index of the stream; then the bytes
/// allocated, reserved and active after it.
#[derive(Clone, Debug, Deserialize)]
pub struct OracleOp(pub String, pub i64, pub u64, pub u16, pub u64, pub u64, pub u64);

/// Address, size, stream, `large` or `small`, expandable, blocks.
#[derive(Clone, Debug, Deserialize)]
pub struct OracleSegment(pub u64, pub u64, pub u64, pub String, pub bool, pub Vec<OracleBlock>);

/// Address, size, bytes requested, state.
#[derive(Clone, Debug, Deserialize)]
pub struct OracleBlock(pub u64, pub u64, pub u64, pub String);

/// Action, address, size, stream.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct OracleEntry(pub String, pub u64, pub u64, pub u64);

/// `torch.cuda.memory_stats()` at the end of a run. The first four count from the start of the
/// process.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are PyTorch's, as in `Stats`")]
pub struct OracleStats {
    pub num_alloc_retries: u64,
    pub num_ooms: u64,
    pub num_device_alloc: u64,
    pub num_device_free: u64,
    #[serde(rename = "allocated_bytes.all.peak")]
    pub allocated_peak: u64,
    #[serde(rename = "reserved_bytes.all.peak")]
    pub reserved_peak: u64,
    #[serde(rename = "inactive_split_bytes.all.current")]
    pub inactive_split_bytes: u64,
    #[serde(rename = "inactive_split.all.current")]
    pub inactive_split: u64,
    #[serde(rename = "segment.all.current")]
    pub segments: u64,
    #[serde(rename = "requested_bytes.all.current")]
    pub requested_bytes: u64,
    #[serde(rename = "oversize_segments.current")]
    pub oversize_segments: u64,
}

/// How well a file was met.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Conformance {
    /// Runs in the file.
    pub runs: usize,
    /// Runs that were met to the byte.
    pub exact: usize,
    /// The first difference of the first run that was not: file, seed, operation, what was
    /// expected and what came.
    pub first_difference: Option<String>,
}

/// Runs every sequence of `file` on the caching policy. `name` is for the messages.
pub fn conform(file: &OracleFile, name: &str) -> Conformance {
    let mut result = Conformance { runs: file.runs.len(), ..Conformance::default() };
    // One tensor was made and given back before the first run.
    let mut totals = Totals { device_allocs: 1, device_frees: 1, ..Totals::default() };
    for run in &file.runs {
        match Replay::new(file, run).and_then(|replay| replay.run(&mut totals)) {
            Ok(()) => result.exact += 1,
            Err(difference) => {
                let text = || format!("{name}, seed {}: {difference}", run.seed);
                result.first_difference.get_or_insert_with(text);
            }
        }
    }
    result
}

/// Counters that run on from one run to the next.
#[derive(Clone, Copy, Default)]
struct Totals {
    retries: u64,
    ooms: u64,
    device_allocs: u64,
    device_frees: u64,
}

impl Totals {
    fn plus(self, policy: &Caching) -> Totals {
        let stats = policy.stats();
        Totals {
            retries: self.retries + stats.num_alloc_retries,
            ooms: self.ooms + stats.num_ooms,
            device_allocs: self.device_allocs + stats.num_device_alloc,
            device_frees: self.device_frees + stats.num_device_free,
        }
    }
}

/// One run under way.
struct Replay<'a> {
    run: &'a OracleRun,
    device: SimDevice,
    policy: Caching,
    log: Vec<Event>,
    /// The driver's handle of each stream.
    handles: Vec<u64>,
    live: FxHashMap<i64, BlockId>,
    /// Events that were compared.
    compared: usize,
}

impl<'a> Replay<'a> {
    fn new(file: &OracleFile, run: &'a OracleRun) -> Result<Replay<'a>, String> {
        let mut config = Config::parse(&file.conf).map_err(|error| error.to_string())?;
        config.tie_order = TieOrder::of_torch(&file.torch)
            .ok_or_else(|| format!("`{}` is no version of torch", file.torch))?;
        if file.cap_mib > 0 {
            config.memory_fraction = (file.cap_mib << 20) as f64 / file.total as f64;
        }
        let mut device = SimDevice::new(file.total);
        device.script_allocs(segment_addresses(&run.trace));
        device.script_reserves(reservation_bases(&run.trace, file.total));
        let handles = stream_handles(run);
        let mut policy = Caching::new(config);
        policy.set_stream_handles(handles.clone());
        let (log, live) = (Vec::new(), FxHashMap::default());
        Ok(Replay { run, device, policy, log, handles, live, compared: 0 })
    }

    fn run(mut self, totals: &mut Totals) -> Result<(), String> {
        let result = self.run_ops().and_then(|()| self.compare_end(*totals));
        // The program drops every tensor, and empties the cache before the next run.
        let mut left: Vec<(i64, BlockId)> = self.live.drain().collect();
        left.sort_unstable();
        let mut env = Env::new(&mut self.device, &mut self.log);
        for (_, block) in left {
            self.policy.free(&mut env, block).map_err(|error| error.to_string())?;
        }
        self.policy.empty_cache(&mut env).map_err(|error| error.to_string())?;
        *totals = totals.plus(&self.policy);
        result
    }

    fn run_ops(&mut self) -> Result<(), String> {
        for (index, op) in self.run.ops.iter().enumerate() {
            let at = |text: String| format!("operation {index} ({} {}): {text}", op.0, op.2);
            self.step(op).map_err(at)?;
            self.compare_events().map_err(at)?;
            self.policy.check().map_err(at)?;
            let stats = self.policy.stats();
            let got = [stats.allocated_bytes, stats.reserved_bytes, stats.active_bytes];
            let got = got.map(|counters| counters.all().current);
            let expected = [op.4, op.5, op.6];
            if got != expected {
                let text =
                    format!("allocated, reserved, active: expected {expected:?}, got {got:?}");
                return Err(at(text));
            }
        }
        Ok(())
    }

    fn step(&mut self, op: &OracleOp) -> Result<(), String> {
        let &OracleOp(ref kind, id, size, stream, ..) = op;
        let mut env = Env::new(&mut self.device, &mut self.log);
        let result = match kind.as_str() {
            "alloc" | "oom" => {
                let request = Request { size, stream: StreamId(stream), pool: PoolId::DEFAULT };
                match (self.policy.allocate(&mut env, request), kind.as_str()) {
                    (Ok(granted), "alloc") => {
                        self.live.insert(id, granted.block);
                        Ok(())
                    }
                    (Ok(granted), _) => {
                        return Err(format!("expected out of memory, got {granted:?}"));
                    }
                    (Err(AllocError::OutOfMemory { .. }), "oom") => Ok(()),
                    (Err(error), _) => Err(error),
                }
            }
            "free" => match self.live.remove(&id) {
                Some(block) => self.policy.free(&mut env, block),
                None => return Err(format!("block {id} does not exist")),
            },
            "empty_cache" => self.policy.empty_cache(&mut env),
            other => return Err(format!("`{other}` is no operation")),
        };
        result.map_err(|error| error.to_string())
    }

    /// Compares the events of the last operation with the next entries of the trace.
    fn compare_events(&mut self) -> Result<(), String> {
        while let Some(event) = self.log.get(self.compared) {
            let got = self.entry(event);
            let expected = self.run.trace.get(self.compared);
            let same = expected.is_some_and(|expected| {
                let address = event.action == Action::Oom || expected.1 == got.1;
                address && (&expected.0, expected.2, expected.3) == (&got.0, got.2, got.3)
            });
            if !same {
                let number = self.compared;
                return Err(format!("event {number}: expected {expected:?}, got {got:?}"));
            }
            self.compared += 1;
        }
        Ok(())
    }

    fn entry(&self, event: &Event) -> OracleEntry {
        let stream = self.handles[usize::from(event.stream.0)];
        OracleEntry(event.action.name().to_owned(), event.address, event.size, stream)
    }

    fn compare_end(&self, before: Totals) -> Result<(), String> {
        let rest = &self.run.trace[self.compared..];
        if let Some(missing) = rest.iter().find(|entry| entry.0 != "snapshot") {
            return Err(format!("at the end: {missing:?} did not come"));
        }
        self.compare_layout()?;
        let (expected, stats, now) =
            (&self.run.stats, self.policy.stats(), before.plus(&self.policy));
        for (name, expected, got) in [
            ("num_alloc_retries", expected.num_alloc_retries, now.retries),
            ("num_ooms", expected.num_ooms, now.ooms),
            ("num_device_alloc", expected.num_device_alloc, now.device_allocs),
            ("num_device_free", expected.num_device_free, now.device_frees),
            ("allocated peak", expected.allocated_peak, stats.allocated_bytes.all().peak),
            ("reserved peak", expected.reserved_peak, stats.reserved_bytes.all().peak),
            (
                "inactive_split_bytes",
                expected.inactive_split_bytes,
                stats.inactive_split_bytes.all().current,
            ),
            ("inactive_split", expected.inactive_split, stats.inactive_split.all().current),
            ("segment", expected.segments, stats.segment.all().current),
            ("requested_bytes", expected.requested_bytes, stats.requested_bytes.all().current),
            ("oversize_segments", expected.oversize_segments, stats.oversize_segments.current),
        ] {
            if expected != got {
                return Err(format!("at the end: {name}: expected {expected}, got {got}"));
            }
        }
        Ok(())
    }

    fn compare_layout(&self) -> Result<(), String> {
        let mut got = Vec::new();
        self.policy.visit(&mut |segment, blocks| {
            let kind = if segment.is_small { "small" } else { "large" };
            let stream = self.handles[usize::from(segment.stream.0)];
            got.push(format!(
                "{:#x} {} {stream} {kind} {}",
                segment.address,
                segment.size,
                matches!(segment.backing, Backing::Expandable { .. })
            ));
            got.extend(blocks.iter().map(|block| {
                let state = match block.state {
                    BlockState::Allocated => "active_allocated",
                    BlockState::PendingFree => "active_pending_free",
                    BlockState::Inactive => "inactive",
                };
                format!("  {:#x} {} {} {state}", block.address, block.size, block.requested)
            }));
        });
        let mut expected = Vec::new();
        for OracleSegment(address, size, stream, kind, expandable, blocks) in &self.run.segments {
            expected.push(format!("{address:#x} {size} {stream} {kind} {expandable}"));
            expected.extend(blocks.iter().map(|OracleBlock(address, size, requested, state)| {
                // Of a free block PyTorch keeps the size of its last use.
                let requested = if state == "inactive" { 0 } else { *requested };
                format!("  {address:#x} {size} {requested} {state}")
            }));
        }
        let same = got.iter().zip(&expected).take_while(|(got, expected)| got == expected).count();
        if same == got.len() && same == expected.len() {
            return Ok(());
        }
        let (expected, got) = (expected.get(same), got.get(same));
        Err(format!("layout at the end: expected {expected:?}, got {got:?}"))
    }
}

/// The addresses that the device gave, in order.
fn segment_addresses(trace: &[OracleEntry]) -> Vec<u64> {
    trace.iter().filter(|entry| entry.0 == "segment_alloc").map(|entry| entry.1).collect()
}

/// The addresses of the reservations, in order. A reservation is 9/8 of the device, is mapped from
/// its first byte on, and goes when nothing is mapped in it.
fn reservation_bases(trace: &[OracleEntry], total: u64) -> Vec<u64> {
    let (mut bases, mut live) = (Vec::new(), Vec::<(u64, u64)>::new());
    for OracleEntry(action, address, size, _) in trace {
        let holds =
            |&(base, _): &(u64, u64)| *address >= base && address - base < total + total / 8;
        let place = live.iter().position(holds);
        match (action.as_str(), place) {
            ("segment_map", Some(place)) => live[place].1 += size,
            ("segment_map", None) => {
                bases.push(*address);
                live.push((*address, *size));
            }
            ("segment_unmap", Some(place)) => {
                live[place].1 = live[place].1.saturating_sub(*size);
                live.retain(|(_, mapped)| *mapped > 0);
            }
            _ => {}
        }
    }
    bases
}

/// The driver's handle of each stream index: allocations and failures stand in the trace in the
/// order of the operations.
fn stream_handles(run: &OracleRun) -> Vec<u64> {
    let requests = run.ops.iter().filter(|op| matches!(op.0.as_str(), "alloc" | "oom"));
    let entries = run.trace.iter().filter(|entry| matches!(entry.0.as_str(), "alloc" | "oom"));
    let mut handles = vec![0];
    for (op, entry) in requests.zip(entries) {
        let index = usize::from(op.3);
        if handles.len() <= index {
            handles.resize(index + 1, 0);
        }
        handles[index] = entry.3;
    }
    handles
}
