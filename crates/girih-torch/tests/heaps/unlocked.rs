//! `release_lock_on_cudamalloc`: others go on while a segment is taken from the device.
//!
//! The device is one whose allocations wait at a gate, with and without the lock of the heap.
#![expect(unsafe_code, reason = "the allocator of a pool is two functions of C")]
#![expect(clippy::disallowed_methods, reason = "one thread allocates while another waits")]

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use girih_cuda::StreamHandle;
use girih_runtime::sim::{Fault, SimDevice};
use girih_runtime::{
    Address, CapturedEnds, Device, DeviceError, GraphNode, Handle, MemoryInfo, Prices, StreamEvent,
};
use girih_torch::{BegunAlloc, Closing, Exported, Heap, HeapDevice, Outcome, Settings, Source};
use girih_trace::StreamId;

const MIB: u64 = 1 << 20;
const DEFAULT: (u64, u64) = (0, 0);
const POOL: (u64, u64) = (0, 3);
const KEY: &str = "release_lock_on_cudamalloc:True";
/// How long a call may take that nothing holds up.
const SOON: Duration = Duration::from_secs(20);

/// Where allocations wait while it is shut.
#[derive(Default)]
struct Gate {
    is_shut: Mutex<bool>,
    change: Condvar,
    /// Allocations that have come to it.
    come: AtomicU32,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        *self.is_shut.lock().unwrap() = is_shut;
        self.change.notify_all();
    }

    fn pass(&self) {
        self.come.fetch_add(1, Ordering::SeqCst);
        let shut = self.is_shut.lock().unwrap();
        drop(self.change.wait_while(shut, |is_shut| *is_shut).unwrap());
    }

    fn wait_for_another(&self, before: u32) {
        let begun = Instant::now();
        while self.come.load(Ordering::SeqCst) == before {
            assert!(begun.elapsed() < SOON, "no allocation has come");
            thread::yield_now();
        }
    }
}

#[derive(Clone)]
struct Gated {
    device: Arc<Mutex<SimDevice>>,
    gate: Arc<Gate>,
}

impl Gated {
    fn with_heap(mode: &str, conf: &str, bytes: u64) -> (Gated, Heap) {
        let device = Arc::new(Mutex::new(SimDevice::new(bytes)));
        let gated = Gated { device, gate: Arc::default() };
        let settings = format!(r#"{{"mode": "{mode}", "conf": "{conf}"}}"#);
        let settings = Settings::parse(&settings).expect("right settings");
        let heap = Heap::over(Box::new(gated.clone()), 0, &settings);
        (gated, heap)
    }

    /// Allocations that were not given back.
    fn allocations(&self) -> usize {
        self.device.lock().unwrap().live().allocations
    }
}

/// Calls that go straight to the device.
macro_rules! pass_on {
    ($($name:ident($($argument:ident: $type:ty),*) -> $value:ty;)*) => {
        $(fn $name(&mut self, $($argument: $type),*) -> Result<$value, DeviceError> {
            Device::$name(&mut *self.device.lock().unwrap(), $($argument),*)
        })*
    };
}

impl Device for Gated {
    fn memory_info(&mut self) -> MemoryInfo {
        self.device.lock().unwrap().memory_info()
    }

    fn granularity(&self) -> u64 {
        self.device.lock().unwrap().granularity()
    }

    fn maps_twice(&self) -> bool {
        self.device.lock().unwrap().maps_twice()
    }

    fn prices(&self) -> Prices {
        self.device.lock().unwrap().prices()
    }

    fn alloc(&mut self, size: u64) -> Result<Address, DeviceError> {
        self.gate.pass();
        self.device.lock().unwrap().alloc(size)
    }

