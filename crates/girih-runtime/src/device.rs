//! What a policy may ask of a GPU.
//!
//! The methods are the CUDA driver's calls under the names that memory management gives them, with
//! sizes in bytes and ids instead of pointers. Every call either does what it says or leaves the
//! device as it was and returns an error.

use girih_trace::StreamId;
use thiserror::Error;

/// A device address. 0 is never valid.
pub type Address = u64;

/// Physical memory that was created and not yet released (`CUmemGenericAllocationHandle`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle(pub u64);

/// A point in the work of a stream (`CUevent`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamEvent(pub u64);

/// A node of a graph that is being captured (`CUgraphNode`). Numbers come back once a graph is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GraphNode(pub u64);

/// Where the work that is captured from a stream ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CapturedEnds {
    /// The number of the capture, which no other capture of the process has.
    pub capture: u64,
    /// The nodes that whatever is captured next from the stream comes after. None if it is the first.
    pub nodes: Vec<GraphNode>,
}

/// What the device has (`cuMemGetInfo`). Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// Bytes that can still be allocated or created.
    pub free: u64,
    /// Bytes of the device.
    pub total: u64,
}

/// Why a device call failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DeviceError {
    /// The device has too little memory now. Give something back and try again.
    #[error("the device has {free} bytes free, {requested} were asked for")]
    OutOfMemory {
        /// Bytes asked for.
        requested: u64,
        /// Bytes free when the call was made.
        free: u64,
    },
    /// The call broke a rule of the device: a double map, access to the unmapped, and so on. It is
    /// a bug of the caller; trying again does not help.
    #[error("misuse of the device: {call}: {reason}")]
    Misuse {
        /// The call.
        call: &'static str,
        /// The rule that it broke, with addresses.
        reason: String,
    },
    /// A test asked for this call to fail.
    #[error("call {call} ({name}) was made to fail")]
    Injected {
        /// Number of the call, from 1.
        call: u64,
        /// Its name.
        name: &'static str,
    },
    /// A graph is being captured, and the call cannot be made until that is over. Nothing has changed, and
    /// the capture goes on.
    #[error("{call} has to wait: a graph is being captured")]
    Capturing {
        /// The call.
        call: &'static str,
    },
    /// The driver's own error.
    #[error("the driver refused {call}: {reason}")]
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's code and text.
        reason: String,
    },
}

/// What memory costs the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prices {
    /// Nanoseconds to create one, to map it, and to make it accessible.
    pub new_page_ns: u64,
    /// Nanoseconds to map one at a second address, and to make it accessible there.
    pub mapped_again_ns: u64,
    /// Nanoseconds that all calls for memory have taken by now, refused ones among them.
    pub spent_ns: u64,
}

impl Prices {
    /// Those of an H200 with driver 580, for pages of 2 to 20 MiB.
    pub const H200: Prices = Prices { new_page_ns: 41_000, mapped_again_ns: 30_000, spent_ns: 0 };
}

/// A GPU, real or simulated.
pub trait Device {
    /// Bytes free and in all.
    fn memory_info(&mut self) -> MemoryInfo;

    /// Bytes of which every handle's size and every mapped address must be a multiple; 2 MiB on
    /// every NVIDIA GPU so far.
    fn granularity(&self) -> u64;

    /// True if a handle can be mapped at several addresses at once, as every NVIDIA GPU allows. Where it cannot, holes
    /// are not stitched.
    fn maps_twice(&self) -> bool;

    /// What a page costs and what was spent, as measured by now or by a list.
    fn prices(&self) -> Prices;

    /// Allocates `size` bytes (`cuMemAlloc`). Aligned to 512 bytes at least.
    fn alloc(&mut self, size: u64) -> Result<Address, DeviceError>;

    /// Frees what [`Device::alloc`] gave at `address`. Waits for running kernels.
    fn free(&mut self, address: Address) -> Result<(), DeviceError>;

    /// Reserves `size` bytes of addresses, backed by nothing (`cuMemAddressReserve`).
    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError>;

    /// Gives back a whole reservation, in which nothing is mapped (`cuMemAddressFree`).
    fn unreserve(&mut self, address: Address, size: u64) -> Result<(), DeviceError>;

    /// Creates `size` bytes of physical memory (`cuMemCreate`).
    fn create(&mut self, size: u64) -> Result<Handle, DeviceError>;

    /// Gives a handle back, which is mapped nowhere (`cuMemRelease`). The simulated device
    /// refuses to release the mapped; the driver would keep it until it is unmapped.
    fn release(&mut self, handle: Handle) -> Result<(), DeviceError>;

    /// Maps the whole of a handle at `address`, in a reservation, where nothing is mapped yet
    /// (`cuMemMap`). The memory cannot be used before [`Device::set_access`].
    fn map(&mut self, address: Address, handle: Handle) -> Result<(), DeviceError>;

    /// Makes `size` bytes at `address`, all of them mapped, readable and writable
    /// (`cuMemSetAccess`).
    fn set_access(&mut self, address: Address, size: u64) -> Result<(), DeviceError>;

    /// Unmaps `size` bytes at `address`: one or more whole handles (`cuMemUnmap`). Does not wait
    /// for running kernels: the caller makes sure that none uses the memory.
    fn unmap(&mut self, address: Address, size: u64) -> Result<(), DeviceError>;

