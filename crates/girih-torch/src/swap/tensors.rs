//! The program's tensors, as far as the hooks of autograd look at them.
//!
//! What the hooks ask of each tensor that is saved, in one call, without Python: the shim knows how. Without a shim
//! nothing is lent, and they ask in Python.

use std::sync::OnceLock;

use girih_runtime::Address;

use super::Shape;
use super::storages::StorageId;

/// What a look at a tensor tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Its storage.
    pub storage: StorageId,
    /// Bytes of the storage.
    pub size: u64,
    /// Where they begin.
    pub address: Address,
    /// How often it was changed in place.
    pub version: i64,
    /// The GPU that it is on; -1 for the host.
    pub device: i32,
    /// What tensor it is, the same in every step: its dimensions and the bytes of an element.
    pub kind: u64,
    /// False if it is certain to have no graph.
    pub may_have_graph: bool,
    /// Its shape.
    pub shape: Shape,
}

/// How tensors are looked at. A tensor is the address of its `c10::TensorImpl`, which whoever asks keeps alive.
pub trait Tensors: Send + Sync {
    /// None if it is no plain one.
    fn look(&self, tensor: u64) -> Option<Seen>;

    /// How often it was changed in place; -1 if that is not counted.
    fn version(&self, tensor: u64) -> i64;

    /// From now on changes in place of a tensor, which nobody else has yet, are counted as of another too, over whose
    /// storage it is.
    fn share_version(&self, tensor: u64, of: u64);

    /// The handle of the calling thread's stream on a device.
    fn current_stream(&self, device: i32) -> u64;
}

static OF_THE_PROCESS: OnceLock<Box<dyn Tensors>> = OnceLock::new();

/// From now on tensors are looked at so. The first call counts.
pub(crate) fn set(tensors: Box<dyn Tensors>) {
    let _ = OF_THE_PROCESS.set(tensors);
}

/// How they are looked at in this process; none as long as nobody has said.
#[inline]
pub fn of_the_process() -> Option<&'static dyn Tensors> {
    OF_THE_PROCESS.get().map(|tensors| &**tensors)
}
