//! States of optimizers: taken out of an optimizer's hands between its steps.
//!
//! ```text
//!  optimizer.__dict__        in a step                    between steps
//!                            state ──► {p: {...}}         a key of Girih's ──► sealed ──► {p: {...}}, records
//! ```
//!
//! As long as the dictionary is not in its place, `optimizer.state` is Girih's: see `_states.py`. A state may go if the
//! dictionaries and the optimizer's own reference are the only way to it. All of this is looked at, and the dictionary
//! taken out, in one piece in which no other thread has Python: [`seal`] runs no code of Python's.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use girih_torch::control::{self, OtherStates, Saved as Tensor};
use girih_torch::swap::LEAST;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use pyo3::{ffi, intern};

use crate::saved::{error_of, present_stream, seen};

/// References to an object that a dictionary has, while a loop goes over that dictionary.
const IN_A_LOOP: u32 = 2;

/// The records of an optimizer's states, by device, from one step to the next.
#[pyclass(frozen, module = "girih._native")]
pub(super) struct Records {
    devices: Vec<i32>,
    /// The ids on each of them. None once they are given up.
    ids: Mutex<Vec<Vec<u64>>>,
}

#[pymethods]
impl Records {
    /// The states are there afterwards, for what the present streams do from now on: of the optimizer's step, or
    /// (`is_step` is false) of any stream. Out of memory is torch's own error; it can be tried again.
    fn bring(&self, py: Python<'_>, is_step: bool) -> PyResult<()> {
        let streams: PyResult<Vec<u64>> =
            self.devices.iter().map(|&device| present_stream(py, device)).collect();
        let streams = streams?;
        py.detach(|| {
            let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
            for (at, own) in ids.iter().enumerate() {
                control::use_states(self.devices[at], own, streams[at], is_step)?;
            }
            ids.clear();
            Ok(())
        })
        .map_err(|error| error_of(py, error))
    }