    /// Marks the present end of `stream`'s work (`cuEventRecord` of a fresh event).
    fn record_event(&mut self, stream: StreamId) -> Result<StreamEvent, DeviceError>;

    /// Marks the present end of the work of *every* stream of the device (`cuCtxRecordEvent`): of those
    /// that nobody has named here too, and of those that are gone while their work still runs. The same of
    /// each other device to which one of `users` belongs, be it gone by now.
    ///
    /// # Errors
    /// [`DeviceError::Capturing`] while a graph is captured from a stream of one of these devices.
    fn record_fence(&mut self, users: &[StreamId]) -> Result<StreamEvent, DeviceError>;

    /// True if a graph is being captured from `stream`, whoever began that (`cuStreamIsCapturing`). The
    /// stream must be in use: a handle of one that is gone crashes the driver.
    fn is_capturing(&mut self, stream: StreamId) -> Result<bool, DeviceError>;

    /// Where the work ends that is captured from `stream` now (`cuStreamGetCaptureInfo`). None if no graph is
    /// captured from it, or if the device does not tell. The stream must be in use.
    fn captured_ends(&mut self, stream: StreamId) -> Result<Option<CapturedEnds>, DeviceError>;

    /// The nodes that a node of a graph which is being captured comes after, without those that come before
    /// these again (`cuGraphNodeGetDependencies`). Each has ended when the node begins.
    fn graph_dependencies(&mut self, node: GraphNode) -> Result<Vec<GraphNode>, DeviceError>;

    /// True if the work before the event is done (`cuEventQuery`).
    fn query_event(&mut self, event: StreamEvent) -> Result<bool, DeviceError>;

    /// Makes later work of `stream` wait for the event, on the device (`cuStreamWaitEvent`).
    fn wait_event(&mut self, stream: StreamId, event: StreamEvent) -> Result<(), DeviceError>;

    /// The same, and a device that can tell measures how long the stream stands still for it:
    /// [`Device::take_stalls`] says so later.
    fn wait_measured(&mut self, stream: StreamId, event: StreamEvent) -> Result<(), DeviceError> {
        self.wait_event(stream, event)
    }

    /// Nanoseconds that streams stood still in measured waits, each counted for `most` at most. Those that are not over
    /// yet and those that were told of before are left out. Waits for nothing. 0 of a device that measures none.
    ///
    /// A stream that stands still does not always hold up the run: this is the most that the waits may have cost.
    fn take_stalls(&mut self, most: u64) -> u64 {
        let _ = most;
        0
    }

    /// Waits on the host until the work before the event is done (`cuEventSynchronize`).
    fn synchronize_event(&mut self, event: StreamEvent) -> Result<(), DeviceError>;

    /// Gives an event back (`cuEventDestroy`).
    fn destroy_event(&mut self, event: StreamEvent) -> Result<(), DeviceError>;

    /// Waits on the host for all work of `stream` (`cuStreamSynchronize`).
    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), DeviceError>;
}

/// Methods of [`Device`] within the `impl` of a device that stands in front of another: they go to the
/// device in that field, which may be a reference to one.
///
/// ```ignore
/// impl Device for Counted {
///     girih_runtime::calls_of!(device {
///         fn reserve(size: u64) -> Address;
///         fn unreserve(address: Address, size: u64) -> ();
///     });
///     // ... and the others
/// }
/// ```
#[macro_export]
macro_rules! calls_of {
    ($field:ident { $(fn $name:ident($($argument:ident: $type:ty),*) -> $value:ty;)* }) => {
        $(
            fn $name(&mut self, $($argument: $type),*) -> Result<$value, $crate::DeviceError> {
                #[allow(unused_imports, reason = "the caller may have the trait in scope already")]
                use $crate::Device as _;
                self.$field.$name($($argument),*)
            }
        )*
    };
}

/// [`calls_of`](crate::calls_of) for streams and events: a device in front of another that changes its
/// memory alone needs no more of them. The crate that calls it depends on `girih-trace` too.
#[macro_export]
macro_rules! streams_of {
    ($field:ident) => {
        $crate::calls_of!($field {
            fn record_event(stream: ::girih_trace::StreamId) -> $crate::StreamEvent;
            fn record_fence(users: &[::girih_trace::StreamId]) -> $crate::StreamEvent;
            fn is_capturing(stream: ::girih_trace::StreamId) -> bool;
            fn captured_ends(
                stream: ::girih_trace::StreamId
            ) -> ::core::option::Option<$crate::CapturedEnds>;
            fn graph_dependencies(
                node: $crate::GraphNode
            ) -> ::std::vec::Vec<$crate::GraphNode>;
            fn query_event(event: $crate::StreamEvent) -> bool;
            fn wait_event(stream: ::girih_trace::StreamId, event: $crate::StreamEvent) -> ();
            fn wait_measured(stream: ::girih_trace::StreamId, event: $crate::StreamEvent) -> ();
            fn synchronize_event(event: $crate::StreamEvent) -> ();
            fn destroy_event(event: $crate::StreamEvent) -> ();
            fn synchronize_stream(stream: ::girih_trace::StreamId) -> ();
        });

        fn take_stalls(&mut self, most: u64) -> u64 {
            #[allow(unused_imports, reason = "the caller may have the trait in scope already")]
            use $crate::Device as _;
            self.$field.take_stalls(most)
        }
    };
}
