//! How heaps call for the program: the main thread runs a function of Python between two of its instructions.
//!
//! `Py_AddPendingCall` needs neither Python's lock nor a thread of Python's, so whoever asks for memory may leave word.
//! The hooks of autograd are a thread's own, and it is the main thread that trains.

use std::ffi::{c_int, c_void};

use girih_torch::control;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

static CALLED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// From now on heaps call for the program with `function`, in the main thread. The first call counts.
#[pyfunction]
pub(super) fn when_called(py: Python<'_>, function: Py<PyAny>) {
    // A second one is left out.
    let _ = CALLED.set(py, function);
    control::set_call(leave_word);
}

/// True once a heap wants to know what autograd saves.
#[pyfunction]
pub(super) fn wants_hooks() -> bool {
    control::wants_hooks()
}

/// The hooks are set.
#[pyfunction]
pub(super) fn note_hooks() {
    control::note_hooks();
}

fn leave_word() {
    // Where too many wait already, the heap calls again.
    // SAFETY: it may be called by any thread while the interpreter lives, and heaps call no more once it ends; the
    // function takes a null pointer.
    #[expect(unsafe_code, reason = "there is no other way in without Python's lock")]
    let _ = unsafe { ffi::Py_AddPendingCall(Some(come), std::ptr::null_mut()) };
}

/// Runs in the main thread, at the latest while the interpreter ends: then nobody is there any more. What goes wrong is
/// shown and raises nothing: the program is anywhere.
extern "C" fn come(_nothing: *mut c_void) -> c_int {
    let _ = Python::try_attach(|py| {
        if let Some(function) = CALLED.get(py)
            && let Err(error) = function.call0(py)
        {
            error.write_unraisable(py, None);
        }
    });
    0
}