    /// Nobody will ask for the states any more: to be called before they are freed.
    fn give_up(&self) {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        for (device, own) in self.devices.iter().zip(std::mem::take(&mut *ids)) {
            for id in own {
                // Nobody is there to be told. What is refused is a wait, which the program's next call meets too.
                let _ = control::drop_saved(*device, id);
            }
        }
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// True once a heap swaps.
#[pyfunction]
pub(super) fn wants_states() -> bool {
    control::wants_states()
}

/// A large state.
struct Large {
    tensor: Py<PyAny>,
    /// The tensor that has it, where it is a part.
    whole: Option<Py<PyAny>>,
    device: i32,
    /// None if it is a tensor of which nothing more can be told.
    described: Option<Tensor>,
    is_shared: bool,
}

/// What is given to the heap of a device.
#[derive(Clone, Default)]
struct Offer {
    states: Vec<Tensor>,
    others: OtherStates,
}

/// Takes the dictionary `state` out of an optimizer's `instance` dictionary, if nobody else has it and some of what is
/// in it may go then. In its place is `sealed`, under `key`, which has the dictionary as `state` and its `records`. Gives
/// whether it was done. `sharded` is the class of tensors of which each process has a part, if there are any.
#[pyfunction]
#[pyo3(signature = (instance, key, sealed, sharded = None))]
pub(super) fn seal(
    py: Python<'_>,
    instance: &Bound<'_, PyDict>,
    key: &Bound<'_, PyAny>,
    sealed: &Bound<'_, PyAny>,
    sharded: Option<&Bound<'_, PyType>>,
) -> PyResult<bool> {
    let place = intern!(py, "state");
    let Some(found) = instance.get_item(place)? else { return Ok(false) };
    if !is_plain_dict(&found)? {
        return Ok(false);
    }
    let state = found.cast_into::<PyDict>()?;
    // What looks at tensors may run code of Python's.
    let large = look(&state, sharded)?;
    if large.is_empty() {
        return Ok(false);
    }
    let devices: BTreeSet<i32> = large.values().map(|found| found.device).collect();
    let devices: Vec<i32> = devices.into_iter().collect();
    let streams: PyResult<Vec<u64>> =
        devices.iter().map(|&device| present_stream(py, device)).collect();
    let streams = streams?;
    let records = Records { devices: devices.clone(), ids: Mutex::new(Vec::new()) };
    let records = Py::new(py, records)?;
    // From here on nothing does, until the dictionary is out.
    let offers = offers(instance, &state, &large)?;
    drop(large);
    sealed.setattr(intern!(py, "state"), &state)?;
    sealed.setattr(intern!(py, "records"), &records)?;
    instance.set_item(key, sealed)?;
    instance.del_item(place)?;
    let records = records.get();
    let offered: Result<bool, String> = py.detach(|| {
        // Whoever asks for them meanwhile waits here.
        let mut ids = records.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_any = false;
        for (&device, stream) in devices.iter().zip(streams) {
            let Offer { states, others } = offers.get(&device).cloned().unwrap_or_default();
            let own = control::offer_states(device, &states, others, stream)?;
            is_any |= own.iter().any(|id| *id != 0);
            ids.push(own);
        }
        Ok(is_any)
    });
    if !matches!(offered, Ok(true)) {
        records.give_up();
        if instance.get_item(key)?.is_some_and(|now| now.is(sealed)) {
            instance.set_item(place, &state)?;
            instance.del_item(key)?;
        }
    }
    offered.map_err(PyRuntimeError::new_err)
}

/// How many references there are to an object.
fn references(object: &Bound<'_, PyAny>) -> u32 {
    // SAFETY: the object lives, and its count is not written to as long as Python's lock is held.
    #[expect(unsafe_code, reason = "Python tells it to C alone")]
    let count = unsafe { ffi::Py_REFCNT(object.as_ptr()) };
    // Since 3.14 the upper half of the word has flags.
    count as u32
}

/// True for a `dict` or a `defaultdict`, of no class of the program's.
fn is_plain_dict(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let class = object.get_type();
    if class.is(object.py().get_type::<PyDict>()) {
        return Ok(true);
    }
    let py = object.py();
    Ok(class.is(py.import("collections")?.getattr(intern!(py, "defaultdict"))?))
}

/// What is known of torch.
struct Torch<'py> {
    tensor: Bound<'py, PyAny>,
    weak_references: Bound<'py, PyAny>,
    /// How many owners a tensor has of which there is one reference.
    owners: u64,
}

impl<'py> Torch<'py> {
    fn of(py: Python<'py>) -> PyResult<Torch<'py>> {
        let torch = py.import("torch")?;
        let sample = torch.getattr("empty")?.call1((0,))?;
        Ok(Torch {
            tensor: torch.getattr("Tensor")?,
            weak_references: py.import("weakref")?.getattr("getweakrefcount")?,
            owners: owners(&sample)?,
        })
    }
}

/// How many in C++ and Python have a tensor, as its class counts them.
fn owners(tensor: &Bound<'_, PyAny>) -> PyResult<u64> {
    tensor.call_method0(intern!(tensor.py(), "_use_count"))?.extract()
}

/// The large states of an optimizer, by the addresses of what its dictionaries have.
fn look(
    state: &Bound<'_, PyDict>,
    sharded: Option<&Bound<'_, PyType>>,
) -> PyResult<HashMap<usize, Large>> {
    let mut large = HashMap::new();
    let torch = Torch::of(state.py())?;
    // Of lists of their own: what is looked at may change meanwhile.
    for own in state.values() {
        let Ok(own) = own.cast_into_exact::<PyDict>() else { continue };
        for value in own.values() {
            if let Some(found) = look_at(&value, &torch, sharded)? {
                large.insert(value.as_ptr() as usize, found);
            }
        }
    }
    Ok(large)
}

fn look_at(
    value: &Bound<'_, PyAny>,
    torch: &Torch<'_>,
    sharded: Option<&Bound<'_, PyType>>,
) -> PyResult<Option<Large>> {
    let py = value.py();
    let class = value.get_type();
    let is_whole = class.is(&torch.tensor);
    if !is_whole && !value.is_instance(&torch.tensor)? {
        return Ok(None);
    }
    let (mut tensor, mut is_part) = (value.clone(), false);
    if sharded.is_some_and(|sharded| class.is(sharded)) {
        tensor = value.getattr(intern!(py, "_local_tensor"))?;
        is_part = tensor.get_type().is(&torch.tensor);
    }
    if !is_whole && !is_part {
        // Of another class, whose words may be anything.
        return Ok(look_at_other(value).unwrap_or(None));
    }
    let Some((device, described, has_graph)) = seen(py, &tensor)? else { return Ok(None) };
    let has = |tensor: &Bound<'_, PyAny>| -> PyResult<bool> {
        let weak: u64 = torch.weak_references.call1((tensor,))?.extract()?;
        Ok(weak > 0 || owners(tensor)? != torch.owners)
    };
    let is_shared = has_graph || has(&tensor)? || is_part && has(value)?;
    let whole = is_part.then(|| value.clone().unbind());
    let tensor = tensor.unbind();
    Ok(Some(Large { tensor, whole, device, described: Some(described), is_shared }))
}

fn look_at_other(value: &Bound<'_, PyAny>) -> PyResult<Option<Large>> {
    let py = value.py();
    let is_cuda: bool = value.getattr(intern!(py, "is_cuda"))?.extract()?;
    let bytes: u64 = value.getattr(intern!(py, "nbytes"))?.extract()?;
    if !is_cuda || bytes < LEAST {
        return Ok(None);
    }
    let device = value.call_method0(intern!(py, "get_device"))?.extract()?;
    let tensor = value.clone().unbind();
    Ok(Some(Large { tensor, whole: None, device, described: None, is_shared: false }))
}

/// What is offered to each device. No code of Python's runs in this.
fn offers(
    instance: &Bound<'_, PyDict>,
    state: &Bound<'_, PyDict>,
    large: &HashMap<usize, Large>,
) -> PyResult<BTreeMap<i32, Offer>> {
    let mut offers: BTreeMap<i32, Offer> = BTreeMap::new();
    // The instance's, and ours.
    let now = instance.get_item(intern!(state.py(), "state"))?;
    let is_there = now.is_some_and(|now| now.is(state));
    let is_sole = is_there && references(state) == 2;
    for (_, own) in state.iter() {
        let is_sole = is_sole && references(&own) == IN_A_LOOP;
        let Ok(own) = own.cast_into_exact::<PyDict>() else { continue };
        for (_, value) in own.iter() {
            let Some(found) = large.get(&(value.as_ptr() as usize)) else { continue };
            let offer = offers.entry(found.device).or_default();
            let Some(described) = found.described else {
                offer.others.unseen += 1;
                continue;
            };
            // And the one that keeps it alive here.
            let is_sole = is_sole
                && !found.is_shared
                && references(&value) == IN_A_LOOP + 1
                && (found.whole.is_none() || references(found.tensor.bind(value.py())) == 2);
            match is_sole {
                true => offer.states.push(described),
                false => offer.others.shared += 1,
            }
        }
    }
    // The largest go first.
    for offer in offers.values_mut() {
        offer.states.sort_by_key(|state| std::cmp::Reverse(state.size));
    }
    Ok(offers)
}
