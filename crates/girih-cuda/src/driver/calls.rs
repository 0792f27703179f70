//! The driver's functions as methods: arguments by value, results by value, errors by name.
//!
//! The methods are safe to call with any number for an address or a size: the driver checks those.
//! Contexts, events and physical memory come from other methods of this file and are used until
//! they are destroyed, which is the duty of the few structs that own them; streams come from the
//! program, which keeps them alive while it allocates for them.
#![expect(unsafe_code, reason = "the one place where the driver is called")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use girih_runtime::DeviceError;
use libloading::Library;

use super::Driver;
use super::table::Table;
use super::types::{
    CAPTURE_ACTIVE, CAPTURE_NONE, CuAccess, CuAttribute, CuCaptureMode, CuContext, CuDevice,
    CuEvent, CuGraph, CuIpcHandle, CuMemory, CuNode, CuProperties, CuResult, CuStream,
    EVENT_DEFAULT, EVENT_DISABLE_TIMING, GRANULARITY_MINIMUM, HOST_REGISTER_PORTABLE,
    IPC_LAZY_PEER_ACCESS, POSIX_FILE_DESCRIPTOR, STREAM_NON_BLOCKING, WAIT_UNTIL_EQUAL,
};

/// A call that the driver refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    /// The function.
    pub(crate) call: &'static str,
    /// What it returned.
    pub(crate) code: CuResult,
}

/// Loads a shared library.
pub(super) fn open_library(name: &str) -> Result<Library, libloading::Error> {
    // SAFETY: the names are those of the CUDA driver, whose initializers may run at any time.
    unsafe { Library::new(name) }
}

/// Looks up the driver's functions and keeps the library for the life of the process: the driver
/// has threads of its own, which do not survive its unloading.
pub(super) fn table_of(library: Library) -> Result<Table, &'static str> {
    // SAFETY: the library was opened under the driver's name, and it is never unloaded: on success
    // it is forgotten below.
    let table = unsafe { Table::from_library(&library) }?;
    std::mem::forget(library);
    Ok(table)
}

/// A function's answer.
fn done(call: &'static str, code: CuResult) -> Result<(), Failure> {
    if code == CuResult::SUCCESS { Ok(()) } else { Err(Failure { call, code }) }
}

/// Calls a function that writes its result through its first argument.
macro_rules! give {
    ($call:literal, $initial:expr, |$out:ident| $function:expr) => {{
        let mut value = $initial;
        let $out = &raw mut value;
        // SAFETY: the pointer is to a local of the type that the function writes; the other
        // arguments are numbers, or valid for the call.
        done($call, unsafe { $function }).map(|()| value)
    }};
}

/// Calls a function that takes numbers, or pointers that are valid for the call.
macro_rules! make {
    ($call:literal, $function:expr) => {{
        // SAFETY: the arguments are numbers, or valid for the call; handles are alive (see the top
        // of this file).
        done($call, unsafe { $function })
    }};
}

/// Errors as text.
impl Driver {
    /// The name, number and text of a result, with advice where the text alone misleads.
    pub(crate) fn describe(&self, code: CuResult) -> String {
        let name = self.word(code, self.table.error_name);
        let mut text = format!("{} ({})", name.as_deref().unwrap_or("CUDA_ERROR"), code.0);
        if let Some(meaning) = self.word(code, self.table.error_string) {
            let _ = write!(text, ", {meaning}");
        }
        if code == CuResult::NOT_INITIALIZED {
            text += "; a process that was forked after CUDA started cannot use it: start processes \
                     with `spawn`";
        }
        text
    }

    fn word(
        &self,
        code: CuResult,
        function: unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult,
    ) -> Option<String> {
        let text = give!("cuGetErrorName", ptr::null(), |out| function(code, out)).ok()?;
        if text.is_null() {
            return None;
        }
        // SAFETY: the driver gives a string that ends with 0 and lives as long as the driver.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// A refusal as the error of a device.
    pub(crate) fn error(&self, failure: Failure) -> DeviceError {
        DeviceError::Driver { call: failure.call, reason: self.describe(failure.code) }
    }
}

/// The driver and its devices.
impl Driver {
    pub(crate) fn init(&self) -> Result<(), Failure> {
        make!("cuInit", (self.table.init)(0))
    }

