//! Settings that a program changes while it runs, and those that hold.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use super::blocks::{give, put};
use super::error::guard;
use super::types::{Settings, Status};
use crate::error::unsupported;
use crate::heaps;

thread_local! {
    static TEXT: RefCell<CString> = RefCell::new(CString::default());
}

/// Changes the settings of the caching allocator, of all heaps present and future. `text` is in the
/// words of `PYTORCH_CUDA_ALLOC_CONF`.
///
/// # Safety
/// `text` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_change_settings(text: *const c_char) -> Status {
    guard(|| {
        // SAFETY: the caller says that it ends with a zero.
        let text = unsafe { CStr::from_ptr(text) }.to_str();
        heaps::change_settings(text.map_err(|_| unsupported("allocator settings are no UTF-8"))?)
    })
}

/// The settings that hold now.
///
/// # Safety
/// `settings` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_get_settings(settings: *mut Settings) -> Status {
    give(
        || Ok(heaps::with_settings(|found| Settings::from(found))),
        // SAFETY: the caller says that it is null or can be written to.
        |found| unsafe { put(settings, found) },
    )
}

/// The text that was set last. Never null; valid until the next call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn girih_settings_text() -> *const c_char {
    let mut text = CString::default();
    guard(|| {
        text = heaps::with_settings(|found| CString::new(&*found.conf)).unwrap_or_default();
        Ok(())
    });
    let kept = TEXT.try_with(|kept| {
        *kept.borrow_mut() = text;
        kept.borrow().as_ptr()
    });
    kept.unwrap_or(c"".as_ptr())
}
