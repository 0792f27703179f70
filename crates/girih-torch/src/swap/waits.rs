//! For which tensors the computation waited, and how long.
//!
//! ```text
//!  stream of the computation   ──op──┤ waits ├──op──       two points in time, read some steps later
//!  lane in                     ──────copy in─┤
//! ```
//!
//! A wait is queued whenever a tensor is used that was away, or bytes are needed whose tensor is on its way. If the copy
//! is over by then nothing waits, and nothing is noted. Otherwise the time is taken on the stream on both sides of the
//! wait; nobody waits for that either. The sums are by tensor: what it is, and which operator of its step saved it.

use std::collections::VecDeque;
use std::sync::Arc;

use girih_runtime::{Copies, DeviceError, StreamEvent, TimeStamp};
use girih_trace::{MarkKind, StreamId};
use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};

use super::Swap;
use super::step::Moment;
use super::table::{Entry, RecordId};
use crate::heap::State;

/// Waits whose time is not read yet, at most: some for each tensor that goes in a step or two. The oldest is read, or
/// given up, and a schedule takes what was given up for work.
const UNREAD_MAX: usize = 4096;
/// Tensors that are told apart. Of more, those that were waited for the least go.
const TENSORS_MAX: usize = 1024;
/// Tensors that a report names.
const NAMED: usize = 5;
/// Modules within each other that are known.
const MODULES_MAX: usize = 64;
/// Dimensions of a shape that are kept.
const DIMENSIONS_MAX: usize = 8;

/// The shape of a tensor: its first eight dimensions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Shape {
    dimensions: [u64; DIMENSIONS_MAX],
    count: u8,
}

impl Shape {
    /// Of these dimensions, as far as there is room for them.
    pub fn of(dimensions: &[u64]) -> Shape {
        let mut shape = Shape::default();
        let kept = dimensions.len().min(DIMENSIONS_MAX);
        shape.dimensions[..kept].copy_from_slice(&dimensions[..kept]);
        shape.count = kept as u8;
        shape
    }

    fn as_slice(&self) -> &[u64] {
        &self.dimensions[..usize::from(self.count)]
    }
}

impl Serialize for Shape {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_slice().serialize(serializer)
    }
}

/// Which way the copy went that was waited for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Way {
    /// To the host: its bytes were needed.
    Out,
    /// Back: it was used.
    In,
}

/// A tensor, the same in every step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    way: Way,
    is_state: bool,
    saved_at: u32,
    size: u64,
    shape: Shape,
}

/// How a tensor was waited for.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct WaitedFor {
    way: Way,
    /// It is a state of an optimizer: no operator has saved it.
    is_state: bool,
    /// Bytes of its storage.
    size: u64,
    shape: Shape,
    /// The module that was running when it was saved, where modules are marked.
    #[serde(serialize_with = "as_text")]
    module: Option<Arc<str>>,
    /// The operator of the step that saved it, and the one that waited last: saves and uses, from 0.
    saved_at: u32,
    waited_at: u32,
    /// Waits that were queued before the copy was over, and those of them whose time is known.
    waits: u64,
    measured: u64,
    /// How long they took together. Microseconds.
    us: f64,
}

fn as_text<S: Serializer>(text: &Option<Arc<str>>, serializer: S) -> Result<S::Ok, S::Error> {
    text.as_deref().serialize(serializer)
}

impl WaitedFor {
    /// The worst is the largest.
    fn badness(&self) -> (f64, u64) {
        (self.us, self.waits)
    }
}

/// A wait whose time is not read yet.
#[derive(Debug)]
struct Unread {
    key: Key,
    /// When it was queued.
    at: Moment,
    from: TimeStamp,
    to: TimeStamp,
}

/// All waits of a heap.
#[derive(Debug, Default)]
pub(super) struct Waits {
    by_tensor: FxHashMap<Key, WaitedFor>,
    unread: VecDeque<Unread>,
    /// The modules that run now, the outermost first, and how many more are within them.
    modules: Vec<Arc<str>>,
    beyond: usize,
    pub(super) count: u64,
    pub(super) us: f64,
    /// The same of states of optimizers alone.
    pub(super) of_states: (u64, f64),
}

impl Waits {
    /// The module that runs now, if modules are marked.
    pub(super) fn module(&self) -> Option<Arc<str>> {
        self.modules.last().cloned()
    }

