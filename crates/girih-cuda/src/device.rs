//! A GPU as a [`Device`].
//!
//! Each method checks the books, makes its driver calls within a [`Scope`], and enters what was done.
//! Nothing is cached here, except events: whoever calls decides what to keep.

use std::time::Duration;

use girih_runtime::{
    Address, CapturedEnds, Device, DeviceError, GraphNode, Handle, MemoryInfo, Prices, StreamEvent,
};
use girih_trace::StreamId;
use rustc_hash::FxHashMap;
use thiserror::Error;

use crate::books::{Books, misuse};
use crate::calls::Calls;
use crate::context::{BegunAlloc, Scope, Waiter};
use crate::copies::CopyBooks;
use crate::driver::types::{
    CuAccess, CuAttribute, CuContext, CuDevice, CuMemory, CuProperties, CuResult, Features,
};
use crate::driver::{Driver, Failure, LoadError};
use crate::events::EventPool;
use crate::ipc::Sharing;
use crate::order::Other;
use crate::peers::Peer;
use crate::stalls::Stalls;
use crate::streams::StreamTable;
use crate::times::{Times, Work};

/// Granularity where virtual memory is not supported, and so never used.
const GRANULARITY_DEFAULT: u64 = 2 << 20;

/// What a device is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Properties {
    /// Its name, as `nvidia-smi` shows it.
    pub name: String,
    /// The number that this GPU has in every process; nothing if the driver does not say. Each part
    /// of a partitioned GPU (MIG) has its own, but with drivers before CUDA 11.4, where they share one.
    pub uuid: Option<[u8; 16]>,
    /// Bytes of memory.
    pub total: u64,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Addresses can be reserved and memory mapped at them. Without it only whole allocations work.
    pub virtual_memory: bool,
    /// Mapped memory can be shared with other processes.
    pub shareable: bool,
    /// Network adapters can reach mapped memory (GPUDirect RDMA).
    pub rdma: bool,
}

/// Why a device cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum OpenError {
    /// There is no driver.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The number is too high.
    #[error(
        "look at CUDA_VISIBLE_DEVICES, it may hide devices: there is no CUDA device {ordinal}, this \
         process sees {count}, counted from 0"
    )]
    NoSuchDevice {
        /// The number.
        ordinal: u32,
        /// Devices of this process.
        count: u32,
    },
    /// The driver refuses to work with it.
    #[error("CUDA device {ordinal} cannot be used: {source}")]
    Refused {
        /// The number.
        ordinal: u32,
        /// The call and its error.
        source: DeviceError,
    },
}

/// A GPU.
///
/// What was not given back when it is dropped stays as it is until the process ends: somebody may
/// still use it. Its events are destroyed and its contexts released.
pub struct CudaDevice {
    pub(crate) driver: &'static Driver,
    ordinal: u32,
    pub(crate) device: CuDevice,
    /// The primary context, retained.
    pub(crate) context: CuContext,
    properties: Properties,
    /// What physical memory is created with.
    features: Features,
    granularity: u64,
    /// Who may use mapped memory: this device, then its peers.
    pub(crate) access: Vec<CuAccess>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) books: Books,
    pub(crate) sharing: Sharing,
    pub(crate) events: EventPool,
    /// Events that are one with another: fences that were recorded stream by stream.
    pub(crate) fences: FxHashMap<StreamEvent, Vec<StreamEvent>>,
    /// A fence is an event on each stream: the driver has none of a whole context, or it must not be asked.
    pub(crate) fences_by_stream: bool,
    pub(crate) streams: StreamTable,
    /// Devices of other streams that use our memory.
    pub(crate) others: Vec<Other>,
    pub(crate) calls: Calls,
    times: Times,
    pub(crate) copies: CopyBooks,
    pub(crate) stalls: Stalls,
}

