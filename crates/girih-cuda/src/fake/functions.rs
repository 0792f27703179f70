//! The functions of the fake driver.
#![expect(unsafe_code, reason = "results are written through pointers, as the driver does")]

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::ptr;

use super::{DEVICES, MIB, Mapped, Memory, State, UNIT, copies, graphs, with};
use crate::driver::table::Table;
use crate::driver::types::{
    CuAccess, CuAttribute, CuCaptureMode, CuContext, CuDevice, CuEvent, CuIpcHandle, CuMemory,
    CuProperties, CuResult, CuStream, POSIX_FILE_DESCRIPTOR,
};

const OUT_OF_MEMORY: CuResult = CuResult::OUT_OF_MEMORY;
pub(super) const INVALID: CuResult = CuResult::INVALID_VALUE;
/// `CUDA_ERROR_INVALID_HANDLE`.
pub(super) const INVALID_HANDLE: CuResult = CuResult(400);

/// A call: counts it, runs it, and turns its result into a number.
pub(super) fn call(
    name: &'static str,
    body: impl FnOnce(&mut State) -> Result<(), CuResult>,
) -> CuResult {
    with(|state| match state.enter(name).and_then(|()| body(state)) {
        Ok(()) => CuResult::SUCCESS,
        Err(code) => code,
    })
}

/// A call that needs a current context, and that a capture cannot hold.
pub(super) fn memory_call(
    name: &'static str,
    body: impl FnOnce(&mut State) -> Result<(), CuResult>,
) -> CuResult {
    call(name, |state| {
        state.current()?;
        state.forbidden_in_capture()?;
        body(state)
    })
}

/// Writes a result.
pub(super) fn put<T>(out: *mut T, value: T) {
    // SAFETY: the wrappers hand over a pointer to a local of the type.
    unsafe { out.write(value) };
}

/// Reads an argument.
pub(super) fn get<T: Copy>(from: *const T) -> T {
    // SAFETY: the wrappers hand over a pointer to a value that lives for the call.
    unsafe { from.read() }
}

pub(super) fn check(condition: bool, code: CuResult) -> Result<(), CuResult> {
    if condition { Ok(()) } else { Err(code) }
}

extern "C" fn init(_flags: c_uint) -> CuResult {
    CuResult::SUCCESS
}

extern "C" fn driver_version(out: *mut c_int) -> CuResult {
    put(out, 13000);
    CuResult::SUCCESS
}

extern "C" fn error_name(code: CuResult, out: *mut *const c_char) -> CuResult {
    let known = code == OUT_OF_MEMORY;
    put(out, if known { c"CUDA_ERROR_OUT_OF_MEMORY".as_ptr() } else { ptr::null() });
    if known { CuResult::SUCCESS } else { INVALID }
}

extern "C" fn error_string(code: CuResult, out: *mut *const c_char) -> CuResult {
    let known = code == OUT_OF_MEMORY;
    put(out, if known { c"out of memory".as_ptr() } else { ptr::null() });
    if known { CuResult::SUCCESS } else { INVALID }
}

extern "C" fn device_count(out: *mut c_int) -> CuResult {
    put(out, DEVICES);
    CuResult::SUCCESS
}

extern "C" fn device_get(out: *mut CuDevice, ordinal: c_int) -> CuResult {
    call("cuDeviceGet", |_| {
        check((0..DEVICES).contains(&ordinal), CuResult::INVALID_DEVICE)?;
        put(out, CuDevice(ordinal));
        Ok(())
    })
}

extern "C" fn device_name(out: *mut c_char, _length: c_int, _device: CuDevice) -> CuResult {
    call("cuDeviceGetName", |_| {
        for (place, byte) in b"Fake GPU\0".iter().enumerate() {
            put(out.wrapping_add(place), *byte as c_char);
        }
        Ok(())
    })
}

extern "C" fn device_total_memory(out: *mut usize, _device: CuDevice) -> CuResult {
    call("cuDeviceTotalMem", |state| {
        put(out, state.total as usize);
        Ok(())
    })
}

extern "C" fn device_uuid(out: *mut [u8; 16], device: CuDevice) -> CuResult {
    call("cuDeviceGetUuid", |state| {
        let card = if state.is_partitioned { 0 } else { device.0 as u8 };
        put(out, [card + 1; 16]);
        Ok(())
    })
}

