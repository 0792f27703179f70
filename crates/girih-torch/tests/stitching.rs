//! Two threads under the mode `stitch`: no byte is used by two blocks, or too early, though it has
//! several addresses.

use std::sync::{Arc, Mutex};
use std::thread;

use girih_runtime::sim::{Call, LiveObjects, SimDevice};
use girih_runtime::{Address, Device, DeviceError, Handle, MemoryInfo, StreamEvent};
use girih_torch::{Closing, Exported, Heap, HeapDevice, Outcome, Settings};
use girih_trace::StreamId;

const MIB: u64 = 1 << 20;
const ROUNDS: u64 = 1500;

/// A simulated device that a test sees too.
#[derive(Clone)]
struct Seen(Arc<Mutex<SimDevice>>);

/// The calls of a device, each of which must keep its rules.
macro_rules! lawful {
    ($($name:ident($($argument:ident: $type:ty),*) -> $value:ty;)*) => {
        $(fn $name(&mut self, $($argument: $type),*) -> Result<$value, DeviceError> {
            let result = Device::$name(&mut *self.0.lock().unwrap(), $($argument),*);
            assert!(!matches!(result, Err(DeviceError::Misuse { .. })), "{result:?}");
            result
        })*
    };
}

impl Device for Seen {
    lawful! {
        alloc(size: u64) -> Address;
        free(address: Address) -> ();
        reserve(size: u64) -> Address;
        unreserve(address: Address, size: u64) -> ();
        create(size: u64) -> Handle;
        release(handle: Handle) -> ();
        map(address: Address, handle: Handle) -> ();
        set_access(address: Address, size: u64) -> ();
        unmap(address: Address, size: u64) -> ();
        record_event(stream: StreamId) -> StreamEvent;
        query_event(event: StreamEvent) -> bool;
        wait_event(stream: StreamId, event: StreamEvent) -> ();
        synchronize_event(event: StreamEvent) -> ();
        destroy_event(event: StreamEvent) -> ();
        synchronize_stream(stream: StreamId) -> ();
    }

    fn memory_info(&mut self) -> MemoryInfo {
        self.0.lock().unwrap().memory_info()
    }

    fn granularity(&self) -> u64 {
        self.0.lock().unwrap().granularity()
    }
}

impl HeapDevice for Seen {
    fn add_stream(&mut self, _handle: u64) -> Outcome<()> {
        Ok(())
    }

    fn enable_peer(&mut self, _peer: i32) -> Outcome<()> {
        Ok(())
    }

    fn export(&mut self, _address: Address, _size: u64) -> Outcome<Exported> {
        unreachable!("nothing is exported")
    }

    fn import(&mut self, _description: &[u8]) -> Outcome<Address> {
        unreachable!("nothing is imported")
    }

    fn begin_close(&mut self, _address: Address) -> Outcome<Closing> {
        Ok(Closing::Unknown)
    }

    fn finish_close(&mut self, _address: Address, _closing: u64) -> Outcome<()> {
        Ok(())
    }

    fn calls(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Random numbers below a bound, from a seed.
fn below(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % bound
}

/// One thread: allocates and frees on a stream of its own. What it gets is used at once.
fn run(thread: u16, heap: &Heap, device: &Seen) {
    let stream = StreamId(thread);
    let mut state = u64::from(thread) + 1;
    let mut held: Vec<(Address, u64)> = Vec::new();
    let free = |(address, size): (Address, u64)| {
        device.0.lock().unwrap().release(address, size, &[stream]).unwrap();
        assert!(heap.free(address).unwrap());
    };
    for _ in 0..ROUNDS {
        if held.len() > 20 || (below(&mut state, 20) < 9 && !held.is_empty()) {
            free(held.swap_remove(below(&mut state, held.len() as u64) as usize));
            continue;
        }
        let size = (1 + below(&mut state, 60 * MIB)).next_multiple_of(512);
        let address = heap.allocate(size, u64::from(thread), (0, 0)).unwrap();
        device.0.lock().unwrap().acquire(address, size, stream).unwrap();
        held.push((address, size));
    }
    held.into_iter().for_each(free);
}

#[test]
fn two_threads_share_no_byte_though_bytes_have_several_addresses() {
    let mut sim = SimDevice::new(64 << 30);
    sim.check_order();
    let device = Seen(Arc::new(Mutex::new(sim)));
    let settings = Settings::parse(r#"{"mode": "stitch", "sim": {"capacity": 1}}"#).unwrap();
    let heap = Heap::over(Box::new(device.clone()), 0, &settings);
    // The streams are known in their order.
    for stream in 0..2 {
        let address = heap.allocate(512, stream, (0, 0)).unwrap();
        assert!(heap.free(address).unwrap());
    }
    thread::scope(|scope| {
        for thread in 0..2 {
            let (heap, device) = (&heap, &device);
            scope.spawn(move || run(thread, heap, device));
        }
    });
    heap.check().unwrap();
    let calls = |call| device.0.lock().unwrap().totals().of(call).calls;
    assert!(calls(Call::Map) > calls(Call::Create) + 1000, "nothing was stitched");
    assert!(calls(Call::WaitEvent) > 0);
    heap.empty_cache((0, 0)).unwrap();
    assert_eq!(device.0.lock().unwrap().live(), LiveObjects::default());
}