    pub(crate) fn driver_version(&self) -> Result<u32, Failure> {
        give!("cuDriverGetVersion", 0, |out| (self.table.driver_version)(out))
            .map(|version| u32::try_from(version).unwrap_or(0))
    }

    pub(crate) fn count_devices(&self) -> Result<u32, Failure> {
        give!("cuDeviceGetCount", 0, |out| (self.table.device_count)(out))
            .map(|count| u32::try_from(count).unwrap_or(0))
    }

    pub(crate) fn device(&self, ordinal: u32) -> Result<CuDevice, Failure> {
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        give!("cuDeviceGet", CuDevice(0), |out| (self.table.device_get)(out, ordinal))
    }

    pub(crate) fn device_name(&self, device: CuDevice) -> Result<String, Failure> {
        let mut name = [0_u8; 256];
        let length = name.len() as c_int - 1;
        let text = name.as_mut_ptr().cast();
        make!("cuDeviceGetName", (self.table.device_name)(text, length, device))?;
        let text = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    pub(crate) fn device_total_memory(&self, device: CuDevice) -> Result<u64, Failure> {
        give!("cuDeviceTotalMem", 0, |out| (self.table.device_total_memory)(out, device))
            .map(|bytes| bytes as u64)
    }

    /// The number that the GPU, or the part of a partitioned one (MIG), has in every process, on every
    /// machine. Drivers before CUDA 11.4 have one for all parts.
    pub(crate) fn device_uuid(&self, device: CuDevice) -> Result<[u8; 16], Failure> {
        let of_part = self.table.device_uuid_of_part;
        give!("cuDeviceGetUuid", [0; 16], |out| (of_part.unwrap_or(self.table.device_uuid))(
            out, device
        ))
    }

    pub(crate) fn attribute(&self, device: CuDevice, which: CuAttribute) -> Result<i32, Failure> {
        give!("cuDeviceGetAttribute", 0, |out| (self.table.device_attribute)(out, which, device))
    }

    /// Whether `device` can reach the memory of `peer`.
    pub(crate) fn can_access_peer(
        &self,
        device: CuDevice,
        peer: CuDevice,
    ) -> Result<bool, Failure> {
        let can = give!("cuDeviceCanAccessPeer", 0, |out| (self.table.device_can_access_peer)(
            out, device, peer
        ))?;
        Ok(can != 0)
    }
}

/// Contexts, and what a thread may do during a capture.
impl Driver {
    pub(crate) fn retain_primary(&self, device: CuDevice) -> Result<CuContext, Failure> {
        give!("cuDevicePrimaryCtxRetain", CuContext(0), |out| (self.table.primary_retain)(
            out, device
        ))
    }

    pub(crate) fn release_primary(&self, device: CuDevice) -> Result<(), Failure> {
        make!("cuDevicePrimaryCtxRelease", (self.table.primary_release)(device))
    }

    pub(crate) fn current_context(&self) -> Result<CuContext, Failure> {
        give!("cuCtxGetCurrent", CuContext(0), |out| (self.table.context_current)(out))
    }

    pub(crate) fn push_context(&self, context: CuContext) -> Result<(), Failure> {
        make!("cuCtxPushCurrent", (self.table.context_push)(context))
    }

    pub(crate) fn pop_context(&self) -> Result<CuContext, Failure> {
        give!("cuCtxPopCurrent", CuContext(0), |out| (self.table.context_pop)(out))
    }

    pub(crate) fn synchronize_context(&self) -> Result<(), Failure> {
        make!("cuCtxSynchronize", (self.table.context_synchronize)())
    }

    /// Lets the current context reach the memory of `peer`.
    pub(crate) fn enable_peer_access(&self, peer: CuContext) -> Result<(), Failure> {
        make!("cuCtxEnablePeerAccess", (self.table.enable_peer_access)(peer, 0))
    }

    pub(crate) fn disable_peer_access(&self, peer: CuContext) -> Result<(), Failure> {
        make!("cuCtxDisablePeerAccess", (self.table.disable_peer_access)(peer))
    }

