//! Autograd's saved tensors: the two hooks that turn each of them into a record, and back.
//!
//! ```text
//!  forward    pack(tensor)   ──► Saved { the tensor without its graph, its version, the id of its record }
//!  backward   unpack(saved)  ──► another tensor over its storage, whose bytes are on the GPU again
//!  the graph is freed        ──► the record goes
//! ```
//!
//! With hooks PyTorch does not look whether a saved tensor was changed in place, so it is done here.

use girih_torch::control::{self, Saved as Tensor, SavedError};
use girih_torch::swap::{Shape, storages};
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// Bytes from which on a storage gets a record.
const LEAST: u64 = girih_torch::swap::LEAST;

/// What of torch is called for each tensor.
struct Torch {
    parameter: Py<PyType>,
    current_stream: Py<PyAny>,
    out_of_memory: Py<PyType>,
}

fn torch(py: Python<'_>) -> PyResult<&Torch> {
    static TORCH: PyOnceLock<Torch> = PyOnceLock::new();
    TORCH.get_or_try_init(py, || {
        let torch = py.import("torch")?;
        let core = torch.getattr("_C")?;
        Ok(Torch {
            parameter: torch.getattr("nn")?.getattr("Parameter")?.cast_into::<PyType>()?.unbind(),
            current_stream: core.getattr("_cuda_getCurrentRawStream")?.unbind(),
            out_of_memory: torch.getattr("OutOfMemoryError")?.cast_into::<PyType>()?.unbind(),
        })
    })
}

/// A saved tensor.
#[pyclass(frozen, module = "girih._native")]
pub(super) struct Saved {
    tensor: Py<PyAny>,
    version: i64,
    device: i32,
    /// Of its record; 0 if it has none.
    id: u64,
}

impl Drop for Saved {
    /// Before the tensor goes: a copy may still read or write its bytes.
    fn drop(&mut self) {
        if self.id != 0 {
            // Nobody is there to be told. What is refused is a wait, which the program's next call meets too.
            let _ = control::drop_saved(self.device, self.id);
        }
    }
}

fn stream_of(py: Python<'_>, device: i32) -> PyResult<u64> {
    torch(py)?.current_stream.bind(py).call1((device,))?.extract()
}

/// True if the bytes are a parameter's, which are in use for as long as the model lives.
fn is_of_a_parameter(py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    let parameter = torch(py)?.parameter.bind(py);
    if tensor.is_instance(parameter)? {
        return Ok(true);
    }
    let base = tensor.getattr(intern!(py, "_base"))?;
    Ok(!base.is_none() && base.is_instance(parameter)?)
}

/// Autograd saves a tensor.
#[pyfunction]
pub(super) fn pack(tensor: &Bound<'_, PyAny>) -> PyResult<Saved> {
    let py = tensor.py();
    let version = tensor.getattr(intern!(py, "_version"))?.extract()?;
    let Some((device, described)) = described(py, tensor)? else {
        return Ok(Saved { tensor: kept(py, tensor)?, version, device: -1, id: 0 });
    };
    // Each save is an owner of the storage: so it is seen whether the program is another.
    let detached = detached(py, tensor)?;
    let mut saved = Saved { tensor: detached, version, device, id: 0 };
    let stream = stream_of(py, device)?;
    saved.id =
        py.detach(|| control::save(device, described, stream)).map_err(PyRuntimeError::new_err)?;
    Ok(saved)
}

/// The device of a tensor and what a heap needs to know of it. None if it is none that may go.
fn described(py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<Option<(i32, Tensor)>> {
    if !tensor.getattr(intern!(py, "is_cuda"))?.extract::<bool>()? {
        return Ok(None);
    }
    let Some(storages) = storages::of_the_process() else { return Ok(None) };
    let tensor_id: u64 = tensor.getattr(intern!(py, "_cdata"))?.extract()?;
    let Some((storage, size)) = storages.of_tensor(tensor_id) else { return Ok(None) };
    if size < LEAST || is_of_a_parameter(py, tensor)? {
        return Ok(None);
    }
    let address = storages.address(storage);
    let device: i32 = tensor.call_method0(intern!(py, "get_device"))?.extract()?;
    let dimensions: u64 = tensor.call_method0(intern!(py, "dim"))?.extract()?;
    let element: u64 = tensor.call_method0(intern!(py, "element_size"))?.extract()?;
    let kind = dimensions << 8 | element;
    // What is no number, while something traces, is not shown.
    let shape: Vec<u64> = tensor.getattr(intern!(py, "shape"))?.extract().unwrap_or_default();
    let shape = Shape::of(&shape);
    Ok(Some((device, Tensor { storage, address, size, kind, shape })))
}

fn detached(py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    Ok(tensor.call_method0(intern!(py, "detach"))?.unbind())
}

/// What is kept of a tensor that has no record. A leaf itself, as PyTorch does: who exchanges the data of a parameter
/// between forward and backward finds it exchanged. Else the tensor without its graph, for that may hold what is kept.
fn kept(py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    match tensor.getattr(intern!(py, "is_leaf"))?.extract()? {
        true => Ok(tensor.clone().unbind()),
        false => detached(py, tensor),
    }
}

/// Autograd uses a saved tensor.
#[pyfunction]
pub(super) fn unpack(py: Python<'_>, saved: &Bound<'_, Saved>) -> PyResult<Py<PyAny>> {
    let saved = saved.get();
    let tensor = saved.tensor.bind(py);
    let version: i64 = tensor.getattr(intern!(py, "_version"))?.extract()?;
    if version != saved.version {
        return Err(changed(tensor, saved.version, version));
    }
    if saved.id == 0 {
        return Ok(saved.tensor.clone_ref(py));
    }
    let (device, id) = (saved.device, saved.id);
    let stream = stream_of(py, device)?;
    py.detach(|| control::use_saved(device, id, stream)).map_err(|error| match error {
        SavedError::OutOfMemory(text) => match torch(py) {
            Ok(torch) => PyErr::from_type(torch.out_of_memory.bind(py).clone(), text),
            Err(error) => error,
        },
        SavedError::Other(text) => PyRuntimeError::new_err(text),
    })?;
    // Autograd takes what needs no gradient (attention's log-sum-exp) as it is given: our own tensor would be no owner
    // that is seen, and its bytes could go before the kernel that reads them is queued.
    Ok(tensor.call_method0(intern!(py, "detach"))?.unbind())
}

/// PyTorch's own words for it, and which tensor it is.
fn changed(tensor: &Bound<'_, PyAny>, saved: i64, found: i64) -> PyErr {
    let word = |name: &str| {
        tensor.getattr(name).and_then(|value| Ok(value.str()?.to_string())).unwrap_or_default()
    };
    PyRuntimeError::new_err(format!(
        "one of the variables needed for gradient computation has been modified by an inplace \
         operation: [{} of {}] is at version {found}; expected version {saved} instead. Hint: it was \
         saved for the backward pass before it was changed; change a copy of it",
        word("dtype"),
        word("shape"),
    ))
}