extern "C" fn device_uuid_of_part(out: *mut [u8; 16], device: CuDevice) -> CuResult {
    call("cuDeviceGetUuid_v2", |_| {
        put(out, [device.0 as u8 + 1; 16]);
        Ok(())
    })
}

extern "C" fn device_attribute(out: *mut c_int, which: CuAttribute, _: CuDevice) -> CuResult {
    call("cuDeviceGetAttribute", |state| {
        let value = match which {
            CuAttribute::COMPUTE_CAPABILITY_MAJOR => 9,
            CuAttribute::VIRTUAL_MEMORY if state.without_virtual_memory => 0,
            _ => 1,
        };
        put(out, value);
        Ok(())
    })
}

extern "C" fn can_access_peer(out: *mut c_int, device: CuDevice, peer: CuDevice) -> CuResult {
    call("cuDeviceCanAccessPeer", |_| {
        let lonely = DEVICES - 1;
        put(out, c_int::from(device != peer && device.0 != lonely && peer.0 != lonely));
        Ok(())
    })
}

extern "C" fn primary_retain(out: *mut CuContext, device: CuDevice) -> CuResult {
    call("cuDevicePrimaryCtxRetain", |state| {
        *state.retained.entry(device.0).or_insert(0) += 1;
        put(out, CuContext(device.0 as usize + 1));
        Ok(())
    })
}

extern "C" fn primary_release(device: CuDevice) -> CuResult {
    call("cuDevicePrimaryCtxRelease", |state| {
        let count = state.retained.get_mut(&device.0).ok_or(CuResult(201))?;
        *count -= 1;
        if *count == 0 {
            state.retained.remove(&device.0);
        }
        Ok(())
    })
}

extern "C" fn context_current(out: *mut CuContext) -> CuResult {
    call("cuCtxGetCurrent", |state| {
        put(out, CuContext(state.contexts.last().copied().unwrap_or(0)));
        Ok(())
    })
}

extern "C" fn context_push(context: CuContext) -> CuResult {
    call("cuCtxPushCurrent", |state| {
        check(!state.refuses_push, INVALID)?;
        state.contexts.push(context.0);
        Ok(())
    })
}

/// Never made to fail: see `Scope::drop`.
extern "C" fn context_pop(out: *mut CuContext) -> CuResult {
    with(|state| put(out, CuContext(state.contexts.pop().unwrap_or(0))));
    CuResult::SUCCESS
}

extern "C" fn context_synchronize() -> CuResult {
    memory_call("cuCtxSynchronize", |state| {
        state.held.clear();
        state.events.values_mut().for_each(BTreeSet::clear);
        Ok(())
    })
}

extern "C" fn enable_peer_access(peer: CuContext, _flags: c_uint) -> CuResult {
    call("cuCtxEnablePeerAccess", |state| {
        let pair = (state.current()? as usize + 1, peer.0);
        check(state.peers.insert(pair), CuResult::PEER_ACCESS_ALREADY_ENABLED)
    })
}

extern "C" fn disable_peer_access(peer: CuContext) -> CuResult {
    call("cuCtxDisablePeerAccess", |state| {
        let pair = (state.current()? as usize + 1, peer.0);
        check(state.peers.remove(&pair), INVALID)
    })
}

/// Made to fail only on the way in, which sets the relaxed mode.
extern "C" fn exchange_capture_mode(mode: *mut CuCaptureMode) -> CuResult {
    let wanted = get(mode);
    let exchange = |state: &mut State| {
        put(mode, state.mode);
        state.mode = wanted;
        Ok(())
    };
    if wanted == CuCaptureMode::RELAXED {
        call("cuThreadExchange", exchange)
    } else {
        with(|state| exchange(state).map_or_else(|code| code, |()| CuResult::SUCCESS))
    }
}

extern "C" fn memory_info(free: *mut usize, total: *mut usize) -> CuResult {
    call("cuMemGetInfo", |state| {
        state.current()?;
        put(free, (state.total - state.used) as usize);
        put(total, state.total as usize);
        Ok(())
    })
}