    /// Sets the capture mode of this thread and returns the one before.
    pub(crate) fn exchange_capture_mode(
        &self,
        mode: CuCaptureMode,
    ) -> Result<CuCaptureMode, Failure> {
        give!("cuThreadExchangeStreamCaptureMode", mode, |out| (self.table.exchange_capture_mode)(
            out
        ))
    }
}

/// Memory.
impl Driver {
    /// Bytes free, and bytes in all, of the current context's device.
    pub(crate) fn memory_info(&self) -> Result<(u64, u64), Failure> {
        let mut total = 0;
        let total_out = &raw mut total;
        let free = give!("cuMemGetInfo", 0, |out| (self.table.memory_info)(out, total_out))?;
        Ok((free as u64, total as u64))
    }

    pub(crate) fn alloc(&self, size: usize) -> Result<u64, Failure> {
        give!("cuMemAlloc", 0, |out| (self.table.alloc)(out, size))
    }

    pub(crate) fn free(&self, address: u64) -> Result<(), Failure> {
        make!("cuMemFree", (self.table.free)(address))
    }

    pub(crate) fn granularity(&self, properties: &CuProperties) -> Result<u64, Failure> {
        give!("cuMemGetAllocationGranularity", 0, |out| (self.table.granularity)(
            out,
            ptr::from_ref(properties),
            GRANULARITY_MINIMUM
        ))
        .map(|bytes| bytes as u64)
    }

    pub(crate) fn reserve_addresses(&self, size: usize) -> Result<u64, Failure> {
        give!("cuMemAddressReserve", 0, |out| (self.table.address_reserve)(out, size, 0, 0, 0))
    }

    pub(crate) fn free_addresses(&self, address: u64, size: usize) -> Result<(), Failure> {
        make!("cuMemAddressFree", (self.table.address_free)(address, size))
    }

    pub(crate) fn create(
        &self,
        size: usize,
        properties: &CuProperties,
    ) -> Result<CuMemory, Failure> {
        give!("cuMemCreate", CuMemory(0), |out| (self.table.create)(
            out,
            size,
            ptr::from_ref(properties),
            0
        ))
    }

    pub(crate) fn release(&self, memory: CuMemory) -> Result<(), Failure> {
        make!("cuMemRelease", (self.table.release)(memory))
    }

    pub(crate) fn map(&self, address: u64, size: usize, memory: CuMemory) -> Result<(), Failure> {
        make!("cuMemMap", (self.table.map)(address, size, 0, memory, 0))
    }

    pub(crate) fn unmap(&self, address: u64, size: usize) -> Result<(), Failure> {
        make!("cuMemUnmap", (self.table.unmap)(address, size))
    }

    pub(crate) fn set_access(
        &self,
        address: u64,
        size: usize,
        access: &[CuAccess],
    ) -> Result<(), Failure> {
        let (first, count) = (access.as_ptr(), access.len());
        make!("cuMemSetAccess", (self.table.set_access)(address, size, first, count))
    }
}

/// Memory of other processes.
impl Driver {
    /// A file descriptor that stands for physical memory, and keeps it.
    pub(crate) fn export(&self, memory: CuMemory) -> Result<OwnedFd, Failure> {
        let number: RawFd = give!("cuMemExportToShareableHandle", -1, |out| (self.table.export)(
            out.cast::<c_void>(),
            memory,
            POSIX_FILE_DESCRIPTOR,
            0
        ))?;
        if number < 0 {
            return Err(Failure {
                call: "cuMemExportToShareableHandle",
                code: CuResult::NOT_SUPPORTED,
            });
        }
        // SAFETY: the driver has just opened it for the caller, who owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }

    /// The physical memory that a file descriptor stands for. The descriptor can be closed then.
    pub(crate) fn import(&self, descriptor: BorrowedFd<'_>) -> Result<CuMemory, Failure> {
        // The driver takes the number itself where other kinds of handle have a pointer.
        let number = ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
        give!("cuMemImportFromShareableHandle", CuMemory(0), |out| (self.table.import)(
            out,
            number,
            POSIX_FILE_DESCRIPTOR
        ))
    }

    pub(crate) fn ipc_handle(&self, address: u64) -> Result<CuIpcHandle, Failure> {
        let empty = CuIpcHandle { reserved: [0; CuIpcHandle::BYTES] };
        give!("cuIpcGetMemHandle", empty, |out| (self.table.ipc_get)(out, address))
    }

    pub(crate) fn ipc_open(&self, handle: CuIpcHandle) -> Result<u64, Failure> {
        give!("cuIpcOpenMemHandle", 0, |out| (self.table.ipc_open)(
            out,
            handle,
            IPC_LAZY_PEER_ACCESS
        ))
    }

    pub(crate) fn ipc_close(&self, address: u64) -> Result<(), Failure> {
        make!("cuIpcCloseMemHandle", (self.table.ipc_close)(address))
    }
}

/// Events and streams.
impl Driver {
    /// An event that measures no time, which makes it cheap.
    pub(crate) fn create_event(&self) -> Result<CuEvent, Failure> {
        give!("cuEventCreate", CuEvent(0), |out| (self.table.event_create)(
            out,
            EVENT_DISABLE_TIMING
        ))
    }