impl CudaDevice {
    /// The device of number `ordinal`, counted as in `torch.device("cuda", ordinal)`. Loads the
    /// driver if need be and retains the device's primary context, which the CUDA runtime uses too.
    ///
    /// # Errors
    /// [`OpenError`] says what is missing and what to do.
    pub fn new(ordinal: u32) -> Result<CudaDevice, OpenError> {
        CudaDevice::open(Driver::load()?, ordinal)
    }

    pub(crate) fn open(driver: &'static Driver, ordinal: u32) -> Result<CudaDevice, OpenError> {
        let refused = |failure| OpenError::Refused { ordinal, source: driver.error(failure) };
        let device = driver.device(ordinal).map_err(|failure| match failure.code {
            CuResult::INVALID_DEVICE => {
                OpenError::NoSuchDevice { ordinal, count: driver.device_count() }
            }
            _ => refused(failure),
        })?;
        let mut properties = properties(driver, device).map_err(refused)?;
        let Properties { shareable, rdma, virtual_memory, .. } = properties;
        let features = Features { shareable, rdma };
        let asked = virtual_memory.then(|| granularity(driver, device, features));
        let granularity = match asked {
            Some(Ok(granularity)) => granularity,
            // Some drivers of virtual GPUs say that they can, and cannot.
            Some(Err(failure)) if failure.code != CuResult::NOT_SUPPORTED => {
                return Err(refused(failure));
            }
            Some(Err(_)) | None => {
                properties.virtual_memory = false;
                GRANULARITY_DEFAULT
            }
        };
        let context = driver.retain_primary(device).map_err(refused)?;
        Ok(CudaDevice {
            driver,
            ordinal,
            device,
            context,
            properties,
            features,
            granularity,
            access: vec![CuAccess::new(device, CuAccess::READ_WRITE)],
            peers: Vec::new(),
            books: Books::new(granularity),
            sharing: Sharing::default(),
            events: EventPool::default(),
            fences: FxHashMap::default(),
            fences_by_stream: false,
            streams: StreamTable::default(),
            others: Vec::new(),
            calls: Calls::default(),
            times: Times::default(),
            copies: CopyBooks::default(),
            stalls: Stalls::default(),
        })
    }

    /// Its number.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// What it is.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The driver calls made so far.
    pub fn calls(&self) -> Calls {
        self.calls
    }

    /// How long the driver has taken for memory by now: to give, to take and to map it.
    pub fn memory_time(&self) -> Duration {
        self.times.total()
    }

    /// How long each kind of those calls has taken by now, by the name of its count in [`Calls`].
    pub fn memory_times(&self) -> impl IntoIterator<Item = (&'static str, Duration)> + use<> {
        self.times.by_call()
    }