    pass_on! {
        free(address: Address) -> ();
        reserve(size: u64) -> Address;
        unreserve(address: Address, size: u64) -> ();
        create(size: u64) -> Handle;
        release(handle: Handle) -> ();
        map(address: Address, handle: Handle) -> ();
        set_access(address: Address, size: u64) -> ();
        unmap(address: Address, size: u64) -> ();
        record_event(stream: StreamId) -> StreamEvent;
        record_fence(users: &[StreamId]) -> StreamEvent;
        is_capturing(stream: StreamId) -> bool;
        captured_ends(stream: StreamId) -> Option<CapturedEnds>;
        graph_dependencies(node: GraphNode) -> Vec<GraphNode>;
        query_event(event: StreamEvent) -> bool;
        wait_event(stream: StreamId, event: StreamEvent) -> ();
        synchronize_event(event: StreamEvent) -> ();
        destroy_event(event: StreamEvent) -> ();
        synchronize_stream(stream: StreamId) -> ();
    }
}

impl HeapDevice for Gated {
    fn set_stream(&mut self, _id: StreamId, _stream: StreamHandle) {}

    fn begin_alloc(&mut self, size: u64) -> Option<BegunAlloc> {
        let mut own = self.clone();
        Some(Box::new(move || own.alloc(size)))
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

/// What another thread can do with what is cached while one waits in the device: allocate, record a use
/// and free. True if it was done before the device answered.
fn others_go_on(mode: &str, conf: &str, pool: (u64, u64)) -> bool {
    let (device, heap) = Gated::with_heap(mode, conf, 1 << 30);
    if pool != DEFAULT {
        heap.create_pool(pool).unwrap();
        heap.keep_in_one_handle(pool).unwrap();
    }
    let cached = heap.allocate(4 * MIB, 0, DEFAULT).unwrap();
    assert!(heap.free(cached).unwrap());
    let before = device.gate.come.load(Ordering::SeqCst);
    device.gate.set(true);
    let (done, is_done) = mpsc::channel();
    let went_on = thread::scope(|scope| {
        let heap = &heap;
        let waiting = scope.spawn(move || heap.allocate(100 * MIB, 0, pool).unwrap());
        device.gate.wait_for_another(before);
        let other = scope.spawn(move || {
            let address = heap.allocate(4 * MIB, 0, DEFAULT).unwrap();
            assert!(heap.free(address).unwrap());
            done.send(()).unwrap();
        });
        let limit = if conf == KEY && mode != "stitch" { SOON } else { Duration::from_millis(200) };
        let went_on = is_done.recv_timeout(limit).is_ok();
        device.gate.set(false);
        other.join().unwrap();
        assert!(heap.free(waiting.join().unwrap()).unwrap());
        went_on
    });
    heap.check().unwrap();
    went_on
}

#[test]
fn a_thread_goes_on_with_what_is_cached_while_another_waits_for_a_segment() {
    assert!(others_go_on("native", KEY, DEFAULT));
    assert!(others_go_on("native", KEY, POOL));
    assert!(others_go_on("expandable", KEY, POOL), "its memory is in one handle, not in pages");
}

#[test]
fn without_the_setting_and_in_other_modes_it_waits_for_the_lock() {
    for (mode, conf) in [("native", ""), ("stitch", KEY)] {
        assert!(!others_go_on(mode, conf, POOL), "{mode}, {conf}");
    }
}

/// A program of one thread: what it is given, in order, with refusals.
fn program(heap: &Heap) -> Vec<Result<Address, String>> {
    let (mut answers, mut live, mut state) = (Vec::new(), Vec::new(), 3_u64);
    let mut random = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..300 {
        let size = 1 << (10 + random(16));
        let answer =
            heap.allocate(size + random(size), round % 2, [DEFAULT, POOL][random(2) as usize]);
        live.extend(answer.as_ref().ok());
        answers.push(answer.map_err(|error| error.to_string()));
        while live.len() > 6 {
            let address = live.swap_remove(random(live.len() as u64) as usize);
            assert!(heap.free(address).unwrap());
        }
    }
    for address in live {
        assert!(heap.free(address).unwrap());
    }
    answers
}

#[test]
fn one_thread_is_given_the_same_and_counts_the_same_with_and_without_it() {
    let run = |conf: &str| {
        let (device, heap) = Gated::with_heap("native", conf, 256 * MIB);
        let answers = program(&heap);
        (answers, heap.stats().unwrap(), device.allocations())
    };
    let plain = run("");
    assert!(plain.0.iter().any(Result::is_err) && plain.0.iter().any(Result::is_ok));
    assert_eq!(run(KEY), plain);
}

#[test]
fn whichever_call_fails_nothing_is_lost_and_the_next_request_is_served() {
    for call in 1.. {
        let (device, heap) = Gated::with_heap("native", KEY, 256 * MIB);
        device.device.lock().unwrap().inject(Fault::nth(call));
        program(&heap);
        heap.check().unwrap();
        let came = device.device.lock().unwrap().calls() >= call;
        heap.release_pool(POOL).unwrap();
        let address = heap.allocate(100 * MIB, 0, DEFAULT).unwrap();
        assert!(heap.free(address).unwrap());
        heap.empty_cache(DEFAULT).or_else(|_| heap.empty_cache(DEFAULT)).unwrap();
        assert_eq!(device.allocations(), 0, "call {call}");
        assert_eq!(heap.stats().unwrap().reserved_bytes[0].current, 0, "call {call}");
        if !came {
            assert!(call > 20, "the program makes calls");
            return;
        }
    }
}

#[test]
fn many_threads_take_segments_at_once_and_give_all_of_them_back() {
    let (device, heap) = Gated::with_heap("native", KEY, 4 << 30);
    let shared = Mutex::new(std::collections::BTreeMap::new());
    thread::scope(|scope| {
        for thread in 0..6_u64 {
            let (heap, shared) = (&heap, &shared);
            scope.spawn(move || {
                for round in 0..200 {
                    let size = (1 + (thread * 7 + round * 13) % 40) * MIB;
                    let address = heap
                        .allocate(size, thread % 3, [DEFAULT, POOL][thread as usize % 2])
                        .unwrap();
                    let mut live = shared.lock().unwrap();
                    let before = live.range(..address + size).next_back();
                    assert!(before.is_none_or(|(start, bytes)| start + bytes <= address));
                    live.insert(address, size);
                    drop(live);
                    if round % 8 == 7 {
                        heap.empty_cache(DEFAULT).unwrap();
                    }
                    shared.lock().unwrap().remove(&address);
                    assert!(heap.free(address).unwrap());
                }
            });
        }
    });
    heap.check().unwrap();
    heap.release_pool(POOL).unwrap();
    heap.empty_cache(DEFAULT).unwrap();
    assert_eq!(device.allocations(), 0);
}

#[test]
fn the_allocator_of_a_pool_gives_its_segments_and_takes_them_back() {
    /// Segments that were given and not taken back.
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn give(user: *mut c_void, size: u64) -> *mut c_void {
        if size > 100 * MIB {
            return std::ptr::null_mut();
        }
        GIVEN.fetch_add(1, Ordering::SeqCst);
        user
    }
    unsafe extern "C" fn take(user: *mut c_void, address: *mut c_void) {
        assert_eq!(user, address);
        GIVEN.fetch_sub(1, Ordering::SeqCst);
    }
    let (device, heap) = Gated::with_heap("native", KEY, 1 << 30);
    heap.create_pool(POOL).unwrap();
    let place = std::ptr::without_provenance_mut(0x7000_0000_0000);
    // SAFETY: both functions can be called with any number, on any thread.
    heap.set_pool_source(POOL, unsafe { Source::new(give, take, place) }).unwrap();
    let address = heap.allocate(30 * MIB, 0, POOL).unwrap();
    assert_eq!((address, GIVEN.load(Ordering::SeqCst)), (place as u64, 1));
    assert!(heap.allocate(200 * MIB, 0, POOL).is_err(), "its allocator has no more");
    assert!(heap.free(address).unwrap());
    heap.release_pool(POOL).unwrap();
    heap.empty_cache(DEFAULT).unwrap();
    assert_eq!((device.allocations(), GIVEN.load(Ordering::SeqCst)), (0, 0));
}
