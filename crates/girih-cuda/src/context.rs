//! Whose context is current, and what a capture sees.
//!
//! The driver works on the context that is current on the calling thread. PyTorch's threads have
//! their device's primary context, the one that is shared by all users of the CUDA runtime; a heap
//! may be called from any thread, with another device or none.
//!
//! While any thread captures a graph, calls that a graph cannot hold, such as an allocation, are an
//! error on every thread, and they spoil the capture. A thread that sets its mode to *relaxed* may
//! make them: they are then no part of the capture (`cuThreadExchangeStreamCaptureMode`).
//!
//! A [`Scope`] sees to both for as long as it lives, and leaves the thread as it found it.

use girih_runtime::{Address, DeviceError};

use crate::driver::types::{CuCaptureMode, CuContext, CuResult};
use crate::driver::{Driver, Failure};

/// Waits for the work of a device without the device itself, which others may use meanwhile.
#[derive(Clone, Copy)]
pub struct Waiter {
    pub(crate) driver: &'static Driver,
    pub(crate) context: CuContext,
}

impl Waiter {
    /// Waits on the host for all work of the device (`cuCtxSynchronize`).
    ///
    /// # Errors
    /// [`DeviceError::Driver`]: a kernel failed, or a capture is under way.
    pub fn synchronize(self) -> Result<(), DeviceError> {
        let waited = Scope::relaxed(self.driver, self.context)
            .and_then(|_scope| self.driver.synchronize_context());
        waited.map_err(|failure| self.driver.error(failure))
    }
}

/// An allocation without the device itself, which others may use meanwhile.
#[derive(Clone, Copy)]
#[must_use = "nothing is allocated before it is made"]
pub struct BegunAlloc {
    pub(crate) driver: &'static Driver,
    pub(crate) context: CuContext,
    pub(crate) size: u64,
}

impl BegunAlloc {
    /// Allocates (`cuMemAlloc`), and may take the driver milliseconds.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`], or what else the driver refused.
    pub fn make(self) -> Result<Address, DeviceError> {
        let refused = |failure| self.driver.error(failure);
        let _scope = Scope::relaxed(self.driver, self.context).map_err(refused)?;
        match self.driver.alloc(self.size as usize) {
            Ok(address) => Ok(address),
            Err(Failure { code: CuResult::OUT_OF_MEMORY, .. }) => {
                let free = self.driver.memory_info().map_or(0, |(free, _)| free);
                Err(DeviceError::OutOfMemory { requested: self.size, free })
            }
            Err(failure) => Err(refused(failure)),
        }
    }
}

/// Our context is current until this is dropped.
#[must_use = "the context is current only while this lives"]
pub(crate) struct Scope {
    driver: &'static Driver,
    pushed: bool,
    /// The capture mode to go back to.
    mode: Option<CuCaptureMode>,
}

impl Scope {
    /// Makes `context` current, if it is not already.
    pub(crate) fn enter(driver: &'static Driver, context: CuContext) -> Result<Scope, Failure> {
        let pushed = driver.current_context()? != context;
        if pushed {
            driver.push_context(context)?;
        }
        Ok(Scope { driver, pushed, mode: None })
    }

    /// The same, and calls that a capture cannot hold are allowed.
    pub(crate) fn relaxed(driver: &'static Driver, context: CuContext) -> Result<Scope, Failure> {
        let mut scope = Scope::enter(driver, context)?;
        scope.mode = Some(driver.exchange_capture_mode(CuCaptureMode::RELAXED)?);
        Ok(scope)
    }
}

impl Drop for Scope {
    /// The driver has no reason to refuse these, and there would be nothing to do about it.
    fn drop(&mut self) {
        if let Some(mode) = self.mode {
            let _ = self.driver.exchange_capture_mode(mode);
        }
        if self.pushed {
            let _ = self.driver.pop_context();
        }
    }
}