    /// Waits on the host for all work of the device (`cuCtxSynchronize`).
    ///
    /// # Errors
    /// [`DeviceError::Driver`]: a kernel failed, or a capture is under way.
    pub fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.waiter().synchronize()
    }

    /// Waits for all work of a context, which may be another device's.
    pub(crate) fn synchronize_context(&mut self, context: CuContext) -> Result<(), DeviceError> {
        self.calls.synchronize += 1;
        Waiter { driver: self.driver, context }.synchronize()
    }

    /// Waits for all work of the device, later and on any thread, while others use the device.
    pub fn waiter(&mut self) -> Waiter {
        self.calls.synchronize += 1;
        Waiter { driver: self.driver, context: self.context }
    }

    /// An allocation of `size` bytes that is made later and on any thread, while others use the device
    /// (`cuMemAlloc`). What it gives is the device's once [`CudaDevice::finish_alloc`] was told of it.
    ///
    /// # Errors
    /// [`DeviceError::Misuse`] of a size that no allocation has.
    pub fn begin_alloc(&mut self, size: u64) -> Result<BegunAlloc, DeviceError> {
        self.books.check_size("alloc", size, false)?;
        self.calls.alloc += 1;
        Ok(BegunAlloc { driver: self.driver, context: self.context, size })
    }

    /// Enters the allocation of `size` bytes that [`BegunAlloc::make`] gave at `address`.
    pub fn finish_alloc(&mut self, address: Address, size: u64) {
        self.books.add_allocation(address, size);
    }

    /// Makes our context current.
    pub(crate) fn enter(&self) -> Result<Scope, DeviceError> {
        self.checked(Scope::enter(self.driver, self.context))
    }

    /// Makes our context current, for calls that a capture cannot hold.
    pub(crate) fn enter_relaxed(&self) -> Result<Scope, DeviceError> {
        self.checked(Scope::relaxed(self.driver, self.context))
    }

    /// The error of a refusal by a call that takes memory: of the device itself, for the page tables of a
    /// mapping, or addresses.
    pub(crate) fn refused(&mut self, failure: Failure, requested: u64) -> DeviceError {
        if failure.code != CuResult::OUT_OF_MEMORY {
            return self.driver.error(failure);
        }
        DeviceError::OutOfMemory { requested, free: self.memory_info().free }
    }

    /// The driver's answer, with its refusal as the error of a device.
    pub(crate) fn checked<T>(&self, answer: Result<T, Failure>) -> Result<T, DeviceError> {
        answer.map_err(|failure| self.driver.error(failure))
    }

    /// Creates physical memory; without a feature that the device turns out not to have.
    fn create_with_features(&mut self, size: u64) -> Result<(CuMemory, Features), Failure> {
        let mut features = self.features;
        loop {
            self.calls.create += 1;
            let properties = CuProperties::new(self.device, features);
            let driver = self.driver;
            match self.times.measure(Work::Create, || driver.create(size as usize, &properties)) {
                Ok(memory) => {
                    self.features = features;
                    return Ok((memory, features));
                }
                Err(failure) => features = lesser(features, failure)?,
            }
        }
    }
}

/// What is left to ask for after a refusal; the refusal itself if it was for another reason, or
/// nothing is left.
fn lesser(features: Features, failure: Failure) -> Result<Features, Failure> {
    let of_a_feature = [CuResult::INVALID_VALUE, CuResult::NOT_PERMITTED, CuResult::NOT_SUPPORTED];
    match features {
        _ if !of_a_feature.contains(&failure.code) => Err(failure),
        Features { rdma: true, .. } => Ok(Features { rdma: false, ..features }),
        Features { shareable: true, .. } => Ok(Features::default()),
        _ => Err(failure),
    }
}

/// Asks the driver what a device is. An attribute that the driver does not know is 0.
fn properties(driver: &Driver, device: CuDevice) -> Result<Properties, Failure> {
    let number = |which| {
        let value = driver.attribute(device, which).unwrap_or(0);
        u32::try_from(value).unwrap_or(0)
    };
    let major = number(CuAttribute::COMPUTE_CAPABILITY_MAJOR);
    Ok(Properties {
        name: driver.device_name(device)?,
        uuid: driver.device_uuid(device).ok(),
        total: driver.device_total_memory(device)?,
        capability: (major, number(CuAttribute::COMPUTE_CAPABILITY_MINOR)),
        multiprocessors: number(CuAttribute::MULTIPROCESSOR_COUNT),
        virtual_memory: number(CuAttribute::VIRTUAL_MEMORY) != 0,
        shareable: number(CuAttribute::POSIX_FILE_DESCRIPTOR) != 0,
        rdma: number(CuAttribute::RDMA_WITH_VIRTUAL_MEMORY) != 0,
    })
}

fn granularity(driver: &Driver, device: CuDevice, features: Features) -> Result<u64, Failure> {
    driver
        .granularity(&CuProperties::new(device, features))
        .or_else(|_| driver.granularity(&CuProperties::new(device, Features::default())))
}