extern "C" fn alloc(out: *mut u64, size: usize) -> CuResult {
    memory_call("cuMemAlloc", |state| {
        check(size > 0, INVALID)?;
        check(size as u64 <= state.total - state.used, OUT_OF_MEMORY)?;
        let address = state.fresh(size as u64);
        state.used += size as u64;
        state.allocations.insert(address, size as u64);
        put(out, address);
        Ok(())
    })
}

extern "C" fn free(address: u64) -> CuResult {
    memory_call("cuMemFree", |state| {
        state.used -= state.allocations.remove(&address).ok_or(INVALID)?;
        Ok(())
    })
}

extern "C" fn granularity(out: *mut usize, _: *const CuProperties, _: c_uint) -> CuResult {
    call("cuMemGetAllocationGranularity", |state| {
        state.of_virtual_memory()?;
        put(out, UNIT as usize);
        Ok(())
    })
}

extern "C" fn address_reserve(out: *mut u64, size: usize, _: usize, _: u64, _: u64) -> CuResult {
    memory_call("cuMemAddressReserve", |state| {
        state.of_virtual_memory()?;
        check(size > 0 && (size as u64).is_multiple_of(UNIT), INVALID)?;
        let address = state.fresh(size as u64);
        state.reservations.insert(address, size as u64);
        put(out, address);
        Ok(())
    })
}

extern "C" fn address_free(address: u64, size: usize) -> CuResult {
    memory_call("cuMemAddressFree", |state| {
        check(state.reservations.get(&address) == Some(&(size as u64)), INVALID)?;
        let end = address + size as u64;
        check(state.mappings.range(address..end).next().is_none(), INVALID)?;
        state.reservations.remove(&address);
        Ok(())
    })
}

extern "C" fn create(
    out: *mut CuMemory,
    size: usize,
    properties: *const CuProperties,
    _flags: u64,
) -> CuResult {
    memory_call("cuMemCreate", |state| {
        state.of_virtual_memory()?;
        let (properties, size) = (get(properties), size as u64);
        let shareable = properties.handle_types == POSIX_FILE_DESCRIPTOR;
        let rdma = properties.rdma_capable == 1;
        check(size > 0 && size.is_multiple_of(UNIT), INVALID)?;
        check(!(shareable && state.without_sharing), CuResult::NOT_SUPPORTED)?;
        check(!(rdma && state.without_rdma), CuResult::NOT_PERMITTED)?;
        check(size <= state.total - state.used, OUT_OF_MEMORY)?;
        let number = state.fresh(MIB);
        state.used += size;
        state.memories.insert(number, Memory { size, references: 1, shareable, rdma });
        put(out, CuMemory(number));
        Ok(())
    })
}

extern "C" fn release(memory: CuMemory) -> CuResult {
    memory_call("cuMemRelease", |state| {
        check(state.memories.contains_key(&memory.0), INVALID)?;
        state.let_go(memory.0);
        Ok(())
    })
}

extern "C" fn map(address: u64, size: usize, offset: usize, memory: CuMemory, _: u64) -> CuResult {
    memory_call("cuMemMap", |state| {
        let found = state.memories.get_mut(&memory.0).ok_or(INVALID)?;
        check(found.size == size as u64 && offset == 0, CuResult::NOT_SUPPORTED)?;
        let end = address + found.size;
        let reserved = state.reservations.range(..=address).next_back();
        check(reserved.is_some_and(|(start, bytes)| end <= start + bytes), INVALID)?;
        let before = state.mappings.range(..end).next_back();
        check(before.is_none_or(|(start, other)| start + other.size <= address), INVALID)?;
        found.references += 1;
        let mapped = Mapped { size: found.size, memory: memory.0, access: BTreeSet::new() };
        state.mappings.insert(address, mapped);
        Ok(())
    })
}

/// The mappings of a range, which must be whole.
fn whole(state: &State, address: u64, size: usize) -> Result<Vec<u64>, CuResult> {
    let end = address + size as u64;
    let (mut at, mut starts) = (address, Vec::new());
    for (start, mapped) in state.mappings.range(address..end) {
        check(*start == at, INVALID)?;
        at += mapped.size;
        starts.push(*start);
    }
    check(at == end && size > 0, INVALID)?;
    Ok(starts)
}