    /// An event that takes the time.
    pub(crate) fn create_timer(&self) -> Result<CuEvent, Failure> {
        give!("cuEventCreate", CuEvent(0), |out| (self.table.event_create)(out, EVENT_DEFAULT))
    }

    /// Milliseconds between two events that take the time. None while one of them is not done.
    pub(crate) fn elapsed(&self, from: CuEvent, to: CuEvent) -> Result<Option<f32>, Failure> {
        let asked =
            give!("cuEventElapsedTime", 0.0, |out| (self.table.event_elapsed)(out, from, to));
        match asked {
            Err(Failure { code: CuResult::NOT_READY, .. }) => Ok(None),
            asked => asked.map(Some),
        }
    }

    /// A stream that waits for no other by itself.
    pub(crate) fn create_stream(&self) -> Result<CuStream, Failure> {
        give!("cuStreamCreate", CuStream(0), |out| (self.table.stream_create)(
            out,
            STREAM_NON_BLOCKING
        ))
    }

    /// Pins memory of the host.
    pub(crate) fn register(&self, host: u64, size: usize) -> Result<(), Failure> {
        let start = host as *mut c_void;
        make!("cuMemHostRegister", (self.table.host_register)(start, size, HOST_REGISTER_PORTABLE))
    }

    /// Lets go of memory of the host that was pinned from this address on.
    pub(crate) fn unregister(&self, host: u64) -> Result<(), Failure> {
        make!("cuMemHostUnregister", (self.table.host_unregister)(host as *mut c_void))
    }

    /// Where a device finds memory of the host that is pinned.
    pub(crate) fn address_on_device(&self, host: u64) -> Result<u64, Failure> {
        let start = host as *mut c_void;
        give!("cuMemHostGetDevicePointer", 0, |out| (self.table.host_address)(out, start, 0))
    }

    /// Whether streams can wait for a value in memory. Drivers before CUDA 11.7 do not have it.
    pub(crate) fn waits_for_values(&self) -> bool {
        self.table.stream_wait_value.is_some()
    }

    /// What comes next on a stream waits until the word at an address of the device has a value.
    pub(crate) fn wait_for_value(
        &self,
        stream: CuStream,
        address: u64,
        value: u32,
    ) -> Result<(), Failure> {
        let call = "cuStreamWaitValue32";
        let Some(wait) = self.table.stream_wait_value else {
            return Err(Failure { call, code: CuResult::NOT_SUPPORTED });
        };
        make!("cuStreamWaitValue32", wait(stream, address, value, WAIT_UNTIL_EQUAL))
    }

    /// Queues a copy to the host.
    pub(crate) fn copy_out(
        &self,
        from: u64,
        to: u64,
        size: usize,
        stream: CuStream,
    ) -> Result<(), Failure> {
        make!("cuMemcpyDtoHAsync", (self.table.copy_out)(to as *mut c_void, from, size, stream))
    }

    /// Queues a copy from the host.
    pub(crate) fn copy_in(
        &self,
        from: u64,
        to: u64,
        size: usize,
        stream: CuStream,
    ) -> Result<(), Failure> {
        make!("cuMemcpyHtoDAsync", (self.table.copy_in)(to, from as *const c_void, size, stream))
    }

    pub(crate) fn record_event(&self, event: CuEvent, stream: CuStream) -> Result<(), Failure> {
        make!("cuEventRecord", (self.table.event_record)(event, stream))
    }