impl Device for CudaDevice {
    /// Both are 0 if the driver does not say.
    fn memory_info(&mut self) -> MemoryInfo {
        self.calls.memory_info += 1;
        let asked = self.enter_relaxed().ok().and_then(|_scope| self.driver.memory_info().ok());
        let (free, total) = asked.unwrap_or((0, 0));
        MemoryInfo { free, total }
    }

    fn granularity(&self) -> u64 {
        self.granularity
    }

    fn maps_twice(&self) -> bool {
        true
    }

    fn prices(&self) -> Prices {
        self.times.prices()
    }

    fn alloc(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.books.check_size("alloc", size, false)?;
        let _scope = self.enter_relaxed()?;
        self.calls.alloc += 1;
        let driver = self.driver;
        let address = match self.times.measure(Work::Alloc, || driver.alloc(size as usize)) {
            Ok(address) => address,
            Err(failure) => return Err(self.refused(failure, size)),
        };
        self.books.add_allocation(address, size);
        Ok(address)
    }

    fn free(&mut self, address: Address) -> Result<(), DeviceError> {
        self.books.check_free(address)?;
        let _scope = self.enter_relaxed()?;
        self.calls.free += 1;
        let driver = self.driver;
        let freed = self.times.measure(Work::Free, || driver.free(address));
        self.checked(freed)?;
        self.books.remove_allocation(address);
        Ok(())
    }

    fn reserve(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.books.check_size("reserve", size, true)?;
        let _scope = self.enter_relaxed()?;
        self.calls.reserve += 1;
        let driver = self.driver;
        let reserved =
            self.times.measure(Work::Reserve, || driver.reserve_addresses(size as usize));
        let address = reserved.map_err(|failure| self.refused(failure, size))?;
        self.books.add_reservation(address, size);
        Ok(address)
    }

    fn unreserve(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.books.check_unreserve(address, size)?;
        let _scope = self.enter_relaxed()?;
        self.calls.unreserve += 1;
        let driver = self.driver;
        let freed =
            self.times.measure(Work::Unreserve, || driver.free_addresses(address, size as usize));
        self.checked(freed)?;
        self.books.remove_reservation(address);
        Ok(())
    }

