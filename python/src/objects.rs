//! The objects that Python has of tensors, and the `c10::TensorImpl` behind each.
//!
//! ```text
//!  torch.Tensor in Python      [ Python's head | at::Tensor, one pointer | hooks ... ]
//!                                                   └──► c10::TensorImpl
//! ```
//!
//! `tensor._cdata` is that pointer, as a number of Python. It is read in its place instead, which is looked for once, in
//! two tensors of which the number is known: releases of torch and builds of Python differ in it.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use pyo3::{ffi, intern};

/// Words of an object that are searched at most. The pointer comes right behind the head, of two to four.
const WORDS_MAX: usize = 8;

/// How often it is tried to find the place. In the midst of a trace it may be nowhere, and later it is.
const TRIALS: u32 = 16;

/// Where the pointer is.
pub(crate) struct Objects {
    tensor: Py<PyType>,
    parameter: Py<PyType>,
    /// In words.
    place: usize,
}

static OF_THE_PROCESS: PyOnceLock<Objects> = PyOnceLock::new();

impl Objects {
    /// Those of the process. The first tensor that is asked for shows where it is; none if it has not been seen yet.
    #[inline]
    pub(crate) fn of_the_process(tensor: &Bound<'_, PyAny>) -> Option<&'static Objects> {
        let py = tensor.py();
        match OF_THE_PROCESS.get(py) {
            Some(objects) => Some(objects),
            None => Objects::find(tensor),
        }
    }

    #[cold]
    fn find(tensor: &Bound<'_, PyAny>) -> Option<&'static Objects> {
        static TRIED: AtomicU32 = AtomicU32::new(0);
        if TRIED.load(Ordering::Relaxed) >= TRIALS {
            return None;
        }
        let [class, parameter] = classes(tensor.py()).ok()?;
        // One of another class shows nothing, and however many there are, a plain one may come.
        if !is_exactly(tensor, &class) && !is_exactly(tensor, &parameter) {
            return None;
        }
        TRIED.fetch_add(1, Ordering::Relaxed);
        OF_THE_PROCESS.get_or_try_init(tensor.py(), || Objects::of(tensor, class, parameter)).ok()
    }

    /// From two tensors that are made of one.
    fn of(
        sample: &Bound<'_, PyAny>,
        tensor: Py<PyType>,
        parameter: Py<PyType>,
    ) -> PyResult<Objects> {
        let py = sample.py();
        let bytes: usize = tensor.bind(py).getattr("__basicsize__")?.extract()?;
        let words = (bytes / size_of::<usize>()).min(WORDS_MAX);
        let mut places: Vec<usize> = (0..words).collect();
        for sample in [sample.getattr("data")?, sample.getattr("data")?] {
            if !is_exactly(&sample, &tensor) {
                return Err(PyTypeError::new_err("it is of another class"));
            }
            let wanted: usize = sample.getattr(intern!(py, "_cdata"))?.extract()?;
            places.retain(|&place| word(&sample, place) == wanted);
        }
        match places[..] {
            [place] => Ok(Objects { tensor, parameter, place }),
            _ => Err(PyTypeError::new_err("tensors have no one place for what they stand for")),
        }
    }

    /// True for a parameter, of no class derived from it.
    #[inline]
    pub(crate) fn is_parameter(&self, object: &Bound<'_, PyAny>) -> bool {
        is_exactly(object, &self.parameter)
    }

    /// The address of the `c10::TensorImpl` of a tensor or a parameter; none for other objects, those of derived
    /// classes among them.
    #[inline]
    pub(crate) fn address(&self, object: &Bound<'_, PyAny>) -> Option<u64> {
        (is_exactly(object, &self.tensor) || self.is_parameter(object))
            .then(|| word(object, self.place) as u64)
    }
}

/// `torch.Tensor` and `torch.nn.Parameter`.
fn classes(py: Python<'_>) -> PyResult<[Py<PyType>; 2]> {
    let torch = py.import("torch")?;
    let tensor = torch.getattr("Tensor")?.cast_into::<PyType>()?;
    let parameter = torch.getattr("nn")?.getattr("Parameter")?.cast_into::<PyType>()?;
    Ok([tensor.unbind(), parameter.unbind()])
}

#[inline]
fn is_exactly(object: &Bound<'_, PyAny>, class: &Py<PyType>) -> bool {
    object.get_type_ptr() == class.as_ptr().cast::<ffi::PyTypeObject>()
}

/// A word of a tensor or a parameter.
#[inline]
fn word(object: &Bound<'_, PyAny>, place: usize) -> usize {
    // SAFETY: callers have seen that the object is exactly of a class whose objects have more words than this, and it
    // lives and is not written to as long as Python's lock is held; a word may be any number.
    #[expect(unsafe_code, reason = "Python has the word only as an object of its own")]
    unsafe {
        object.as_ptr().cast::<usize>().add(place).read()
    }
}
