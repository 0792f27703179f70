//! Our structs and numbers against a binding that is generated from `cuda.h`.

use std::mem::{align_of, offset_of, size_of};

use cudarc::driver::sys;

use super::types::*;

/// Same size, same alignment.
macro_rules! same_shape {
    ($($ours:ty => $theirs:ty),* $(,)?) => {$(
        assert_eq!(size_of::<$ours>(), size_of::<$theirs>(), stringify!($theirs));
        assert_eq!(align_of::<$ours>(), align_of::<$theirs>(), stringify!($theirs));
    )*};
}

/// Same place in the struct.
macro_rules! same_place {
    ($ours:ty => $theirs:ty: $($our_field:ident => $their_field:ident),* $(,)?) => {$(
        let place = offset_of!($theirs, $their_field);
        assert_eq!(offset_of!($ours, $our_field), place, stringify!($their_field));
    )*};
}

#[test]
fn every_type_has_the_size_and_alignment_that_cuda_h_gives_it() {
    same_shape! {
        CuResult => sys::CUresult,
        CuDevice => sys::CUdevice,
        CuContext => sys::CUcontext,
        CuStream => sys::CUstream,
        CuEvent => sys::CUevent,
        CuMemory => sys::CUmemGenericAllocationHandle,
        CuLocation => sys::CUmemLocation,
        CuProperties => sys::CUmemAllocationProp,
        CuAccess => sys::CUmemAccessDesc,
        CuIpcHandle => sys::CUipcMemHandle,
        CuCaptureMode => sys::CUstreamCaptureMode,
        CuAttribute => sys::CUdevice_attribute,
        u64 => sys::CUdeviceptr,
    }
}

#[test]
fn every_field_is_where_cuda_h_puts_it() {
    same_place! { CuLocation => sys::CUmemLocation: kind => type_, id => id }
    same_place! { CuProperties => sys::CUmemAllocationProp:
        kind => type_,
        handle_types => requestedHandleTypes,
        location => location,
        windows_metadata => win32HandleMetaData,
        compression => allocFlags,
    }
    type TheirFlags = sys::CUmemAllocationProp_st__bindgen_ty_1;
    let flags = offset_of!(CuProperties, compression);
    for (ours, theirs) in [
        (offset_of!(CuProperties, rdma_capable), offset_of!(TheirFlags, gpuDirectRDMACapable)),
        (offset_of!(CuProperties, usage), offset_of!(TheirFlags, usage)),
        (offset_of!(CuProperties, reserved), offset_of!(TheirFlags, reserved)),
    ] {
        assert_eq!(ours - flags, theirs);
    }
    same_place! { CuAccess => sys::CUmemAccessDesc: location => location, flags => flags }
    same_place! { CuIpcHandle => sys::CUipcMemHandle: reserved => reserved }
}

#[test]
fn every_number_is_the_one_that_cuda_h_names() {
    use sys::CUdevice_attribute_enum as Attribute;
    use sys::cudaError_enum as Error;
    for (ours, theirs) in [
        (CuResult::SUCCESS, Error::CUDA_SUCCESS),
        (CuResult::INVALID_VALUE, Error::CUDA_ERROR_INVALID_VALUE),
        (CuResult::OUT_OF_MEMORY, Error::CUDA_ERROR_OUT_OF_MEMORY),
        (CuResult::NOT_INITIALIZED, Error::CUDA_ERROR_NOT_INITIALIZED),
        (CuResult::STUB_LIBRARY, Error::CUDA_ERROR_STUB_LIBRARY),
        (CuResult::NO_DEVICE, Error::CUDA_ERROR_NO_DEVICE),
        (CuResult::INVALID_DEVICE, Error::CUDA_ERROR_INVALID_DEVICE),
        (CuResult::NOT_READY, Error::CUDA_ERROR_NOT_READY),
        (CuResult::PEER_ACCESS_ALREADY_ENABLED, Error::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
        (CuResult::NOT_PERMITTED, Error::CUDA_ERROR_NOT_PERMITTED),
        (CuResult::NOT_SUPPORTED, Error::CUDA_ERROR_NOT_SUPPORTED),
        (CuResult::SYSTEM_DRIVER_MISMATCH, Error::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH),
    ] {
        assert_eq!(ours.0, theirs as u32, "{theirs:?}");
    }
    for (ours, theirs) in [
        (CuAttribute::MULTIPROCESSOR_COUNT, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        (CuAttribute::PCI_BUS, Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
        (CuAttribute::PCI_DEVICE, Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID),
        (CuAttribute::PCI_DOMAIN, Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
        (
            CuAttribute::COMPUTE_CAPABILITY_MAJOR,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        ),
        (
            CuAttribute::COMPUTE_CAPABILITY_MINOR,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        ),
        (
            CuAttribute::VIRTUAL_MEMORY,
            Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        ),
        (
            CuAttribute::POSIX_FILE_DESCRIPTOR,
            Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        ),
        (
            CuAttribute::RDMA_WITH_VIRTUAL_MEMORY,
            Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
        ),
    ] {
        assert_eq!(ours.0, theirs as u32, "{theirs:?}");
    }
    for (ours, theirs) in [
        (CuLocation::DEVICE, sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32),
        (CuProperties::PINNED, sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as u32),
        (
            POSIX_FILE_DESCRIPTOR,
            sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0,
        ),
        (
            GRANULARITY_MINIMUM,
            sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM as u32,
        ),
        (EVENT_DISABLE_TIMING, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32),
        (IPC_LAZY_PEER_ACCESS, sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32),
        (CuAccess::NONE, sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE as u32),
        (CuAccess::READ_WRITE, sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u32),
        (CuCaptureMode::GLOBAL.0, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL as u32),
        (CuCaptureMode::RELAXED.0, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32),
        (CAPTURE_NONE, sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as u32),
    ] {
        assert_eq!(ours, theirs);
    }
}
