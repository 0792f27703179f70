//! The device on a real GPU. Without a driver each test skips and says so on standard error.
//!
//! Memory is written and read through a binding of the driver that shares nothing with this crate.
#![expect(
    unsafe_code,
    reason = "the tests call the driver themselves, to use what they were given"
)]
#![expect(clippy::print_stdout, reason = "a child process talks to its parent")]

use std::ffi::c_void;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use girih_cuda::ipc::IpcError;
use girih_cuda::{CudaDevice, Driver, Phantom};
use girih_runtime::caching::{Caching, Config};
use girih_runtime::{Address, Copies, Device, DeviceError, Env, HostBacking, Policy, Request};
use girih_trace::PoolId;

const MIB: u64 = 1 << 20;

/// Says something past the test harness, which shows only what failing tests print.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// One test at a time: while one captures a graph, none may make calls of its own.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device of a number with its context current; nothing, and a word about it, if there is none.
fn device(ordinal: u32) -> Option<CudaDevice> {
    match CudaDevice::new(ordinal) {
        Ok(device) => {
            make_current(ordinal as i32);
            Some(device)
        }
        Err(error) => {
            say(&format!("SKIPPED: {error}"));
            None
        }
    }
}

#[track_caller]
fn ok(result: sys::CUresult) {
    assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
}

/// Makes the primary context of a device current on this thread.
fn make_current(ordinal: i32) {
    let mut context = ptr::null_mut();
    // SAFETY: the pointer is to a local of the right type.
    ok(unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut context, ordinal) });
    // SAFETY: the context was just retained, and is not released.
    ok(unsafe { sys::cuCtxSetCurrent(context) });
}

/// Fills memory with a byte. The driver refuses if it is not accessible.
#[track_caller]
fn fill(address: Address, size: u64, byte: u8) {
    // SAFETY: the driver checks the range.
    ok(unsafe { sys::cuMemsetD8_v2(address, byte, size as usize) });
    // SAFETY: no arguments.
    ok(unsafe { sys::cuCtxSynchronize() });
}

/// The bytes at the beginning and at the end of a range.
#[track_caller]
fn ends(address: Address, size: u64) -> [u8; 2] {
    [address, address + size - 1].map(|at| {
        let mut byte = 0_u8;
        // SAFETY: one byte is written to a local; the driver checks the source.
        ok(unsafe { sys::cuMemcpyDtoH_v2((&raw mut byte).cast(), at, 1) });
        byte
    })
}

/// A stream that waits for no other.
fn stream() -> sys::CUstream {
    let mut stream = ptr::null_mut();
    // SAFETY: the pointer is to a local; 1 is CU_STREAM_NON_BLOCKING.
    ok(unsafe { sys::cuStreamCreate(&raw mut stream, 1) });
    stream
}

/// Reserves, creates, maps and opens handles of `sizes`, side by side.
fn map(device: &mut CudaDevice, sizes: &[u64]) -> (Address, u64, Vec<girih_runtime::Handle>) {
    let total = sizes.iter().sum();
    let base = device.reserve(total).expect("there are addresses");
    let (mut at, mut handles) = (base, Vec::new());
    for &size in sizes {
        let handle = device.create(size).expect("there is memory");
        device.map(at, handle).expect("nothing is there");
        handles.push(handle);
        at += size;
    }
    device.set_access(base, total).expect("it is mapped");
    (base, total, handles)
}

#[test]
fn the_driver_says_what_it_is() {
    let _turn = turn();
    let Some(device) = device(0) else { return };
    let driver = Driver::load().expect("it was loaded");
    assert!(driver.version() >= 11_000, "{}", driver.version());
    assert!(driver.device_count() > 0);
    let properties = device.properties();
    say(&format!("CUDA {}, {properties:?}", driver.version()));
    assert!(properties.total > 0 && properties.capability.0 >= 5);
    assert!(device.granularity().is_power_of_two());
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    let _turn = turn();
    if device(0).is_none() {
        return;
    }
    let error = CudaDevice::new(999).err().expect("nobody has so many").to_string();
    assert!(error.contains("there is no CUDA device 999"), "{error}");
}

#[test]
fn allocated_memory_can_be_used_and_goes_back() {
    let _turn = turn();
    let Some(mut device) = device(0) else { return };
    let address = device.alloc(100 * MIB + 7).expect("there is memory");
    assert!(address.is_multiple_of(512));
    fill(address, 100 * MIB + 7, 0x5a);
    assert_eq!(ends(address, 100 * MIB + 7), [0x5a; 2]);
    device.free(address).expect("it was allocated");
    assert!(matches!(device.free(address), Err(DeviceError::Misuse { .. })));
}

