//! What a driver must tell for `graph_capture_record_stream_reuse`, and what a user is told if it does not.

use super::State;

impl State {
    /// Tells the user if the settings ask for something that the driver is too old for, unless they did
    /// `before` as well.
    pub(super) fn look_at_captures(&mut self, before: bool) {
        let asks = self.config.graph_capture_record_stream_reuse;
        if asks && !before && !self.device.tells_of_captures() {
            self.warn(
                "allocator settings: graph_capture_record_stream_reuse has no effect with this driver, \
                 which does not tell of graphs that are being captured; CUDA 12.3 and later do."
                    .to_owned(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use girih_cuda::StreamHandle;
    use girih_runtime::{Address, Device, Handle, MemoryInfo, Prices};
    use girih_trace::StreamId;

    use crate::device::{Closing, Exported, HeapDevice, Simulated};
    use crate::error::Outcome;
    use crate::heap::Heap;
    use crate::settings::{self, Settings};

    /// A device whose driver does not tell of captures.
    struct Old {
        device: Simulated,
    }

    impl Device for Old {
        girih_runtime::streams_of!(device);
        girih_runtime::calls_of!(device {
            fn alloc(size: u64) -> Address;
            fn free(address: Address) -> ();
            fn reserve(size: u64) -> Address;
            fn unreserve(address: Address, size: u64) -> ();
            fn create(size: u64) -> Handle;
            fn release(handle: Handle) -> ();
            fn map(address: Address, handle: Handle) -> ();
            fn set_access(address: Address, size: u64) -> ();
            fn unmap(address: Address, size: u64) -> ();
        });

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
    }

    impl HeapDevice for Old {
        fn set_stream(&mut self, _id: StreamId, _stream: StreamHandle) {}

        fn tells_of_captures(&self) -> bool {
            false
        }

        fn enable_peer(&mut self, _peer: i32) -> Outcome<()> {
            Ok(())
        }

        fn export(&mut self, address: Address, size: u64) -> Outcome<Exported> {
            self.device.export(address, size)
        }

        fn import(&mut self, description: &[u8]) -> Outcome<Address> {
            self.device.import(description)
        }

        fn begin_close(&mut self, address: Address) -> Outcome<Closing> {
            self.device.begin_close(address)
        }

        fn finish_close(&mut self, address: Address, closing: u64) -> Outcome<()> {
            self.device.finish_close(address, closing)
        }

        fn calls(&self) -> Vec<(&'static str, u64)> {
            self.device.calls()
        }
    }

    #[test]
    fn a_user_whose_driver_is_too_old_is_told_once_when_the_setting_is_made() {
        let simulated = settings::Simulated { capacity: 1 << 30, virtual_memory: true };
        let of = |conf: &str| {
            let settings = format!(r#"{{"mode": "native", "conf": "{conf}"}}"#);
            Settings::parse(&settings).expect("right settings")
        };
        let [off, on] = ["", "graph_capture_record_stream_reuse:True"].map(of);
        let told =
            |heap: &Heap| heap.with(|state| Ok(std::mem::take(&mut state.warnings))).unwrap();
        for settings in [&off, &on] {
            let new = Heap::over(Box::new(Simulated::new(0, simulated)), 0, settings);
            assert!(told(&new).is_empty());
            let old = Old { device: Simulated::new(0, simulated) };
            let old = Heap::over(Box::new(old), 0, settings);
            let first = told(&old);
            old.configure(&on.config).unwrap();
            let second = told(&old);
            let says = "has no effect with this driver";
            let all = [first, second].concat();
            assert!(all.len() == 1 && all[0].contains(says), "{all:?}");
        }
    }
}
