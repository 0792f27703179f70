//! Memory of other processes: to close it takes as long as the device works, and nobody else waits.

#![expect(clippy::disallowed_methods, reason = "one thread closes while another allocates")]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use girih_cuda::StreamHandle;
use girih_runtime::sim::SimDevice;
use girih_runtime::{Address, Device, DeviceError, Handle, MemoryInfo, Prices};
use girih_torch::{Closing, Exported, Heap, HeapDevice, Outcome, Settings};
use girih_trace::StreamId;

const OPENED: Address = 0x7000;

/// A device on which work is done until somebody says so.
struct Busy {
    device: SimDevice,
    waits: Sender<()>,
    done: Option<Receiver<()>>,
    unmapped: Sender<u64>,
}

impl Device for Busy {
    fn memory_info(&mut self) -> MemoryInfo {
        self.device.memory_info()
    }

    fn granularity(&self) -> u64 {
        self.device.granularity()
    }

    fn maps_twice(&self) -> bool {
        self.device.maps_twice()
    }

    fn prices(&self) -> Prices {
        self.device.prices()
    }

    girih_runtime::calls_of!(device {
        fn alloc(size: u64) -> Address;
        fn free(address: Address) -> ();
        fn reserve(size: u64) -> Address;
        fn unreserve(address: Address, size: u64) -> ();
        fn create(size: u64) -> Handle;
        fn map(address: Address, handle: Handle) -> ();
        fn set_access(address: Address, size: u64) -> ();
        fn unmap(address: Address, size: u64) -> ();
    });

    fn release(&mut self, handle: Handle) -> Result<(), DeviceError> {
        Device::release(&mut self.device, handle)
    }

    girih_runtime::streams_of!(device);
}

impl HeapDevice for Busy {
    fn set_stream(&mut self, _id: StreamId, _stream: StreamHandle) {}

    fn enable_peer(&mut self, _peer: i32) -> Outcome<()> {
        Ok(())
    }

    fn export(&mut self, _address: Address, _size: u64) -> Outcome<Exported> {
        unreachable!("nothing is exported")
    }

    fn import(&mut self, _description: &[u8]) -> Outcome<Address> {
        Ok(OPENED)
    }

    fn begin_close(&mut self, address: Address) -> Outcome<Closing> {
        if address != OPENED {
            return Ok(Closing::Unknown);
        }
        let (waits, done) = (self.waits.clone(), self.done.take());
        let wait = Box::new(move || {
            waits.send(()).unwrap();
            // Long enough for any machine; whoever holds the heap back makes this fail.
            done.unwrap().recv_timeout(Duration::from_secs(60)).expect("others could go on");
            Ok(())
        });
        Ok(Closing::Last { wait, closing: 5 })
    }

    fn finish_close(&mut self, address: Address, closing: u64) -> Outcome<()> {
        assert_eq!(address, OPENED);
        self.unmapped.send(closing).unwrap();
        Ok(())
    }

    fn calls(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

#[test]
fn others_allocate_while_the_end_of_the_devices_work_is_waited_for() {
    let (waits, waiting) = channel();
    let (finish, done) = channel();
    let (unmapped, seen) = channel();
    let device = Busy { device: SimDevice::new(1 << 30), waits, done: Some(done), unmapped };
    let settings = Settings::parse(r#"{"mode": "native"}"#).unwrap();
    let heap = Arc::new(Heap::over(Box::new(device), 0, &settings));
    assert!(!heap.close(OPENED + 1).unwrap(), "it is not open");
    let opened = heap.import(b"of another process").unwrap();
    let closer = {
        let heap = Arc::clone(&heap);
        thread::spawn(move || heap.close(opened).unwrap())
    };
    waiting.recv().unwrap();
    let address = heap.allocate(1 << 20, 0, (0, 0)).unwrap();
    assert!(heap.free(address).unwrap());
    assert!(seen.try_recv().is_err(), "it is mapped as long as it is waited for");
    finish.send(()).unwrap();
    assert!(closer.join().unwrap());
    assert_eq!(seen.recv().unwrap(), 5);
}
