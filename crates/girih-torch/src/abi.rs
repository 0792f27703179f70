//! The C interface: the functions of `include/girih.h`, which says what each one takes and gives.
//!
//! A function here does three things: it turns C's types into Rust's, calls the heaps, and turns
//! what comes back into a status. None of them unwinds: `guard` catches a panic, keeps its text,
//! and the heap that it came from refuses all further work.
//!
//! One file for each part of the header: `types` what both sides share, `error` the thread's last
//! error, `blocks` life and blocks, `memory` what is held, `settings` what a program
//! changes, `pools` pools and checkpoints, `view`
//! statistics and layout, `sink` events, `storages` those of tensors, `tensors` these
//! themselves, `ipc` other processes.

#![expect(unsafe_code, reason = "a C interface has names of its own and takes pointers")]

pub mod blocks;
mod error;
pub mod ipc;
pub mod memory;
pub mod pools;
pub mod settings;
mod sink;
pub mod storages;
pub mod tensors;
mod types;
pub mod view;

pub use self::error::{girih_last_error, girih_last_oom};
pub use self::ipc::IPC_BYTES;
pub use self::sink::{Sink, SinkFunction, girih_set_sink};
pub use self::types::{
    Block, Event, Oom, Pool, PoolVisitor, Segment, Settings, Stat, Stats, Status, Visitor,
};

/// What the header has as `GIRIH_ABI`: changes whenever the interface does.
pub const ABI: u32 = 6;

/// The interface that this library has.
#[unsafe(no_mangle)]
pub extern "C" fn girih_abi() -> u32 {
    ABI
}
