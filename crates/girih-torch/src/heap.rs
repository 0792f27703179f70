//! A heap: one device, the policy that shares it out, and the lock around both.
//!
//! ```text
//!  any thread ─► lock ─► ids of stream and pool ─► policy ─► device        rarely
//!                                                   │
//!                             first address ─► block id ─► journal         if someone listens
//! ```
//!
//! Nothing that waits is done under the lock ([`Lock`](crate::lock::Lock)), but for the driver's own
//! calls and the sink's; with `release_lock_on_cudamalloc` segments are taken without it (`unlocked`). After a panic inside, the lock is poisoned and the heap refuses all further
//! work: what it believes of its memory may be wrong, and a wrong answer would corrupt a training run.

mod captures;
mod memory;
mod pools;
mod state;
mod swapping;
mod unlocked;
mod view;

use girih_runtime::Address;
use girih_trace::{MarkKind, PoolId};

pub(crate) use self::memory::check_fraction;
pub use self::pools::HeapCheckpoint;
pub(crate) use self::state::{State, add_warning};
pub use self::swapping::Saved;
use crate::abi::Sink;
use crate::device::HeapDevice;
use crate::error::{HeapError, Outcome, bug};
use crate::lock::{Lock, Poisoned};
use crate::settings::Settings;
use crate::streams::StreamKey;
use crate::swap::{LEAST, attention};

/// The heap of one device. One lock around a policy and its device.
pub struct Heap {
    state: Lock<State>,
}

impl Heap {
    /// A heap for the device of number `ordinal`. Opens the device.
    ///
    /// # Errors
    /// If there is no such device, or no driver.
    pub fn new(ordinal: u32, settings: &Settings) -> Outcome<Heap> {
        let device = crate::device::open(ordinal, settings)?;
        Ok(Heap::over(device, ordinal, settings))
    }

    /// A heap over a device that is open already.
    pub fn over(device: Box<dyn HeapDevice>, ordinal: u32, settings: &Settings) -> Heap {
        Heap { state: Lock::new(State::new(device, ordinal, settings)) }
    }

    /// True while a thread beside the run makes a plan of it, or keeps one for the next run.
    ///
    /// # Errors
    /// After a panic inside the heap.
    pub fn is_planning(&self) -> Outcome<bool> {
        self.with(|state| Ok(state.is_planning()))
    }

    /// Runs `work` with the heap to itself.
    ///
    /// # Errors
    /// After a panic inside the heap; and those of `work`.
    #[inline]
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut State) -> Outcome<T>) -> Outcome<T> {
        match self.state.with(work) {
            Ok(result) => result,
            Err(Poisoned) => Err(refused()),
        }
    }

    /// Gives `size` bytes, not 0, for work on the stream of that handle.
    ///
    /// # Errors
    /// Out of memory, with its story; or what the driver refused.
    #[inline]
    pub fn allocate(&self, size: u64, stream: u64, pool: (u64, u64)) -> Outcome<Address> {
        let given = self.with(|state| match pool {
            // Nearly all: its id need not be looked for.
            (0, 0) => state.allocate(size, stream, PoolId::DEFAULT),
            _ => state.allocate_in_pool(size, stream, pool),
        });
        if size >= LEAST {
            attention::make_due_call();
        }
        match given {
            Ok(address) => Ok(address),
            Err(error) => self.go_on(error),
        }
    }

    /// True if a request would be served of what is held; false if that cannot be told. Nothing
    /// changes.
    ///
    /// # Errors
    /// After a panic inside the heap.
    pub fn has_room(&self, size: u64, stream: u64, pool: (u64, u64)) -> Outcome<bool> {
        self.with(|state| Ok(state.has_room(size, stream, pool)))
    }

    /// Takes a block back by its first address. False if no block of this heap begins there.
    ///
    /// # Errors
    /// What the driver refused; the block is then still in use.
    #[inline]
    pub fn free(&self, address: Address) -> Outcome<bool> {
        self.with(|state| state.free(address))
    }

    /// Says that the stream of that handle, of the device of that number, uses the block too. False if
    /// no block of this heap begins there.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn record_stream(&self, address: Address, device: u32, stream: u64) -> Outcome<bool> {
        let stream = StreamKey { device, handle: stream };
        self.with(|state| state.record_stream(address, stream))
    }

    /// Says that there is a stream of that handle now which the program may destroy: to be called before
    /// each call that names it. It may be another than the one that had the handle before.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn see_stream(&self, stream: u64) -> Outcome<()> {
        self.with(|state| state.see_stream(stream))
    }

    /// True if a live block of this heap begins at `address`.
    ///
    /// # Errors
    /// After a panic inside the heap.
    pub fn holds(&self, address: Address) -> Outcome<bool> {
        self.with(|state| Ok(state.blocks.find(address).is_some()))
    }

    /// Tells the policy and the recorder of a mark of the program.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn mark(&self, kind: MarkKind, name: &str) -> Outcome<()> {
        self.with(|state| state.mark(kind, name))
    }

    /// Sends the events to another sink from now on, or to none.
    ///
    /// # Errors
    /// After a panic inside the heap.
    pub(crate) fn set_sink(&self, sink: Option<Sink>) -> Outcome<()> {
        self.with(|state| {
            state.journal.set_sink(sink);
            Ok(())
        })
    }

    /// Walks everything and compares it: see [`Policy::check`](girih_runtime::Policy::check).
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        self.state.with(|state| state.check()).map_err(|Poisoned| refused().to_string())?
    }
}

/// The error of every call after a panic.
#[cold]
fn refused() -> Box<HeapError> {
    bug("an earlier call failed inside Girih's heap of this device, which therefore refuses all \
         further work; the first error says what happened")
}