extern "C" fn unmap(address: u64, size: usize) -> CuResult {
    memory_call("cuMemUnmap", |state| {
        for start in whole(state, address, size)? {
            if let Some(mapped) = state.mappings.remove(&start) {
                state.let_go(mapped.memory);
            }
        }
        Ok(())
    })
}

extern "C" fn set_access(
    address: u64,
    size: usize,
    access: *const CuAccess,
    count: usize,
) -> CuResult {
    memory_call("cuMemSetAccess", |state| {
        state.gates_at_access = state.gates.iter().map(|&gate| copies::word(gate)).collect();
        for start in whole(state, address, size)? {
            let Some(mapped) = state.mappings.get_mut(&start) else { continue };
            for index in 0..count {
                let entry = get(access.wrapping_add(index));
                match entry.flags {
                    CuAccess::READ_WRITE => mapped.access.insert(entry.location.id),
                    _ => mapped.access.remove(&entry.location.id),
                };
            }
        }
        Ok(())
    })
}

/// The number of a file in memory that holds `memory`.
fn file_of(memory: u64) -> io::Result<RawFd> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = File::from(rustix::fs::memfd_create("girih-fake-memory", flags)?);
    file.write_all_at(&memory.to_le_bytes(), 0)?;
    Ok(file.into_raw_fd())
}

extern "C" fn export(out: *mut c_void, memory: CuMemory, kind: c_uint, _flags: u64) -> CuResult {
    memory_call("cuMemExportToShareableHandle", |state| {
        let found = state.memories.get(&memory.0).ok_or(INVALID)?;
        check(found.shareable && kind == POSIX_FILE_DESCRIPTOR, CuResult::NOT_SUPPORTED)?;
        put(out.cast::<c_int>(), file_of(memory.0).map_err(|_| CuResult::NOT_SUPPORTED)?);
        Ok(())
    })
}

extern "C" fn import(out: *mut CuMemory, handle: *mut c_void, _kind: c_uint) -> CuResult {
    memory_call("cuMemImportFromShareableHandle", |state| {
        // SAFETY: the caller keeps the descriptor open for the call, and it is not closed here.
        let file = unsafe { File::from_raw_fd(handle.addr() as RawFd) };
        let mut number = [0; 8];
        let read = ManuallyDrop::new(file).read_exact_at(&mut number, 0);
        check(read.is_ok(), INVALID_HANDLE)?;
        let number = u64::from_le_bytes(number);
        state.memories.get_mut(&number).ok_or(INVALID_HANDLE)?.references += 1;
        put(out, CuMemory(number));
        Ok(())
    })
}

extern "C" fn ipc_get(out: *mut CuIpcHandle, address: u64) -> CuResult {
    memory_call("cuIpcGetMemHandle", |state| {
        check(state.allocations.contains_key(&address), INVALID)?;
        let mut reserved = [7; CuIpcHandle::BYTES];
        reserved[..8].copy_from_slice(&address.to_le_bytes());
        put(out, CuIpcHandle { reserved });
        Ok(())
    })
}

extern "C" fn ipc_open(out: *mut u64, handle: CuIpcHandle, _flags: c_uint) -> CuResult {
    memory_call("cuIpcOpenMemHandle", |state| {
        let mut address = [0; 8];
        address.copy_from_slice(&handle.reserved[..8]);
        let original = u64::from_le_bytes(address);
        check(handle.reserved[8..] == [7; 56], INVALID_HANDLE)?;
        let opened = state.fresh(UNIT);
        state.opened.insert(opened, original);
        put(out, opened);
        Ok(())
    })
}

extern "C" fn ipc_close(address: u64) -> CuResult {
    memory_call("cuIpcCloseMemHandle", |state| {
        check(state.opened.remove(&address).is_some(), INVALID)
    })
}

extern "C" fn event_create(out: *mut CuEvent, _flags: c_uint) -> CuResult {
    memory_call("cuEventCreate", |state| {
        let event = state.fresh(MIB) as usize;
        state.events.insert(event, BTreeSet::new());
        put(out, CuEvent(event));
        Ok(())
    })
}

