//! The event sink: a function of the caller that is told of every event.

use std::ffi::c_void;

use super::error::guard;
use super::types::Event;
use crate::heaps;

/// `girih_sink`.
pub type SinkFunction = unsafe extern "C" fn(user: *mut c_void, event: *const Event);

/// Where events go.
#[derive(Clone, Copy, Debug)]
pub struct Sink {
    function: SinkFunction,
    user: *mut c_void,
}

// SAFETY: whoever makes a sink promises that it can be called from any thread.
unsafe impl Send for Sink {}

impl Sink {
    /// A sink.
    ///
    /// # Safety
    /// `function` can be called with `user` from any thread until the sink is replaced, and does
    /// not call this library.
    pub unsafe fn new(function: SinkFunction, user: *mut c_void) -> Sink {
        Sink { function, user }
    }

    /// Tells of an event.
    pub(crate) fn tell(&self, event: &Event) {
        // SAFETY: whoever made the sink promised it.
        unsafe { (self.function)(self.user, event) };
    }
}

/// Sends each event of every heap to `sink`, or to none if it is null. After the call the former
/// sink is not called any more.
///
/// # Safety
/// As [`Sink::new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn girih_set_sink(sink: Option<SinkFunction>, user: *mut c_void) {
    guard(|| {
        // SAFETY: the caller promises it.
        heaps::set_sink(sink.map(|function| unsafe { Sink::new(function, user) }))
    });
}
