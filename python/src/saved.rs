//! Autograd's saved tensors: the two hooks that turn each of them into a record, and back.
//!
//! ```text
//!  forward    pack(tensor)   ──► Saved { the tensor without its graph, its version, the id of its record }
//!  backward   unpack(saved)  ──► another tensor over its storage, whose bytes are on the GPU again
//!  the graph is freed        ──► the record goes
//! ```
//!
//! With hooks PyTorch does not look whether a saved tensor was changed in place, so it is done here.
//!
//! A hook is called for every tensor, and most are small: what decides is one call of the shim, which needs no Python
//! (`girih_torch::swap::tensors`), for tensors of torch's own class and for parameters. Others, and where there is no
//! shim, are asked in Python, several times slower.

use girih_torch::control::{self, Saved as Tensor, SavedError};
use girih_torch::swap::tensors::{self, Seen, Tensors};
use girih_torch::swap::{Shape, storages};
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::objects::Objects;

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

/// A tensor that can be looked at without Python: of torch's own class, or a parameter, and plain.
struct Plain {
    tensors: &'static dyn Tensors,
    objects: &'static Objects,
    /// Of its `c10::TensorImpl`.
    address: u64,
    is_parameter: bool,
}

impl Plain {
    /// Of this object; none where nobody has said how to look, and for other classes.
    #[inline]
    fn of(tensor: &Bound<'_, PyAny>) -> Option<Plain> {
        let tensors = tensors::of_the_process()?;
        let objects = Objects::of_the_process(tensor)?;
        let is_parameter = objects.is_parameter(tensor);
        let address = objects.address(tensor)?;
        Some(Plain { tensors, objects, address, is_parameter })
    }

    /// Another tensor over the same storage, without a graph, whose changes in place are counted with those of this
    /// one: what `detach` gives, which goes through the dispatcher for it.
    fn alias(&self, tensor: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let alias = tensor.getattr(intern!(tensor.py(), "data"))?;
        match self.objects.address(&alias) {
            Some(address) => {
                self.tensors.share_version(address, self.address);
                Ok(alias.unbind())
            }
            None => detached(tensor.py(), tensor),
        }
    }

    /// What is kept of a tensor that has no record: see [`kept`].
    fn kept(&self, tensor: &Bound<'_, PyAny>, seen: &Seen) -> PyResult<Py<PyAny>> {
        match !seen.may_have_graph || is_leaf(tensor)? {
            true => Ok(tensor.clone().unbind()),
            false => self.alias(tensor),
        }
    }

    /// True if the bytes are a parameter's, which are in use for as long as the model lives.
    fn is_of_a_parameter(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        if self.is_parameter {
            return Ok(true);
        }
        let base = tensor.getattr(intern!(tensor.py(), "_base"))?;
        Ok(!base.is_none()
            && (self.objects.is_parameter(&base)
                || self.objects.address(&base).is_none() && is_of_a_parameter(&base)?))
    }

    fn pack(&self, tensor: &Bound<'_, PyAny>, seen: &Seen) -> PyResult<Saved> {
        let version = seen.version;
        // Most are small, so this comes first.
        if seen.size < LEAST || seen.device < 0 || self.is_of_a_parameter(tensor)? {
            return Ok(Saved { tensor: self.kept(tensor, seen)?, version, device: -1, id: 0 });
        }
        let described = described_of(seen);
        let stream = self.tensors.current_stream(seen.device);
        let tensor_of_ours = self.alias(tensor)?;
        recorded(tensor.py(), tensor_of_ours, version, seen.device, described, stream)
    }
}

/// Autograd saves a tensor.
#[pyfunction]
pub(super) fn pack(tensor: &Bound<'_, PyAny>) -> PyResult<Saved> {
    if let Some(plain) = Plain::of(tensor)
        && let Some(seen) = plain.tensors.look(plain.address)
    {
        return plain.pack(tensor, &seen);
    }
    pack_any(tensor)
}

/// A tensor of any class, or without a shim: every question is Python's.
fn pack_any(tensor: &Bound<'_, PyAny>) -> PyResult<Saved> {
    let py = tensor.py();
    let version = version_of(tensor)?;
    let Some((device, described)) = described(py, tensor)? else {
        return Ok(Saved { tensor: kept(py, tensor)?, version, device: -1, id: 0 });
    };
    let stream = stream_of(py, device)?;
    recorded(py, detached(py, tensor)?, version, device, described, stream)
}

/// A saved tensor with a record, if it gets one. Each save is an owner of the storage, by a tensor of its own: so it
/// is seen whether the program is another.
fn recorded(
    py: Python<'_>,
    tensor: Py<PyAny>,
    version: i64,
    device: i32,
    described: Tensor,
    stream: u64,
) -> PyResult<Saved> {
    let mut saved = Saved { tensor, version, device, id: 0 };
    saved.id =
        py.detach(|| control::save(device, described, stream)).map_err(PyRuntimeError::new_err)?;
    Ok(saved)
}

fn version_of(tensor: &Bound<'_, PyAny>) -> PyResult<i64> {
    tensor.getattr(intern!(tensor.py(), "_version"))?.extract()
}

fn is_leaf(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    tensor.getattr(intern!(tensor.py(), "is_leaf"))?.extract()
}

