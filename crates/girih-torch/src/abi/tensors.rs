//! The program's tensors, by functions of the caller.

use super::error::guard;
use crate::swap::Shape;
use crate::swap::storages::StorageId;
use crate::swap::tensors::{self, Seen, Tensors};

/// Dimensions that are told of: `GIRIH_SHAPE_MAX`.
pub const SHAPE_MAX: usize = 8;

/// `girih_tensor`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Tensor {
    /// Its storage.
    pub storage: u64,
    /// Bytes of that.
    pub size: u64,
    /// Where they begin.
    pub address: u64,
    /// How often it was changed in place.
    pub version: i64,
    /// Of its GPU; -1 for the host.
    pub device: i32,
    /// Bytes of an element.
    pub element_size: u32,
    /// How many there are.
    pub dimensions: u32,
    /// False if it is certain to have no graph.
    pub may_have_graph: bool,
    /// The first of them.
    pub shape: [u64; SHAPE_MAX],
}

/// `girih_look`.
pub type LookFunction = unsafe extern "C" fn(tensor: u64, seen: *mut Tensor) -> bool;
/// `girih_version`.
pub type VersionFunction = unsafe extern "C" fn(tensor: u64) -> i64;
/// `girih_share_version`.
pub type ShareVersionFunction = unsafe extern "C" fn(tensor: u64, of: u64);
/// `girih_current_stream`.
pub type CurrentStreamFunction = unsafe extern "C" fn(device: i32) -> u64;

/// All of them. Functions of a library that is never unloaded.
struct Functions {
    look: LookFunction,
    version: VersionFunction,
    share_version: ShareVersionFunction,
    current_stream: CurrentStreamFunction,
}

impl Tensors for Functions {
    fn look(&self, tensor: u64) -> Option<Seen> {
        let mut seen = Tensor::default();
        // SAFETY: whoever asks has the tensor; and what is seen is written to a local.
        let is_plain = unsafe { (self.look)(tensor, &raw mut seen) };
        is_plain.then(|| Seen {
            storage: StorageId(seen.storage),
            size: seen.size,
            address: seen.address,
            version: seen.version,
            device: seen.device,
            kind: u64::from(seen.dimensions) << 8 | u64::from(seen.element_size),
            may_have_graph: seen.may_have_graph,
            shape: Shape::of(&seen.shape[..SHAPE_MAX.min(seen.dimensions as usize)]),
        })
    }

    fn version(&self, tensor: u64) -> i64 {
        // SAFETY: as above.
        unsafe { (self.version)(tensor) }
    }

    fn share_version(&self, tensor: u64, of: u64) {
        // SAFETY: as above, of both; and nobody else has the first yet.
        unsafe { (self.share_version)(tensor, of) }
    }

    fn current_stream(&self, device: i32) -> u64 {
        // SAFETY: it takes any device that a tensor is on.
        unsafe { (self.current_stream)(device) }
    }
}

/// From now on tensors are looked at with these functions. The first call of the process counts; one that lacks a
/// function does nothing.
///
/// # Safety
/// The functions do what the header says, for every tensor that is alive, on any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_set_tensors(
    look: Option<LookFunction>,
    version: Option<VersionFunction>,
    share_version: Option<ShareVersionFunction>,
    current_stream: Option<CurrentStreamFunction>,
) {
    guard(|| {
        if let (Some((look, version)), Some((share_version, current_stream))) =
            (look.zip(version), share_version.zip(current_stream))
        {
            tensors::set(Box::new(Functions { look, version, share_version, current_stream }));
        }
        Ok(())
    });
}