#[test]
fn too_much_is_out_of_memory() {
    let _turn = turn();
    let Some(mut device) = device(0) else { return };
    let total = device.memory_info().total;
    assert!(total > 0);
    let size = (2 * total).next_multiple_of(device.granularity());
    assert!(matches!(device.alloc(size), Err(DeviceError::OutOfMemory { free, .. }) if free > 0));
    assert!(matches!(device.create(size), Err(DeviceError::OutOfMemory { free, .. }) if free > 0));
}

#[test]
fn mapped_memory_keeps_its_bytes_wherever_it_is_mapped() {
    let _turn = turn();
    let Some(mut device) = device(0) else { return };
    let unit = device.granularity();
    let (base, total, handles) = map(&mut device, &[unit, 10 * unit, 3 * unit]);
    fill(base, total, 0x11);
    fill(base + unit, 10 * unit, 0x22);
    assert_eq!(ends(base, total), [0x11; 2]);

    let alias = device.reserve(10 * unit).expect("there are addresses");
    device.map(alias, handles[1]).expect("an alias");
    device.set_access(alias, 10 * unit).expect("it is mapped");
    assert_eq!(ends(alias, 10 * unit), [0x22; 2]);
    fill(alias, 10 * unit, 0x33);
    assert_eq!(ends(base + unit, 10 * unit), [0x33; 2]);

    device.unmap(base, total).expect("three whole handles");
    assert_eq!(ends(alias, 10 * unit), [0x33; 2], "the alias is still there");
    device.map(base, handles[1]).expect("nothing is there");
    device.set_access(base, 10 * unit).expect("it is mapped");
    assert_eq!(ends(base, 10 * unit), [0x33; 2]);

    device.unmap(base, 10 * unit).expect("it is mapped");
    device.unmap(alias, 10 * unit).expect("it is mapped");
    for handle in handles {
        device.release(handle).expect("it is mapped nowhere");
    }
    device.unreserve(base, total).expect("nothing is mapped");
    device.unreserve(alias, 10 * unit).expect("nothing is mapped");
}

#[test]
fn what_goes_back_is_free_again() {
    let _turn = turn();
    let Some(mut device) = device(0) else { return };
    let size = (512 * MIB).next_multiple_of(device.granularity());
    for _ in 0..3 {
        let (base, total, handles) = map(&mut device, &[size]);
        fill(base, total, 1);
        device.unmap(base, total).expect("it is mapped");
        device.release(handles[0]).expect("it is mapped nowhere");
        device.unreserve(base, total).expect("nothing is mapped");
    }
    assert_eq!(device.calls().create, 3);
}

static GATE: AtomicBool = AtomicBool::new(false);

/// Work that is done when the gate opens.
unsafe extern "C" fn wait_for_gate(_data: *mut c_void) {
    while !GATE.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_event_is_done_when_the_work_before_it_is() {
    let _turn = turn();
    let Some(mut device) = device(0) else { return };
    let (busy, other) = (stream(), stream());
    let (first, second) = (device.add_stream(busy as u64), device.add_stream(other as u64));
    // SAFETY: the function takes no data, and lives as long as the program.
    ok(unsafe { sys::cuLaunchHostFunc(busy, Some(wait_for_gate), ptr::null_mut()) });
    let before = device.record_event(first).expect("an event");
    device.wait_event(second, before).expect("a wait on the device");
    let after = device.record_event(second).expect("an event");
    assert_eq!(device.query_event(before), Ok(false));
    assert_eq!(device.query_event(after), Ok(false), "the other stream does not wait");
    GATE.store(true, Ordering::Release);
    device.synchronize_event(after).expect("a wait");
    assert_eq!(device.query_event(before), Ok(true));
    device.destroy_event(before).expect("it is in use");
    device.destroy_event(after).expect("it is in use");
    for _ in 0..1000 {
        let event = device.record_event(first).expect("an event");
        device.destroy_event(event).expect("it is in use");
    }
    assert_eq!(device.calls().event_create, 2, "events are used again");
    device.synchronize_stream(first).expect("a wait");
}

/// Without the gate each of 32 pages is kept waiting for a millisecond.
#[test]
#[expect(clippy::disallowed_methods, reason = "it is about the time")]
fn a_copy_to_the_host_keeps_no_page_waiting_and_comes_whole() {
    const SIZE: u64 = 512 * MIB;
    const PART: u64 = 16 * MIB;
    let _turn = turn();
    let Some(mut device) = device(0) else { return };
    let lane = device.open_lane().expect("a stream");
    let lane = device.add_stream(lane);
    let memory = device.host_memory();
    let host = memory.reserve(SIZE).expect("there are addresses");
    assert_eq!(memory.pin(host, SIZE).expect("there is memory"), HostBacking::Pinned);
    let gpu = device.alloc(SIZE).expect("there is memory");
    let parts = || (0..SIZE / PART).map(|part| (gpu + part * PART, part as u8 + 1));
    parts().for_each(|(at, byte)| fill(at, PART, byte));
    let page = device.granularity();
    let (base, all, handles) = map(&mut device, &[page; 32]);
    device.unmap(base, all).expect("it is mapped");
    for (at, handle) in (base..).step_by(page as usize).zip(handles) {
        device.map(at, handle).expect("nothing is there");
    }
    for _ in 0..8 {
        device.copy_out(lane, gpu, host, SIZE).expect("a copy");
    }
    let before = Instant::now();
    device.set_access(base, all).expect("it is mapped");
    let taken = before.elapsed();
    device.synchronize_stream(lane).expect("a wait");
    assert!(device.calls().value_wait > 0 && taken < Duration::from_millis(12), "{taken:?}");
    fill(base, all, 7);

    fill(gpu, SIZE, 0);
    device.copy_in(lane, host, gpu, SIZE).expect("a copy");
    device.synchronize_stream(lane).expect("a wait");
    parts().for_each(|(at, byte)| assert_eq!(ends(at, PART), [byte; 2]));
    memory.release(host);
}

#[test]
fn a_thread_without_a_context_can_use_the_device_and_stays_without() {
    let _turn = turn();
    let Some(mut device) = device(0) else { return };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let address = device.alloc(MIB).expect("there is memory");
            device.free(address).expect("it was allocated");
            let mut context = ptr::null_mut();
            // SAFETY: the pointer is to a local of the right type.
            ok(unsafe { sys::cuCtxGetCurrent(&raw mut context) });
            assert!(context.is_null(), "a context was left behind");
        });
    });
}