/// The handle of the present stream of a device, without Python where the shim is.
pub(super) fn present_stream(py: Python<'_>, device: i32) -> PyResult<u64> {
    match tensors::of_the_process() {
        Some(tensors) => Ok(tensors.current_stream(device)),
        None => stream_of(py, device),
    }
}

fn stream_of(py: Python<'_>, device: i32) -> PyResult<u64> {
    torch(py)?.current_stream.bind(py).call1((device,))?.extract()
}

/// True if the bytes are a parameter's, which are in use for as long as the model lives.
fn is_of_a_parameter(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = tensor.py();
    let parameter = torch(py)?.parameter.bind(py);
    if tensor.is_instance(parameter)? {
        return Ok(true);
    }
    let base = tensor.getattr(intern!(py, "_base"))?;
    Ok(!base.is_none() && base.is_instance(parameter)?)
}

/// The device of a tensor and what a heap needs to know of it. None if it is none that may go.
fn described(py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<Option<(i32, Tensor)>> {
    if !tensor.getattr(intern!(py, "is_cuda"))?.extract::<bool>()? {
        return Ok(None);
    }
    let Some(storages) = storages::of_the_process() else { return Ok(None) };
    let tensor_id: u64 = tensor.getattr(intern!(py, "_cdata"))?.extract()?;
    let Some((storage, size)) = storages.of_tensor(tensor_id) else { return Ok(None) };
    if size < LEAST || is_of_a_parameter(tensor)? {
        return Ok(None);
    }
    let address = storages.address(storage);
    let device: i32 = tensor.call_method0(intern!(py, "get_device"))?.extract()?;
    let dimensions: u64 = tensor.call_method0(intern!(py, "dim"))?.extract()?;
    let element: u64 = tensor.call_method0(intern!(py, "element_size"))?.extract()?;
    let kind = dimensions << 8 | element;
    // What is no number, while something traces, is not shown; and a nested tensor has no shape at all.
    let shape = tensor.getattr(intern!(py, "shape")).and_then(|shape| shape.extract::<Vec<u64>>());
    let shape = Shape::of(&shape.unwrap_or_default());
    Ok(Some((device, Tensor { storage, address, size, kind, shape })))
}

/// A large tensor of a GPU: which, what a heap needs to know of it, and whether it may have a graph. None for others.
pub(super) fn seen(
    py: Python<'_>,
    tensor: &Bound<'_, PyAny>,
) -> PyResult<Option<(i32, Tensor, bool)>> {
    if let Some(plain) = Plain::of(tensor) {
        let seen = plain.tensors.look(plain.address);
        let large = seen.filter(|seen| seen.size >= LEAST && seen.device >= 0);
        return Ok(large.map(|seen| (seen.device, described_of(&seen), seen.may_have_graph)));
    }
    let Some((device, described)) = described(py, tensor)? else { return Ok(None) };
    let has_graph = tensor.getattr(intern!(py, "requires_grad"))?.extract()?;
    Ok(Some((device, described, has_graph)))
}

/// What a heap needs to know of a tensor that was looked at.
fn described_of(seen: &Seen) -> Tensor {
    Tensor {
        storage: seen.storage,
        address: seen.address,
        size: seen.size,
        kind: seen.kind,
        shape: seen.shape,
    }
}

fn detached(py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    Ok(tensor.call_method0(intern!(py, "detach"))?.unbind())
}

/// What is kept of a tensor that has no record. A leaf itself, as PyTorch does: who exchanges the data of a parameter
/// between forward and backward finds it exchanged. Else the tensor without its graph, for that may hold what is kept.
fn kept(py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    match is_leaf(tensor)? {
        true => Ok(tensor.clone().unbind()),
        false => detached(py, tensor),
    }
}

/// Autograd uses a saved tensor.
#[pyfunction]
pub(super) fn unpack(py: Python<'_>, saved: &Bound<'_, Saved>) -> PyResult<Py<PyAny>> {
    let saved = saved.get();
    let tensor = saved.tensor.bind(py);
    // Looked up anew: who exchanges two tensors exchanges what their objects stand for.
    let plain = Plain::of(tensor);
    let version = match &plain {
        Some(plain) => plain.tensors.version(plain.address),
        None => version_of(tensor)?,
    };
    if version != saved.version {
        return Err(changed(tensor, saved.version, version));
    }
    if saved.id == 0 {
        return Ok(saved.tensor.clone_ref(py));
    }
    let (device, id) = (saved.device, saved.id);
    let stream = match &plain {
        Some(plain) => plain.tensors.current_stream(device),
        None => stream_of(py, device)?,
    };
    py.detach(|| control::use_saved(device, id, stream)).map_err(|error| error_of(py, error))?;
    // Autograd takes what needs no gradient (attention's log-sum-exp) as it is given: our own tensor would be no owner
    // that is seen, and its bytes could go before the kernel that reads them is queued.
    match &plain {
        Some(plain) if plain.tensors.look(plain.address).is_some() => plain.alias(tensor),
        _ => detached(py, tensor),
    }
}

/// The error that the program is given.
pub(super) fn error_of(py: Python<'_>, error: SavedError) -> PyErr {
    match error {
        SavedError::OutOfMemory(text) => match torch(py) {
            Ok(torch) => PyErr::from_type(torch.out_of_memory.bind(py).clone(), text),
            Err(error) => error,
        },
        SavedError::Other(text) => PyRuntimeError::new_err(text),
    }
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
