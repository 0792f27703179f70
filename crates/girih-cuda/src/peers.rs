//! Other GPUs that may use the memory of this one.
//!
//! Two kinds of memory need two kinds of permission: what was allocated is open to a context that
//! enabled access to ours (`cuCtxEnablePeerAccess`), what is mapped is open to the devices that were
//! named when access to it was set.

use girih_runtime::{Address, DeviceError};

use crate::context::Scope;
use crate::device::CudaDevice;
use crate::driver::Failure;
use crate::driver::types::{CuAccess, CuContext, CuDevice, CuResult};

/// A device that may use our memory. Its primary context is retained.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) device: CuDevice,
}

impl CudaDevice {
    /// Lets the device of number `peer` read and write the memory of this one: all that is
    /// allocated or accessible now, and all that will be.
    ///
    /// # Errors
    /// [`DeviceError::Driver`] if the two cannot reach each other, or if the driver refuses; nothing
    /// has changed then.
    pub fn enable_peer(&mut self, peer: u32) -> Result<(), DeviceError> {
        let driver = self.driver;
        let error = |failure| driver.error(failure);
        let device = driver.device(peer).map_err(error)?;
        if device == self.device || self.peers.iter().any(|known| known.device == device) {
            return Ok(());
        }
        if !driver.can_access_peer(device, self.device).map_err(error)? {
            let reason = format!(
                "device {peer} cannot reach the memory of device {}: they are not connected \
                 (`nvidia-smi topo -p2p r` shows which are)",
                self.ordinal()
            );
            return Err(DeviceError::Driver { call: "cuDeviceCanAccessPeer", reason });
        }
        let context = driver.retain_primary(device).map_err(error)?;
        let enabled = self.open_allocations(context).and_then(|newly| {
            self.open_mappings(device).inspect_err(|_| {
                if newly {
                    self.close_allocations(context);
                }
            })
        });
        match enabled {
            Ok(()) => {
                self.access.push(CuAccess::new(device, CuAccess::READ_WRITE));
                self.peers.push(Peer { device });
                Ok(())
            }
            Err(failure) => {
                let _ = driver.release_primary(device);
                Err(driver.error(failure))
            }
        }
    }

    /// Lets the context of a peer use what is allocated. False if it could already.
    fn open_allocations(&self, peer: CuContext) -> Result<bool, Failure> {
        let _scope = Scope::relaxed(self.driver, peer)?;
        match self.driver.enable_peer_access(self.context) {
            Ok(()) => Ok(true),
            Err(Failure { code: CuResult::PEER_ACCESS_ALREADY_ENABLED, .. }) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Undoes [`CudaDevice::open_allocations`].
    fn close_allocations(&self, peer: CuContext) {
        if let Ok(_scope) = Scope::relaxed(self.driver, peer) {
            let _ = self.driver.disable_peer_access(self.context);
        }
    }

    /// Lets a peer use what is mapped and accessible: all of it or, on an error, nothing.
    fn open_mappings(&mut self, peer: CuDevice) -> Result<(), Failure> {
        let _scope = Scope::relaxed(self.driver, self.context)?;
        let runs = self.books.accessible_runs();
        for (index, &run) in runs.iter().enumerate() {
            if let Err(failure) = self.set_peer_access(peer, run, CuAccess::READ_WRITE) {
                for &opened in &runs[..index] {
                    let _ = self.set_peer_access(peer, opened, CuAccess::NONE);
                }
                return Err(failure);
            }
        }
        Ok(())
    }

    fn set_peer_access(
        &mut self,
        peer: CuDevice,
        (address, size): (Address, u64),
        flags: u32,
    ) -> Result<(), Failure> {
        self.calls.set_access += 1;
        self.driver.set_access(address, size as usize, &[CuAccess::new(peer, flags)])
    }
}