#[test]
fn a_graph_capture_is_not_disturbed() {
    let _turn = turn();
    let Some(mut device) = device(0) else { return };
    let captured = stream();
    let id = device.add_stream(captured as u64);
    let other = stream();
    let other_id = device.add_stream(other as u64);
    let event = device.record_event(other_id).expect("an event");
    let global = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the stream is alive.
    ok(unsafe { sys::cuStreamBeginCapture_v2(captured, global) });
    assert_eq!(device.is_capturing(id), Ok(true));
    let unit = device.granularity();
    let (base, total, handles) = map(&mut device, &[unit]);
    let address = device.alloc(MIB).expect("there is memory");
    device.query_event(event).expect("an answer about another stream");
    device.synchronize_event(event).expect("a wait for another stream");
    // SAFETY: the stream is alive, and the memory is kept until the graph is gone.
    ok(unsafe { sys::cuMemsetD8Async(base, 7, total as usize, captured) });
    let mut graph = ptr::null_mut();
    // SAFETY: the pointer is to a local of the right type.
    ok(unsafe { sys::cuStreamEndCapture(captured, &raw mut graph) });
    assert!(!graph.is_null(), "the capture was spoiled");
    // SAFETY: the graph was just made.
    ok(unsafe { sys::cuGraphDestroy(graph) });
    device.free(address).expect("it was allocated");
    device.unmap(base, total).expect("it is mapped");
    device.release(handles[0]).expect("it is mapped nowhere");
}

#[test]
fn a_phantom_gives_far_more_than_there_is() {
    let _turn = turn();
    let Some(mut device) = device(0) else { return };
    let total = device.memory_info().total;
    let mut phantom = Phantom::new(device, 4 * total).expect("there is memory");
    let size = total.next_multiple_of(1 << 30) + 66 * MIB;
    let addresses: Vec<_> = (0..3).map(|_| phantom.alloc(size).expect("room")).collect();
    for &address in &addresses {
        fill(address + size - MIB, MIB, 0x77);
        fill(address, MIB, 0x66);
    }
    for address in addresses {
        phantom.free(address).expect("it was allocated");
    }
    assert_eq!(phantom.memory_info().free, 4 * total);
}

#[test]
fn a_caching_policy_makes_no_driver_call_in_steady_state() {
    let _turn = turn();
    for settings in ["", "expandable_segments:True"] {
        let Some(mut device) = device(0) else { return };
        let stream = device.add_stream(0);
        let mut policy = Caching::new(Config::parse(settings).expect("the settings are right"));
        let mut log = ();
        let mut calls = Vec::new();
        for round in 0..5 {
            let mut env = Env::new(&mut device, &mut log);
            let blocks: Vec<_> = [512, 4 * MIB, 70 * MIB, 300 * MIB]
                .map(|size| Request { size, stream, pool: PoolId::DEFAULT })
                .map(|request| policy.allocate(&mut env, request).expect("there is memory"))
                .into();
            for block in &blocks {
                fill(block.address, block.size, round);
                assert_eq!(ends(block.address, block.size), [round; 2]);
            }
            for block in blocks {
                policy.free(&mut env, block.block).expect("it is in use");
            }
            calls.push(device.calls().total());
        }
        assert!(calls[0] > 0);
        assert!(calls.iter().all(|&after| after == calls[0]), "{settings:?}: {calls:?}");
        let mut env = Env::new(&mut device, &mut log);
        policy.empty_cache(&mut env).expect("everything is free");
    }
}