    fn create(&mut self, size: u64) -> Result<Handle, DeviceError> {
        self.books.check_size("create", size, true)?;
        let _scope = self.enter_relaxed()?;
        let (memory, features) = match self.create_with_features(size) {
            Ok(created) => created,
            Err(failure) => return Err(self.refused(failure, size)),
        };
        self.books.add_handle(Handle(memory.0), size, features.shareable);
        Ok(Handle(memory.0))
    }

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        self.books.check_release(handle)?;
        let _scope = self.enter_relaxed()?;
        self.calls.release += 1;
        let driver = self.driver;
        let released = self.times.measure(Work::Release, || driver.release(CuMemory(handle.0)));
        self.checked(released)?;
        self.books.remove_handle(handle);
        self.sharing.forget(handle);
        Ok(())
    }

    fn map(&mut self, address: Address, handle: Handle) -> Result<(), DeviceError> {
        let size = self.books.check_map(address, handle)?;
        let _scope = self.enter_relaxed()?;
        self.calls.map += 1;
        let driver = self.driver;
        let map = || driver.map(address, size as usize, CuMemory(handle.0));
        if let Err(failure) = self.times.measure(Work::Map, map) {
            return Err(self.refused(failure, size));
        }
        self.books.add_mapping(address, handle);
        Ok(())
    }

    /// For this device and for every peer.
    fn set_access(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.books.check_mapped("set_access", address, size)?;
        let _scope = self.enter_relaxed()?;
        self.calls.set_access += 1;
        let (driver, access, copies) = (self.driver, &self.access, &self.copies);
        let set_access = || {
            // Copies to the host would keep each page waiting.
            let _closed = copies.close_gate();
            driver.set_access(address, size as usize, access)
        };
        if let Err(failure) = self.times.measure(Work::SetAccess, set_access) {
            return Err(self.refused(failure, size));
        }
        self.books.set_accessible(address, size);
        Ok(())
    }

    fn unmap(&mut self, address: Address, size: u64) -> Result<(), DeviceError> {
        self.books.check_mapped("unmap", address, size)?;
        let _scope = self.enter_relaxed()?;
        self.calls.unmap += 1;
        let driver = self.driver;
        let unmapped = self.times.measure(Work::Unmap, || driver.unmap(address, size as usize));
        self.checked(unmapped)?;
        self.books.remove_mappings(address, size);
        Ok(())
    }

    /// Within a capture the mark is a part of the graph.
    fn record_event(&mut self, stream: StreamId) -> Result<StreamEvent, DeviceError> {
        self.mark_stream(stream)
    }

    fn record_fence(&mut self, users: &[StreamId]) -> Result<StreamEvent, DeviceError> {
        self.mark_all(users)
    }

    fn is_capturing(&mut self, stream: StreamId) -> Result<bool, DeviceError> {
        self.asks_capturing(stream)
    }

    fn captured_ends(&mut self, stream: StreamId) -> Result<Option<CapturedEnds>, DeviceError> {
        self.asks_ends(stream)
    }

    fn graph_dependencies(&mut self, node: GraphNode) -> Result<Vec<GraphNode>, DeviceError> {
        self.asks_dependencies(node)
    }

    fn query_event(&mut self, event: StreamEvent) -> Result<bool, DeviceError> {
        let marks = self.marks("query_event", event)?;
        let _scope = self.enter_relaxed()?;
        for event in marks {
            self.calls.event_query += 1;
            if !self.checked(self.driver.query_event(event))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn wait_event(&mut self, stream: StreamId, event: StreamEvent) -> Result<(), DeviceError> {
        let (stream, context) = self.stream("wait_event", stream)?;
        let marks = self.marks("wait_event", event)?;
        let _scope = self.checked(Scope::enter(self.driver, context))?;
        for event in marks {
            self.calls.stream_wait += 1;
            self.checked(self.driver.wait_event(stream, event))?;
        }
        Ok(())
    }

    fn wait_measured(&mut self, stream: StreamId, event: StreamEvent) -> Result<(), DeviceError> {
        self.waits_timed(stream, event)
    }

    fn take_stalls(&mut self, most: u64) -> u64 {
        self.stalls_told(most)
    }

    fn synchronize_event(&mut self, event: StreamEvent) -> Result<(), DeviceError> {
        let marks = self.marks("synchronize_event", event)?;
        let _scope = self.enter_relaxed()?;
        for event in marks {
            self.calls.synchronize += 1;
            self.checked(self.driver.synchronize_event(event))?;
        }
        Ok(())
    }

    /// The event is kept and used again: no driver call.
    fn destroy_event(&mut self, event: StreamEvent) -> Result<(), DeviceError> {
        if self.unmark(event) {
            return Ok(());
        }
        misuse("destroy_event", format!("event {:#x} is not in use", event.0))
    }

    fn synchronize_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        let (stream, context) = self.stream("synchronize_stream", stream)?;
        let _scope = self.checked(Scope::relaxed(self.driver, context))?;
        self.calls.synchronize += 1;
        self.checked(self.driver.synchronize_stream(stream))
    }
}

impl Drop for CudaDevice {
    /// When the process ends the driver may be gone already: it refuses then, and all is well.
    fn drop(&mut self) {
        if let Ok(_scope) = self.enter_relaxed() {
            for event in self.events.drain().chain(self.copies.timers.drain()) {
                let _ = self.driver.destroy_event(event);
            }
        }
        for peer in self.peers.drain(..) {
            let _ = self.driver.release_primary(peer.device);
        }
        for other in self.others.drain(..) {
            let _ = self.driver.release_primary(other.device);
        }
        let _ = self.driver.release_primary(self.device);
    }
}
