//! The last error of a thread, and the guard that keeps panics from leaving Rust.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::types::{Oom, Status};
use crate::error::{HeapError, Outcome};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::new(CString::default());
    static LAST_OOM: Cell<Oom> = const { Cell::new(NO_OOM) };
}

const NO_OOM: Oom = Oom {
    device: -1,
    is_rejection: false,
    requested: 0,
    needed: 0,
    allocated: 0,
    reserved: 0,
    limit: 0,
    device_free: 0,
    device_total: 0,
};

/// Runs the body of a function of the interface: catches panics, keeps the error of this thread.
#[inline]
pub(crate) fn guard(body: impl FnOnce() -> Outcome<()>) -> Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok,
        Ok(Err(error)) => fail(&error),
        Err(panic) => fail(&HeapError::Bug(text_of(&*panic))),
    }
}

#[cold]
fn fail(error: &HeapError) -> Status {
    if let HeapError::OutOfMemory(oom) = error {
        LAST_OOM.set(Oom {
            device: oom.device,
            is_rejection: oom.is_rejection,
            requested: oom.requested,
            needed: oom.needed,
            allocated: oom.allocated,
            reserved: oom.reserved,
            limit: oom.limit,
            device_free: oom.device_free,
            device_total: oom.device_total,
        });
    }
    let text = error.to_string().replace('\0', " ");
    // A thread that is ending has no place for its last error any more.
    let _ = LAST_ERROR.try_with(|last| {
        *last.borrow_mut() = CString::new(text).unwrap_or_default();
    });
    Status::from(error)
}

/// What a panic said.
fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
    format!("a bug inside Girih: {text}; please report it, with the lines above this one")
}

/// What went wrong in the last call of this thread that failed. Never null; valid until the next
/// call of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn girih_last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// What is known of the last request of this thread that failed for memory.
///
/// # Safety
/// `oom` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_last_oom(oom: *mut Oom) {
    if !oom.is_null() {
        // SAFETY: the caller says that it can be written to.
        unsafe { oom.write(LAST_OOM.get()) };
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;
    use crate::error::unknown;

    fn last_error() -> &'static str {
        // SAFETY: it is never null, ends with a zero, and nothing fails before it is read.
        unsafe { CStr::from_ptr(girih_last_error()) }.to_str().unwrap()
    }

    #[test]
    fn a_panic_comes_back_as_a_bug_with_its_text() {
        assert_eq!(guard(|| panic!("the sky fell at {}", 7)), Status::Bug);
        assert!(last_error().contains("the sky fell at 7"), "{}", last_error());
    }

    #[test]
    fn the_last_error_stays_when_a_later_call_is_fine() {
        assert_eq!(guard(|| Err(unknown("no such\0thing"))), Status::Unknown);
        assert_eq!(guard(|| Ok(())), Status::Ok);
        assert_eq!(last_error(), "no such thing");
    }
}