#[test]
fn a_peer_may_use_allocated_and_mapped_memory() {
    let _turn = turn();
    let Some(mut first) = device(0) else { return };
    let Some(_second) = device(1) else { return };
    make_current(0);
    let allocated = first.alloc(10 * MIB).expect("there is memory");
    let unit = first.granularity();
    let (base, total, _handles) = map(&mut first, &[unit, 4 * unit]);
    if let Err(error) = first.enable_peer(1) {
        say(&format!("SKIPPED: {error}"));
        return;
    }
    let (later, more, _more_handles) = map(&mut first, &[2 * unit]);
    make_current(1);
    for (address, size, byte) in [(allocated, 10 * MIB, 1), (base, total, 2), (later, more, 3)] {
        fill(address, size, byte);
        assert_eq!(ends(address, size), [byte; 2]);
    }
    make_current(0);
    assert_eq!(ends(base, total), [2; 2]);
    first.enable_peer(1).expect("it is enabled already");
}

/// The kind of memory that a child shares. Unset in every other process.
const CHILD: &str = "GIRIH_TEST_CHILD_SHARES";

/// The other process of the sharing tests, which its parent starts. It does nothing by itself.
#[test]
fn a_child_shares_memory_when_its_parent_asks_for_it() {
    let _turn = turn();
    let Some(kind) = std::env::var_os(CHILD) else { return };
    let Some(mut device) = device(0) else { return };
    let unit = device.granularity();
    let (address, size) = if kind == "allocation" {
        (device.alloc(100 * MIB).expect("there is memory") + MIB, 50 * MIB)
    } else {
        let (base, total, _) = map(&mut device, &[unit, 10 * unit, unit, 3 * unit]);
        // In the middle of the first handle to the middle of the third.
        (base + unit / 2, total - 4 * unit)
    };
    fill(address, size, 0xa1);
    let exported = device.export(address, size).expect("it can be shared");
    assert_eq!(device.export(address, size).as_ref(), Ok(&exported));
    let numbers: Vec<_> = exported.bytes.iter().map(u8::to_string).collect();
    println!("\nSHARED {} {size} {}", exported.offset, numbers.join(" "));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).expect("the parent answers");
    assert_eq!(ends(address, size), [0xb2; 2], "the parent's bytes do not arrive");
}

fn shares_with_a_child(kind: &str) {
    let Some(mut device) = device(0) else { return };
    let program = std::env::current_exe().expect("this program");
    let test = "a_child_shares_memory_when_its_parent_asks_for_it";
    let mut child = Command::new(program)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, kind)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut lines = lines.map_while(Result::ok);
    let line = lines.find(|line| line.starts_with("SHARED ")).expect("the child shares");
    let numbers: Vec<u64> = line.split(' ').skip(1).map(|n| n.parse().expect("a number")).collect();
    let (offset, size) = (numbers[0], numbers[1]);
    let bytes: Vec<u8> = numbers[2..].iter().map(|number| *number as u8).collect();
    match device.import(&bytes) {
        Ok(imported) => {
            let address = imported.address + offset;
            assert!(offset + size <= imported.size);
            assert_eq!(ends(address, size), [0xa1; 2], "the child's bytes do not arrive");
            let again = device.import(&bytes).expect("it is open");
            assert_eq!(again, imported);
            fill(address, size, 0xb2);
            for _ in 0..2 {
                device.close(imported.address).expect("it is open");
            }
            assert!(matches!(device.close(imported.address), Err(IpcError::Unknown { .. })));
        }
        Err(error @ IpcError::Process { .. }) => {
            say(&format!("SKIPPED: {error}"));
            child.kill().expect("it is ours");
            child.wait().expect("it is ours");
            return;
        }
        Err(error) => panic!("{error}"),
    }
    child.stdin.take().expect("a pipe").write_all(b"done\n").expect("the child listens");
    for line in lines {
        say(&format!("child: {line}"));
    }
    assert!(child.wait().expect("it is ours").success(), "the child is not content");
}

#[test]
fn an_allocation_is_shared_with_another_process() {
    let _turn = turn();
    shares_with_a_child("allocation");
}

#[test]
fn mapped_memory_in_several_handles_is_shared_with_another_process() {
    let _turn = turn();
    shares_with_a_child("mapped");
}