extern "C" fn event_record(event: CuEvent, stream: CuStream) -> CuResult {
    call("cuEventRecord", |state| {
        state.current()?;
        state.names(stream.0);
        check(!state.capturing.contains(&stream.0), INVALID)?;
        let waits = state.held.contains(&stream.0).then_some(stream.0);
        let event = state.events.get_mut(&event.0).ok_or(INVALID_HANDLE)?;
        *event = waits.into_iter().collect();
        Ok(())
    })
}

/// Refused while any stream of the context captures, in whatever mode; and the capture is spoiled.
extern "C" fn context_record_event(_context: CuContext, event: CuEvent) -> CuResult {
    call("cuCtxRecordEvent", |state| {
        if state.captures || !state.capturing.is_empty() {
            state.spoiled = true;
            return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED);
        }
        let held = state.held.clone();
        *state.events.get_mut(&event.0).ok_or(INVALID_HANDLE)? = held;
        Ok(())
    })
}

extern "C" fn stream_id(stream: CuStream, out: *mut u64) -> CuResult {
    call("cuStreamGetId", |state| {
        put(out, state.identities.get(&stream.0).copied().unwrap_or(stream.0 as u64));
        Ok(())
    })
}

extern "C" fn event_query(event: CuEvent) -> CuResult {
    memory_call("cuEventQuery", |state| {
        let waits = state.events.get(&event.0).ok_or(INVALID_HANDLE)?;
        check(waits.is_empty(), CuResult::NOT_READY)
    })
}

extern "C" fn event_synchronize(event: CuEvent) -> CuResult {
    memory_call("cuEventSynchronize", |state| {
        state.events.get_mut(&event.0).ok_or(INVALID_HANDLE)?.clear();
        Ok(())
    })
}

extern "C" fn event_destroy(event: CuEvent) -> CuResult {
    call("cuEventDestroy", |state| check(state.events.remove(&event.0).is_some(), INVALID_HANDLE))
}

extern "C" fn stream_wait_event(stream: CuStream, event: CuEvent, _flags: c_uint) -> CuResult {
    call("cuStreamWaitEvent", |state| {
        state.current()?;
        state.names(stream.0);
        check(!state.capturing.contains(&stream.0), INVALID)?;
        check(state.events.contains_key(&event.0), INVALID_HANDLE)
    })
}

extern "C" fn stream_synchronize(stream: CuStream) -> CuResult {
    memory_call("cuStreamSynchronize", |state| {
        state.names(stream.0);
        state.held.remove(&stream.0);
        for waits in state.events.values_mut() {
            waits.remove(&stream.0);
        }
        Ok(())
    })
}

extern "C" fn stream_is_capturing(stream: CuStream, out: *mut c_uint) -> CuResult {
    call("cuStreamIsCapturing", |state| {
        state.names(stream.0);
        let is_capturing = state.captures && !state.hides_capture;
        put(out, c_uint::from(is_capturing || state.capturing.contains(&stream.0)));
        Ok(())
    })
}

/// All of them.
pub(crate) fn table() -> Table {
    Table {
        init,
        driver_version,
        error_name,
        error_string,
        device_count,
        device_get,
        device_name,
        device_total_memory,
        device_uuid,
        device_attribute,
        device_can_access_peer: can_access_peer,
        primary_retain,
        primary_release,
        context_current,
        context_push,
        context_pop,
        context_synchronize,
        enable_peer_access,
        disable_peer_access,
        exchange_capture_mode,
        memory_info,
        alloc,
        free,
        granularity,
        address_reserve,
        address_free,
        create,
        release,
        map,
        unmap,
        set_access,
        export,
        import,
        ipc_get,
        ipc_open,
        ipc_close,
        host_register: copies::host_register,
        host_address: copies::host_address,
        host_unregister: copies::host_unregister,
        copy_out: copies::copy_out,
        copy_in: copies::copy_in,
        event_create,
        event_elapsed: copies::event_elapsed,
        event_record,
        event_query,
        event_synchronize,
        event_destroy,
        stream_create: copies::stream_create,
        stream_wait_event,
        stream_wait_value: Some(copies::stream_wait_value),
        stream_synchronize,
        stream_is_capturing,
        context_record_event: Some(context_record_event),
        stream_id: Some(stream_id),
        device_uuid_of_part: Some(device_uuid_of_part),
        capture_info: Some(graphs::capture_info),
        node_dependencies: Some(graphs::node_dependencies),
    }
}
