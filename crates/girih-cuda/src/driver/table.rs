//! The functions of the driver, as pointers.
//!
//! The driver keeps old versions of a function under its plain name and gives newer ones a suffix;
//! each entry names the version whose signature is written here. The table is filled from a shared
//! library, or, in tests, from functions that play the driver.
#![expect(unsafe_code, reason = "a symbol of a library is given the type that cuda.h says it has")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

use super::types::{
    CuAccess, CuAttribute, CuCaptureMode, CuContext, CuDevice, CuEdge, CuEvent, CuGraph,
    CuIpcHandle, CuMemory, CuNode, CuProperties, CuResult, CuStream,
};

macro_rules! table {
    (
        all { $($field:ident = $symbol:literal ($($argument:ty),*);)* }
        newer { $($newer:ident = $newer_symbol:literal ($($newer_argument:ty),*);)* }
    ) => {
        /// Every function of the driver that is called.
        pub(crate) struct Table {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> CuResult,)*
            $(pub(crate) $newer: Option<unsafe extern "C" fn($($newer_argument),*) -> CuResult>,)*
        }

        impl Table {
            /// The names under which they are looked up.
            #[cfg(test)]
            pub(crate) const SYMBOLS: &[&str] = &[$($symbol,)* $($newer_symbol),*];

            /// Looks all of them up. Those that only newer drivers have may be missing.
            ///
            /// # Errors
            /// The name of the first of the others that is missing.
            ///
            /// # Safety
            /// `library` is the CUDA driver, and stays loaded for as long as the table is used.
            pub(crate) unsafe fn from_library(library: &Library) -> Result<Table, &'static str> {
                Ok(Table {
                    $($field: {
                        // SAFETY: the caller says that this is the driver; the signature is that
                        // of its documentation.
                        let found = unsafe { library.get($symbol) };
                        *found.map_err(|_| $symbol)?
                    },)*
                    $($newer: {
                        // SAFETY: as above.
                        unsafe { library.get($newer_symbol) }.ok().map(|found| *found)
                    },)*
                })
            }
        }
    };
}

table! {
    all {
        init = "cuInit" (c_uint);
        driver_version = "cuDriverGetVersion" (*mut c_int);
        error_name = "cuGetErrorName" (CuResult, *mut *const c_char);
        error_string = "cuGetErrorString" (CuResult, *mut *const c_char);

        device_count = "cuDeviceGetCount" (*mut c_int);
        device_get = "cuDeviceGet" (*mut CuDevice, c_int);
        device_name = "cuDeviceGetName" (*mut c_char, c_int, CuDevice);
        device_total_memory = "cuDeviceTotalMem_v2" (*mut usize, CuDevice);
        device_uuid = "cuDeviceGetUuid" (*mut [u8; 16], CuDevice);
        device_attribute = "cuDeviceGetAttribute" (*mut c_int, CuAttribute, CuDevice);
        device_can_access_peer = "cuDeviceCanAccessPeer" (*mut c_int, CuDevice, CuDevice);

        primary_retain = "cuDevicePrimaryCtxRetain" (*mut CuContext, CuDevice);
        primary_release = "cuDevicePrimaryCtxRelease_v2" (CuDevice);
        context_current = "cuCtxGetCurrent" (*mut CuContext);
        context_push = "cuCtxPushCurrent_v2" (CuContext);
        context_pop = "cuCtxPopCurrent_v2" (*mut CuContext);
        context_synchronize = "cuCtxSynchronize" ();
        enable_peer_access = "cuCtxEnablePeerAccess" (CuContext, c_uint);
        disable_peer_access = "cuCtxDisablePeerAccess" (CuContext);
        exchange_capture_mode = "cuThreadExchangeStreamCaptureMode" (*mut CuCaptureMode);

        memory_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
        alloc = "cuMemAlloc_v2" (*mut u64, usize);
        free = "cuMemFree_v2" (u64);

        granularity = "cuMemGetAllocationGranularity" (*mut usize, *const CuProperties, c_uint);
        address_reserve = "cuMemAddressReserve" (*mut u64, usize, usize, u64, u64);
        address_free = "cuMemAddressFree" (u64, usize);
        create = "cuMemCreate" (*mut CuMemory, usize, *const CuProperties, u64);
        release = "cuMemRelease" (CuMemory);
        map = "cuMemMap" (u64, usize, usize, CuMemory, u64);
        unmap = "cuMemUnmap" (u64, usize);
        set_access = "cuMemSetAccess" (u64, usize, *const CuAccess, usize);
        export = "cuMemExportToShareableHandle" (*mut c_void, CuMemory, c_uint, u64);
        import = "cuMemImportFromShareableHandle" (*mut CuMemory, *mut c_void, c_uint);

        ipc_get = "cuIpcGetMemHandle" (*mut CuIpcHandle, u64);
        ipc_open = "cuIpcOpenMemHandle_v2" (*mut u64, CuIpcHandle, c_uint);
        ipc_close = "cuIpcCloseMemHandle" (u64);

        host_register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
        host_address = "cuMemHostGetDevicePointer_v2" (*mut u64, *mut c_void, c_uint);
        host_unregister = "cuMemHostUnregister" (*mut c_void);
        copy_out = "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, CuStream);
        copy_in = "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, CuStream);

        event_create = "cuEventCreate" (*mut CuEvent, c_uint);
        event_elapsed = "cuEventElapsedTime" (*mut f32, CuEvent, CuEvent);
        event_record = "cuEventRecord" (CuEvent, CuStream);
        event_query = "cuEventQuery" (CuEvent);
        event_synchronize = "cuEventSynchronize" (CuEvent);
        event_destroy = "cuEventDestroy_v2" (CuEvent);
        stream_create = "cuStreamCreate" (*mut CuStream, c_uint);
        stream_wait_event = "cuStreamWaitEvent" (CuStream, CuEvent, c_uint);
        stream_synchronize = "cuStreamSynchronize" (CuStream);
        stream_is_capturing = "cuStreamIsCapturing" (CuStream, *mut c_uint);
    }
    newer {
        // Since CUDA 12.5.
        context_record_event = "cuCtxRecordEvent" (CuContext, CuEvent);
        // Since CUDA 11.7.
        stream_wait_value = "cuStreamWaitValue32_v2" (CuStream, u64, u32, c_uint);
        // Since CUDA 12.0.
        stream_id = "cuStreamGetId" (CuStream, *mut u64);
        // Since CUDA 11.4. The plain one has the parts of a partitioned GPU share a UUID.
        device_uuid_of_part = "cuDeviceGetUuid_v2" (*mut [u8; 16], CuDevice);
        // Since CUDA 12.3. The edges, if they are not asked for, must have no data.
        capture_info = "cuStreamGetCaptureInfo_v3" (
            CuStream, *mut c_uint, *mut u64, *mut CuGraph, *mut *const CuNode, *mut *const CuEdge,
            *mut usize
        );
        node_dependencies = "cuGraphNodeGetDependencies_v2" (
            CuNode, *mut CuNode, *mut CuEdge, *mut usize
        );
    }
}
