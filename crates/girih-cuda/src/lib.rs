//! The CUDA driver as a device.
//!
//! [`CudaDevice`] is a GPU as the policies of `girih-runtime` see it ([`girih_runtime::Device`]). It
//! asks the driver, which [`Driver::load`] finds at run time: nothing of CUDA is linked, and a
//! machine without a GPU gets an error that says what is missing.
//!
//! ```text
//!  policy ──► Device ──► CudaDevice ── books: what is allocated, created, mapped; refuses misuse
//!                          │           order: events, fences, streams; peers, counters
//!                          │           stalls: how long streams wait for each other
//!                          │           ipc: memory of other processes
//!                          │           copies: to and from the host; host: its memory, pinned in parts;
//!                          │           gate: they wait while pages are made accessible
//!                          ▼
//!                        Scope: our context is current, a capture is not disturbed
//!                          ▼
//!                        Driver: a table of functions of libcuda
//! ```
//!
//! Every operation either does what it says or leaves the device as it was, whichever driver call
//! fails: tests let each call fail in turn, on a driver that is played by functions of their own.
//!
//! [`Phantom`] stands in front of a `CudaDevice` and gives more memory than there is, by mapping the
//! same pages again and again: the requests of a run that does not fit can be recorded.

mod books;
mod calls;
mod context;
mod copies;
mod device;
pub mod driver;
mod events;
#[cfg(test)]
mod fake;
mod gate;
mod host;
mod idle;
pub mod ipc;
mod near;
mod order;
mod peers;
mod phantom;
mod solid;
mod stalls;
mod streams;
#[cfg(test)]
mod tests;
mod times;
mod watch;

pub use calls::Calls;
pub use context::{BegunAlloc, Waiter};
pub use device::{CudaDevice, OpenError, Properties};
pub use driver::{Driver, LoadError};
pub use phantom::{Backing, Phantom};
pub use streams::StreamHandle;