    /// The program has come to a point.
    pub(super) fn mark(&mut self, kind: MarkKind, name: &str) {
        match kind {
            MarkKind::ForwardIn if self.modules.len() < MODULES_MAX => {
                self.modules.push(Arc::from(name));
            }
            MarkKind::ForwardIn => self.beyond += 1,
            MarkKind::ForwardOut if self.beyond > 0 => self.beyond -= 1,
            MarkKind::ForwardOut => _ = self.modules.pop(),
            // What an exception has left open is not open in the next step.
            MarkKind::Step => {
                self.modules.clear();
                self.beyond = 0;
            }
            _ => {}
        }
    }

    fn count(&mut self, key: Key, module: Option<Arc<str>>, waited_at: u32) {
        self.count += 1;
        self.of_states.0 += u64::from(key.is_state);
        if !self.by_tensor.contains_key(&key) && self.by_tensor.len() >= TENSORS_MAX {
            self.forget_half();
        }
        let Key { way, is_state, saved_at, size, shape } = key;
        let waited = self.by_tensor.entry(key).or_insert_with(|| WaitedFor {
            way,
            is_state,
            size,
            shape,
            module: None,
            saved_at,
            waited_at,
            waits: 0,
            measured: 0,
            us: 0.0,
        });
        (waited.module, waited.waited_at) = (module, waited_at);
        waited.waits += 1;
    }

    fn forget_half(&mut self) {
        let mut all: Vec<(Key, WaitedFor)> = self.by_tensor.drain().collect();
        all.sort_by(|(_, one), (_, other)| {
            other.badness().partial_cmp(&one.badness()).unwrap_or(std::cmp::Ordering::Equal)
        });
        all.truncate(TENSORS_MAX / 2);
        self.by_tensor.extend(all);
    }

    /// Reads one wait. Its microseconds, if it is over.
    fn read(&mut self, unread: &Unread, copies: &mut dyn Copies) -> Option<f64> {
        let us = copies.time_between(unread.from, unread.to).ok().flatten()?.max(0.0);
        self.us += us;
        self.of_states.1 += if unread.key.is_state { us } else { 0.0 };
        if let Some(waited) = self.by_tensor.get_mut(&unread.key) {
            waited.us += us;
            waited.measured += 1;
        }
        Some(us)
    }

    /// Reads the waits that are over, in the order in which they were queued, up to one that is not, and says when
    /// each was queued and its microseconds.
    pub(super) fn read_all(&mut self, copies: &mut dyn Copies, mut found: impl FnMut(Moment, f64)) {
        while let Some(first) = self.unread.pop_front() {
            let Some(us) = self.read(&first, copies) else {
                self.unread.push_front(first);
                return;
            };
            found(first.at, us);
            copies.forget_time(first.from);
            copies.forget_time(first.to);
        }
    }

    /// One more. Where there are too many, the oldest is read, as in [`Waits::read_all`].
    fn add(&mut self, unread: Unread, copies: &mut dyn Copies) -> Option<(Moment, f64)> {
        self.unread.push_back(unread);
        let oldest = (self.unread.len() > UNREAD_MAX).then(|| self.unread.pop_front())??;
        let us = self.read(&oldest, copies);
        copies.forget_time(oldest.from);
        copies.forget_time(oldest.to);
        Some((oldest.at, us?))
    }

    /// Those that were waited for the longest, the worst first.
    pub(super) fn worst(&self) -> Vec<WaitedFor> {
        let mut all: Vec<&WaitedFor> = self.by_tensor.values().collect();
        all.sort_by(|one, other| {
            let by_badness = other.badness().partial_cmp(&one.badness());
            let order = by_badness.unwrap_or(std::cmp::Ordering::Equal);
            // The same order each time.
            order.then((one.saved_at, one.size).cmp(&(other.saved_at, other.size)))
        });
        all.into_iter().take(NAMED).cloned().collect()
    }
}

impl Swap {
    /// Has a stream of the computation wait for the end of a record's copy, and notes it if that is not over yet.
    pub(super) fn wait_for_copy(
        &mut self,
        state: &mut State,
        id: RecordId,
        way: Way,
        stream: StreamId,
        end: StreamEvent,
    ) -> Result<(), DeviceError> {
        let device = &mut *state.device;
        let Some(entry) =
            self.table.get(id).filter(|_| !matches!(device.query_event(end), Ok(true)))
        else {
            return device.wait_event(stream, end);
        };
        let Entry { size, shape, saved_at, .. } = *entry;
        let is_state = entry.is_state();
        let (key, module) = (Key { way, is_state, saved_at, size, shape }, entry.module.clone());
        let at = self.steps.moment();
        self.waits.count(key, module, at.operator);
        // A device that does not tell the time costs the time.
        let from = device.copies().and_then(|copies| copies.take_time(stream).ok());
        let waited = device.wait_event(stream, end);
        if let Some(copies) = device.copies()
            && let Some(from) = from
        {
            match copies.take_time(stream) {
                Ok(to) => {
                    if let Some((at, us)) = self.waits.add(Unread { key, at, from, to }, copies) {
                        self.steps.waited(at, us);
                    }
                }
                Err(_) => copies.forget_time(from),
            }
        }
        waited
    }
}