    /// Whether the work before the event is done.
    pub(crate) fn query_event(&self, event: CuEvent) -> Result<bool, Failure> {
        match make!("cuEventQuery", (self.table.event_query)(event)) {
            Ok(()) => Ok(true),
            Err(Failure { code: CuResult::NOT_READY, .. }) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    pub(crate) fn synchronize_event(&self, event: CuEvent) -> Result<(), Failure> {
        make!("cuEventSynchronize", (self.table.event_synchronize)(event))
    }

    pub(crate) fn destroy_event(&self, event: CuEvent) -> Result<(), Failure> {
        make!("cuEventDestroy", (self.table.event_destroy)(event))
    }

    pub(crate) fn wait_event(&self, stream: CuStream, event: CuEvent) -> Result<(), Failure> {
        make!("cuStreamWaitEvent", (self.table.stream_wait_event)(stream, event, 0))
    }

    pub(crate) fn synchronize_stream(&self, stream: CuStream) -> Result<(), Failure> {
        make!("cuStreamSynchronize", (self.table.stream_synchronize)(stream))
    }

    /// Records the present end of all work of a context. None if the driver is older than CUDA 12.5.
    pub(crate) fn record_context(
        &self,
        context: CuContext,
        event: CuEvent,
    ) -> Option<Result<(), Failure>> {
        let record = self.table.context_record_event?;
        Some(make!("cuCtxRecordEvent", record(context, event)))
    }

    /// A number that no other stream of the process has or will have. None if the driver is older than
    /// CUDA 12.0.
    pub(crate) fn stream_id(&self, stream: CuStream) -> Option<Result<u64, Failure>> {
        let id = self.table.stream_id?;
        Some(give!("cuStreamGetId", 0, |out| id(stream, out)))
    }

    /// Whether a graph is being captured from the stream.
    pub(crate) fn is_capturing(&self, stream: CuStream) -> Result<bool, Failure> {
        give!("cuStreamIsCapturing", CAPTURE_NONE, |out| (self.table.stream_is_capturing)(
            stream, out
        ))
        .map(|status| status != CAPTURE_NONE)
    }

    /// Where the work ends that is captured from a stream: the number of the capture, and nodes of its graph.
    /// Nothing if no graph is captured from it, or if the driver is older than CUDA 12.3. An error if its next
    /// work may begin before these nodes have ended.
    pub(crate) fn captured_ends(
        &self,
        stream: CuStream,
    ) -> Result<Option<(u64, Vec<CuNode>)>, Failure> {
        let Some(info) = self.table.capture_info else { return Ok(None) };
        let (mut id, mut graph, mut count) = (0, CuGraph(0), 0);
        let mut nodes = ptr::null();
        let (id_out, graph_out) = (&raw mut id, &raw mut graph);
        let (nodes_out, count_out) = (&raw mut nodes, &raw mut count);
        let status = give!("cuStreamGetCaptureInfo", CAPTURE_NONE, |out| info(
            stream,
            out,
            id_out,
            graph_out,
            nodes_out,
            ptr::null_mut(),
            count_out
        ))?;
        if status != CAPTURE_ACTIVE {
            return Ok(None);
        }
        if count == 0 || nodes.is_null() {
            return Ok(Some((id, Vec::new())));
        }
        // SAFETY: the driver gives an array of so many nodes, which is its own until the next call about the
        // stream.
        let nodes = unsafe { std::slice::from_raw_parts(nodes, count) };
        Ok(Some((id, nodes.to_vec())))
    }

    /// The nodes that a node comes after directly. An error if it may begin before one of them has ended.
    pub(crate) fn node_dependencies(&self, node: CuNode) -> Result<Vec<CuNode>, Failure> {
        const CALL: &str = "cuGraphNodeGetDependencies";
        let unknown = Failure { call: CALL, code: CuResult::NOT_SUPPORTED };
        let dependencies = self.table.node_dependencies.ok_or(unknown)?;
        let no_edges = ptr::null_mut();
        let count = give!("cuGraphNodeGetDependencies", 0, |out| dependencies(
            node,
            ptr::null_mut(),
            no_edges,
            out
        ))?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut nodes = vec![CuNode(0); count];
        let mut given = count;
        let (first, given_out) = (nodes.as_mut_ptr(), &raw mut given);
        make!("cuGraphNodeGetDependencies", dependencies(node, first, no_edges, given_out))?;
        nodes.truncate(given);
        Ok(nodes)
    }

    /// True if the driver tells of the graphs that are being captured.
    pub(crate) fn tells_of_captures(&self) -> bool {
        self.table.capture_info.is_some() && self.table.node_dependencies.is_some()
    }
}
