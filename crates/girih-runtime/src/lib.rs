//! Devices and policies.
//!
//! A [`Policy`] decides where a block goes; a [`Device`] gives and takes memory. A policy is a pure
//! function of its state: it takes `&mut self` and a device, and knows no lock, no clock and no
//! CUDA. So the code that a replay runs on the simulated device is the code that a training run
//! runs on a GPU, and what a replay says is what a run does.

pub mod auto;
mod beside;
pub mod caching;
mod chain;
pub mod conform;
pub mod copies;
pub mod device;
pub mod direct;
mod free_set;
pub mod gmlake;
mod hooked;
pub mod lab;
pub mod lake;
mod limit;
mod order;
mod pending;
pub mod policy;
pub mod record;
pub mod registry;
pub mod replay;
mod returning;
pub mod sim;
pub mod simulate;
mod slab;
pub mod stats;
pub mod stweaver;
#[cfg(any(test, feature = "suite"))]
pub mod suite;
pub mod waste;
pub mod wrapper;

pub use auto::Auto;
pub use copies::{Copies, HostAddress, HostBacking, HostMemory, TimeStamp};
pub use device::{
    Address, CapturedEnds, Device, DeviceError, GraphNode, Handle, MemoryInfo, Prices, StreamEvent,
};
pub use lake::{Following, Lake};
pub use policy::{
    AllocError, Backing, BlockId, BlockView, Checkpoint, Env, Granted, Log, Policy, PoolOptions,
    Request, Restored, SegmentView,
};
pub use stats::{Counter, Counters, Stats};