#[cfg(test)]
mod tests {
    use girih_runtime::{Address, HostAddress, HostMemory};

    use super::*;

    fn key(saved_at: u32) -> Key {
        Key { way: Way::In, is_state: false, saved_at, size: 1 << 20, shape: Shape::of(&[2, 3]) }
    }

    #[test]
    fn however_many_tensors_are_waited_for_few_are_kept_and_the_worst_are_named() {
        let mut waits = Waits::default();
        for number in 0..10 * TENSORS_MAX as u32 {
            waits.count(key(number), None, number + 1);
            // The third is waited for again and again.
            waits.count(key(3), None, number + 1);
            assert!(waits.by_tensor.len() <= TENSORS_MAX);
        }
        let worst = waits.worst();
        assert_eq!((worst.len(), worst[0].saved_at), (NAMED, 3));
        assert_eq!(waits.count, 20 * TENSORS_MAX as u64);
    }

    /// A device on which a point in time is its number.
    struct Told {
        forgotten: u64,
    }

    impl Copies for Told {
        fn open_lane(&mut self) -> Result<u64, DeviceError> {
            Ok(1)
        }

        fn copy_out(
            &mut self,
            _lane: StreamId,
            _from: Address,
            _to: HostAddress,
            _size: u64,
        ) -> Result<(), DeviceError> {
            Ok(())
        }

        fn copy_in(
            &mut self,
            _lane: StreamId,
            _from: HostAddress,
            _to: Address,
            _size: u64,
        ) -> Result<(), DeviceError> {
            Ok(())
        }

        fn host_memory(&mut self) -> Arc<dyn HostMemory> {
            Arc::new(crate::device::AddressesAlone::default())
        }

        fn take_time(&mut self, _stream: StreamId) -> Result<TimeStamp, DeviceError> {
            Ok(TimeStamp(0))
        }

        fn time_between(
            &mut self,
            from: TimeStamp,
            to: TimeStamp,
        ) -> Result<Option<f64>, DeviceError> {
            Ok(Some((to.0 - from.0) as f64))
        }

        fn forget_time(&mut self, _stamp: TimeStamp) {
            self.forgotten += 1;
        }
    }

    #[test]
    fn of_more_waits_than_are_kept_none_is_lost_to_the_step() {
        let (mut waits, mut told, mut us) = (Waits::default(), Told { forgotten: 0 }, 0.0);
        let count = 2 * UNREAD_MAX as u64 + 3;
        let at = Moment::default();
        for _ in 0..count {
            let unread = Unread { key: key(1), at, from: TimeStamp(1), to: TimeStamp(3) };
            us += waits.add(unread, &mut told).map_or(0.0, |(_, us)| us);
            assert!(waits.unread.len() <= UNREAD_MAX);
        }
        waits.read_all(&mut told, |_, own| us += own);
        assert_eq!((us, told.forgotten), (2.0 * count as f64, 2 * count));
        assert!((waits.us - us).abs() < 1e-9);
    }

    #[test]
    fn a_module_is_the_innermost_that_runs_and_an_exception_is_over_with_the_step() {
        let mut waits = Waits::default();
        let names = ["model", "layers.0", "layers.0.mlp"];
        names.iter().for_each(|name| waits.mark(MarkKind::ForwardIn, name));
        assert_eq!(waits.module().as_deref(), Some("layers.0.mlp"));
        waits.mark(MarkKind::ForwardOut, "layers.0.mlp");
        assert_eq!(waits.module().as_deref(), Some("layers.0"));
        waits.mark(MarkKind::Step, "");
        assert_eq!(waits.module(), None);
        for _ in 0..1000 {
            waits.mark(MarkKind::ForwardIn, "deep");
        }
        assert_eq!(waits.modules.len(), MODULES_MAX);
        for _ in 0..1000 {
            waits.mark(MarkKind::ForwardOut, "deep");
        }
        assert_eq!(waits.module(), None);
    }

    #[test]
    fn a_shape_has_eight_dimensions_at_most() {
        let shape = Shape::of(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(serde_json::to_string(&shape).expect("numbers"), "[1,2,3,4,5,6,7,8]");
        assert_eq!(serde_json::to_string(&Shape::of(&[])).expect("numbers"), "[]");
    }
}
