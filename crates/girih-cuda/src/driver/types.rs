//! The driver's types, as its functions take them.
//!
//! Handles are numbers here: they are handed to the driver and never looked into. Structs have the
//! layout of `cuda.h`; a test compares each field with a binding that is generated from it.

/// What every function of the driver returns (`CUresult`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct CuResult(pub(crate) u32);

impl CuResult {
    pub(crate) const SUCCESS: CuResult = CuResult(0);
    pub(crate) const INVALID_VALUE: CuResult = CuResult(1);
    pub(crate) const OUT_OF_MEMORY: CuResult = CuResult(2);
    pub(crate) const NOT_INITIALIZED: CuResult = CuResult(3);
    pub(crate) const STUB_LIBRARY: CuResult = CuResult(34);
    pub(crate) const NO_DEVICE: CuResult = CuResult(100);
    pub(crate) const INVALID_DEVICE: CuResult = CuResult(101);
    pub(crate) const NOT_READY: CuResult = CuResult(600);
    pub(crate) const PEER_ACCESS_ALREADY_ENABLED: CuResult = CuResult(704);
    pub(crate) const NOT_PERMITTED: CuResult = CuResult(800);
    pub(crate) const NOT_SUPPORTED: CuResult = CuResult(801);
    pub(crate) const SYSTEM_DRIVER_MISMATCH: CuResult = CuResult(803);
    pub(crate) const STREAM_CAPTURE_UNSUPPORTED: CuResult = CuResult(900);
}

/// A device (`CUdevice`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub(crate) struct CuDevice(pub(crate) i32);

/// A context (`CUcontext`). 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub(crate) struct CuContext(pub(crate) usize);

/// A stream (`CUstream`). 0 is the legacy default stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub(crate) struct CuStream(pub(crate) usize);

/// An event (`CUevent`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub(crate) struct CuEvent(pub(crate) usize);

/// A graph (`CUgraph`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub(crate) struct CuGraph(pub(crate) usize);

/// A node of a graph (`CUgraphNode`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(transparent)]
pub(crate) struct CuNode(pub(crate) usize);

/// What an edge of a graph is besides its ends (`CUgraphEdgeData`). It is never asked for.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CuEdge {
    _data: [u8; 8],
}

/// Physical memory (`CUmemGenericAllocationHandle`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(transparent)]
pub(crate) struct CuMemory(pub(crate) u64);

/// Where memory is (`CUmemLocation`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct CuLocation {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

impl CuLocation {
    /// `CU_MEM_LOCATION_TYPE_DEVICE`.
    pub(crate) const DEVICE: u32 = 1;

    pub(crate) fn device(device: CuDevice) -> CuLocation {
        CuLocation { kind: CuLocation::DEVICE, id: device.0 }
    }
}

/// What physical memory shall be (`CUmemAllocationProp`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct CuProperties {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: CuLocation,
    pub(crate) windows_metadata: usize,
    pub(crate) compression: u8,
    pub(crate) rdma_capable: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

impl CuProperties {
    /// `CU_MEM_ALLOCATION_TYPE_PINNED`: stays where it is, which is all that there is.
    pub(crate) const PINNED: u32 = 1;

    pub(crate) fn new(device: CuDevice, features: Features) -> CuProperties {
        CuProperties {
            kind: CuProperties::PINNED,
            handle_types: if features.shareable { POSIX_FILE_DESCRIPTOR } else { 0 },
            location: CuLocation::device(device),
            windows_metadata: 0,
            compression: 0,
            rdma_capable: u8::from(features.rdma),
            usage: 0,
            reserved: [0; 4],
        }
    }
}

/// What can be asked of physical memory besides its size. It is settled when memory is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Features {
    /// A file descriptor can be made of it, for other processes.
    pub(crate) shareable: bool,
    /// Network adapters can read and write it.
    pub(crate) rdma: bool,
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const POSIX_FILE_DESCRIPTOR: u32 = 1;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
pub(crate) const GRANULARITY_MINIMUM: u32 = 0;
/// `CU_STREAM_NON_BLOCKING`.
pub(crate) const STREAM_NON_BLOCKING: u32 = 1;
/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for every context.
pub(crate) const HOST_REGISTER_PORTABLE: u32 = 1;
/// `CU_STREAM_WAIT_VALUE_EQ`.
pub(crate) const WAIT_UNTIL_EQUAL: u32 = 1;
/// `CU_EVENT_DEFAULT`.
pub(crate) const EVENT_DEFAULT: u32 = 0;
/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const EVENT_DISABLE_TIMING: u32 = 2;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
pub(crate) const IPC_LAZY_PEER_ACCESS: u32 = 1;

/// Who may do what with mapped memory (`CUmemAccessDesc`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct CuAccess {
    pub(crate) location: CuLocation,
    pub(crate) flags: u32,
}

impl CuAccess {
    /// `CU_MEM_ACCESS_FLAGS_PROT_NONE`.
    pub(crate) const NONE: u32 = 0;
    /// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
    pub(crate) const READ_WRITE: u32 = 3;

    pub(crate) fn new(device: CuDevice, flags: u32) -> CuAccess {
        CuAccess { location: CuLocation::device(device), flags }
    }
}

/// What another process opens an allocation by (`CUipcMemHandle`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct CuIpcHandle {
    pub(crate) reserved: [u8; CuIpcHandle::BYTES],
}

impl CuIpcHandle {
    /// `CU_IPC_HANDLE_SIZE`.
    pub(crate) const BYTES: usize = 64;
}

/// What a thread may do while any thread captures a graph (`CUstreamCaptureMode`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct CuCaptureMode(pub(crate) u32);

impl CuCaptureMode {
    /// Calls that a capture cannot hold are an error while any thread captures. The default.
    #[cfg(test)]
    pub(crate) const GLOBAL: CuCaptureMode = CuCaptureMode(0);
    /// Such calls are made, and are no part of any capture.
    pub(crate) const RELAXED: CuCaptureMode = CuCaptureMode(2);
}

/// `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
pub(crate) const CAPTURE_ACTIVE: u32 = 1;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
pub(crate) const CAPTURE_NONE: u32 = 0;

/// A property of a device (`CUdevice_attribute`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct CuAttribute(pub(crate) u32);

impl CuAttribute {
    pub(crate) const MULTIPROCESSOR_COUNT: CuAttribute = CuAttribute(16);
    pub(crate) const PCI_BUS: CuAttribute = CuAttribute(33);
    pub(crate) const PCI_DEVICE: CuAttribute = CuAttribute(34);
    pub(crate) const PCI_DOMAIN: CuAttribute = CuAttribute(50);
    pub(crate) const COMPUTE_CAPABILITY_MAJOR: CuAttribute = CuAttribute(75);
    pub(crate) const COMPUTE_CAPABILITY_MINOR: CuAttribute = CuAttribute(76);
    pub(crate) const VIRTUAL_MEMORY: CuAttribute = CuAttribute(102);
    pub(crate) const POSIX_FILE_DESCRIPTOR: CuAttribute = CuAttribute(103);
    pub(crate) const RDMA_WITH_VIRTUAL_MEMORY: CuAttribute = CuAttribute(110);
}
