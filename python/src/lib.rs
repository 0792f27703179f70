//! The extension module `girih._native`.
//!
//! One shared object with two faces. To Python it is the few functions below: control of the heaps,
//! and the source of the shim. To the shim it is the C interface of `girih.h`, whose `girih_*`
//! symbols it exports; so control and allocator see the same heaps.
//!
//! ```text
//!  girih (Python) ──► _native.so ◄── girih_shim.so ◄── torch
//!                     control   C interface
//! ```
//!
//! Every function gives Python's lock up while it works: a heap's lock may be held for as long as a
//! driver call takes, and other Python threads must not wait for that.

mod call;
mod objects;
mod saved;
mod states;
mod why;

use girih_torch::control;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// Name and text of every source file of the shim and of `girih.h`, by name.
static SHIM_SOURCES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/shim_sources.rs"));

/// The extension module.
#[pymodule(name = "_native")]
mod native {
    #[pymodule_export]
    use super::call::{note_hooks, wants_hooks, when_called};
    #[pymodule_export]
    use super::saved::{Saved, pack, unpack};
    #[pymodule_export]
    use super::states::{Records, seal, wants_states};
    #[pymodule_export]
    use super::{
        abi, change_settings, check_settings, configure, finish, keep_in_one_handle, mark, plan,
        plan_file, report, save_trace, shim_sources, take_warnings, why_refused,
    };
}

/// Version of the C interface (`GIRIH_ABI` of girih.h) that this library implements.
#[pyfunction]
fn abi() -> u32 {
    girih_torch::abi::girih_abi()
}

/// Settles how the heaps will work, before the first request. `options` is a JSON object; what is
/// wrong with it is a ValueError.
#[pyfunction]
fn configure(py: Python<'_>, options: &str) -> PyResult<()> {
    py.detach(|| control::configure(options)).map_err(PyValueError::new_err)
}

/// Says whether the heaps could be configured so, and changes nothing. What is wrong is a ValueError.
#[pyfunction]
fn check_settings(py: Python<'_>, options: &str) -> PyResult<()> {
    py.detach(|| control::check_settings(options)).map_err(PyValueError::new_err)
}

/// Changes the settings of the caching allocator while the program runs. What a heap cannot do is a
/// ValueError.
#[pyfunction]
fn change_settings(py: Python<'_>, text: &str) -> PyResult<()> {
    py.detach(|| control::change_settings(text)).map_err(PyValueError::new_err)
}

/// Tells every heap that the program has come to a point. `kind` is a name of the marks file
/// ("step", "backward", ...); `name` says more. What the driver refuses is a RuntimeError.
#[pyfunction]
#[pyo3(signature = (kind, name = ""))]
fn mark(py: Python<'_>, kind: &str, name: &str) -> PyResult<()> {
    py.detach(|| control::mark(kind, name)).map_err(PyRuntimeError::new_err)
}

/// The memory of a private pool, a pair of numbers, is taken in pieces that have one handle each. A
/// pool that is in use already is a RuntimeError.
#[pyfunction]
fn keep_in_one_handle(py: Python<'_>, device: i32, pool: (u64, u64)) -> PyResult<()> {
    py.detach(|| control::keep_in_one_handle(device, pool)).map_err(PyRuntimeError::new_err)
}

/// What the heaps did and hold, as JSON; of one device, or of all that were used.
#[pyfunction]
#[pyo3(signature = (device = None))]
fn report(py: Python<'_>, device: Option<i32>) -> PyResult<String> {
    py.detach(|| control::report(device)).map_err(PyRuntimeError::new_err)
}

/// What users should be told and were not yet.
#[pyfunction]
fn take_warnings(py: Python<'_>) -> Vec<String> {
    py.detach(control::take_warnings)
}

/// Writes what was recorded of a device to a trace file. Gives the number of events.
#[pyfunction]
fn save_trace(py: Python<'_>, device: i32, path: &str) -> PyResult<u64> {
    py.detach(|| control::save_trace(device, path)).map_err(PyRuntimeError::new_err)
}

/// Plans from what was recorded of a device, and writes the plan to `path`. Gives a summary as
/// JSON.
#[pyfunction]
fn plan(py: Python<'_>, device: i32, path: &str) -> PyResult<String> {
    py.detach(|| control::plan(device, path)).map_err(PyRuntimeError::new_err)
}

/// The file of the plan that the mode `auto` keeps in a folder for the run of a key, with
/// "{device}" for the device.
#[pyfunction]
fn plan_file(folder: &str, key: &str) -> String {
    control::plan_file(folder, key)
}

/// Why a recording's run was refused memory, as JSON. `recording` is a snapshot or a trace file;
/// `text` may have PyTorch's error in it; `capacity` and `card` are bytes, if they are known. What
/// cannot be read is a ValueError.
#[pyfunction]
#[pyo3(signature = (recording, name, *, text = "", device = None, capacity = None, card = None))]
fn why_refused(
    py: Python<'_>,
    recording: &[u8],
    name: &str,
    text: &str,
    device: Option<u32>,
    capacity: Option<u64>,
    card: Option<u64>,
) -> PyResult<String> {
    let asked = why::Asked { recording, name, text, device, capacity, card };
    py.detach(|| why::answer(&asked)).map_err(PyValueError::new_err)
}

/// The process ends: frees do nothing from now on.
#[pyfunction]
fn finish(py: Python<'_>) {
    py.detach(control::finish);
}

/// The shim's source: pairs of file name and text.
#[pyfunction]
fn shim_sources() -> Vec<(&'static str, &'static str)> {
    SHIM_SOURCES.to_vec()
}
