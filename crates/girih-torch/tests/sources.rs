//! Pools with an allocator of their own, in every mode and through the C interface.

#![expect(unsafe_code, reason = "it calls a C interface, and is called by it")]

mod common;

use std::ffi::c_void;
use std::sync::Mutex;

use common::*;
use girih_torch::abi::{Pool, Status, memory, pools};
use girih_torch::{Heap, Settings, Source};

const OWN: (u64, u64) = (0, 7);
const OUTSIDE: (u64, u64) = (0, 0);
const MODES: [&str; 8] =
    ["native", "expandable", "stitch", "gmlake", "profile", "phantom", "plan", "auto"];

/// An allocator that gives addresses one after another, as much as it has.
struct Shelf(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    room: u64,
    /// What was given and not taken back.
    out: Vec<(u64, u64)>,
}

impl Shelf {
    /// Kept to the end of the process, as a source must be. The addresses begin at `next`.
    fn new(next: u64, room: u64) -> &'static Shelf {
        Box::leak(Box::new(Shelf(Mutex::new(State { next, room, out: Vec::new() }))))
    }

    fn user(&'static self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    fn source(&'static self) -> Source {
        // SAFETY: both functions can be called with the shelf, which is never dropped.
        unsafe { Source::new(give, take, self.user()) }
    }

    fn sizes(&self) -> Vec<u64> {
        self.0.lock().unwrap().out.iter().map(|&(_, size)| size).collect()
    }
}

unsafe extern "C" fn give(user: *mut c_void, size: u64) -> *mut c_void {
    // SAFETY: it is a shelf that is never dropped.
    let mut shelf = unsafe { &*user.cast::<Shelf>() }.0.lock().unwrap();
    if size > shelf.room {
        return std::ptr::null_mut();
    }
    let address = shelf.next;
    shelf.next += size;
    shelf.room -= size;
    shelf.out.push((address, size));
    address as *mut c_void
}

unsafe extern "C" fn take(user: *mut c_void, address: *mut c_void) {
    // SAFETY: as above.
    let mut shelf = unsafe { &*user.cast::<Shelf>() }.0.lock().unwrap();
    let place = shelf.out.iter().position(|&(given, _)| given == address as u64);
    let (_, size) = shelf.out.swap_remove(place.expect("it was given and not taken back"));
    shelf.room += size;
}

fn heap(mode: &str) -> Heap {
    let json = format!(
        r#"{{"mode": "{mode}", "torch": "2.11.0", "plan": "/nowhere/at.all",
             "sim": {{"capacity": {}}}}}"#,
        1000 * MIB
    );
    Heap::new(0, &Settings::parse(&json).unwrap()).unwrap()
}

#[test]
fn in_every_mode_the_pools_segments_come_from_its_allocator_and_go_back_to_it() {
    for mode in MODES {
        let (heap, shelf) = (heap(mode), Shelf::new(1 << 45, 1 << 40));
        heap.create_pool(OWN).unwrap();
        heap.set_pool_source(OWN, shelf.source()).unwrap();
        let outside = heap.allocate(40 * MIB, 7, OUTSIDE).unwrap();
        heap.begin_pool(OWN, false).unwrap();
        let large = heap.allocate(3 * MIB, 7, OWN).unwrap();
        let small = heap.allocate(1000, 7, OWN).unwrap();
        // More than the device has: the allocator may have it.
        let huge = heap.allocate(2000 * MIB, 7, OWN).unwrap();
        heap.end_pool(OWN, false).unwrap();
        assert_eq!(shelf.sizes(), [20 * MIB, 2 * MIB, 2000 * MIB], "{mode}");
        let mut shown = Vec::new();
        heap.visit(&mut |segment, _| {
            if (segment.pool.first, segment.pool.second) == OWN {
                shown.push((segment.address, segment.size, segment.is_expandable));
            }
        })
        .unwrap();
        let first = 1 << 45;
        let expected = [(first, 20 * MIB), (first + 20 * MIB, 2 * MIB), (huge, 2000 * MIB)];
        assert_eq!(shown, expected.map(|(address, size)| (address, size, false)), "{mode}");
        assert!(heap.stats().unwrap().reserved_bytes[0].current as u64 >= 2062 * MIB, "{mode}");
        assert!(heap.export(large).unwrap_err().to_string().contains("MemPool"), "{mode}");
        for address in [large, small, huge, outside] {
            assert!(heap.free(address).unwrap());
        }
        heap.check().unwrap();
        heap.release_pool(OWN).unwrap();
        heap.release_pool(OWN).unwrap();
        heap.empty_cache(OWN).unwrap();
        assert_eq!(shelf.sizes().len(), 0, "{mode}");
        heap.empty_cache(OUTSIDE).unwrap();
        assert_eq!(heap.stats().unwrap().reserved_bytes[0].current, 0, "{mode}");
    }
}

#[test]
fn an_allocator_that_has_no_more_is_out_of_memory_for_its_pool_alone() {
    for mode in MODES {
        let (heap, shelf) = (heap(mode), Shelf::new(1 << 45, 30 * MIB));
        heap.create_pool(OWN).unwrap();
        heap.set_pool_source(OWN, shelf.source()).unwrap();
        let held = heap.allocate(20 * MIB, 0, OWN).unwrap();
        let error = heap.allocate(20 * MIB, 0, OWN).unwrap_err().to_string();
        assert!(error.contains("out of memory"), "{mode}: {error}");
        assert!(heap.allocate(20 * MIB, 0, OUTSIDE).is_ok(), "{mode}");
        assert!(heap.free(held).unwrap());
        assert_eq!(heap.allocate(20 * MIB, 0, OWN).unwrap(), held, "{mode}: from the cache");
        heap.check().unwrap();
    }
}

#[test]
fn the_allocator_of_a_pool_is_chosen_before_it_has_memory() {
    let (heap, shelf) = (heap("native"), Shelf::new(1 << 45, 1 << 40));
    heap.create_pool(OWN).unwrap();
    heap.allocate(MIB, 0, OWN).unwrap();
    let error = heap.set_pool_source(OWN, shelf.source()).unwrap_err().to_string();
    assert!(error.contains("before its first request"), "{error}");
}

#[test]
fn the_c_interface_takes_two_functions_and_the_same_ones_again() {
    set_up("expandable", 1 << 30, "");
    let shelf = Shelf::new(1 << 45, 1 << 40);
    let pool = Pool { first: 0, second: 3 };
    let source = |user| {
        // SAFETY: both functions can be called with a shelf, which is never dropped.
        unsafe { pools::girih_pool_source(0, pool, Some(give), Some(take), user) }
    };
    assert_eq!(pools::girih_pool_create(0, pool), Status::Ok);
    assert_eq!(source(shelf.user()), Status::Ok);
    let address = try_alloc(0, 50 * MIB, 0, pool).unwrap();
    assert_eq!(address, 1 << 45);
    assert_eq!(source(shelf.user()), Status::Ok);
    assert_eq!(source(Shelf::new(1 << 46, 1).user()), Status::Unsupported);
    assert_eq!(free(address), Status::Ok);
    assert_eq!(pools::girih_pool_release(0, pool), Status::Ok);
    assert_eq!(memory::girih_empty_cache(pool), Status::Ok);
    assert_eq!(shelf.sizes().len(), 0);
}
