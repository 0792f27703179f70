"""Which states of torch's own optimizers may go, by the counts of torch and Python themselves.

On the CPU: what looks at tensors takes each for one of a simulated GPU, and no byte moves.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("girih._native", reason="the extension is not built")
if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

HERE = Path(__file__).parent

CASES = '''
"""Run by test_states_counts.py, in a process of its own."""
import ctypes
import gc
import importlib
import sys
import weakref

import pytest
import torch
import simulated
from torch import nn

from girih import _native, _states

MIB = 1 << 20


class Seen(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("storage", "size", "address")),
        ("version", ctypes.c_int64),
        ("device", ctypes.c_int32),
        ("element_size", ctypes.c_uint32),
        ("dimensions", ctypes.c_uint32),
        ("may_have_graph", ctypes.c_bool),
        ("shape", ctypes.c_uint64 * 8),
    )


LOOK = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_uint64, ctypes.POINTER(Seen))
VERSION = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64)
SHARE = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)
STREAM = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_int32)


def prepare():
    """A simulated GPU, on which every tensor that is looked at has 4 MiB."""
    names = "torch", "torch.optim.optimizer"
    own = {name: importlib.import_module(name) for name in names}
    gpu = simulated.Gpu(1 << 16, gpu_budget=1 << 35, host_budget=512 * MIB)
    sys.modules.update(own)
    by_tensor = {}

    def look(tensor, seen):
        if tensor not in by_tensor:
            storage = gpu.next = gpu.next + 1
            gpu.storages[storage] = [1, gpu.allocate(4), 4 * MIB]
            by_tensor[tensor] = storage
        owners, address, size = gpu.storages[by_tensor[tensor]]
        found = seen[0]
        found.storage, found.size, found.address = by_tensor[tensor], size, address
        found.device, found.element_size, found.dimensions = 0, 4, 1
        found.may_have_graph = False
        return True

    functions = LOOK(look), VERSION(lambda _: 0), SHARE(lambda *_: None), STREAM(lambda _: 0)
    gpu.symbols.girih_set_tensors(*functions)
    return gpu, functions


GPU, FUNCTIONS = prepare()
# The heap is there with the first request.
GPU.free(GPU.allocate(1))
STATES = _states.install(torch)


def swap():
    return GPU.stats()["swap"]


def make(kind=torch.optim.AdamW, **more):
    parameters = [nn.Parameter(torch.randn(4)) for _ in range(3)]
    optimizer = kind(parameters, lr=0.1, **more)

    def step():
        optimizer.zero_grad()
        sum((parameter * parameter).sum() for parameter in parameters).backward()
        optimizer.step()

    step()
    step()
    return optimizer, parameters, step


@pytest.fixture(autouse=True)
def clean():
    gc.collect()
    assert swap()["states"] == 0, "an optimizer has left its records"
    yield
    gc.collect()


@pytest.mark.parametrize(
    ("kind", "more", "each"),
    [
        (torch.optim.AdamW, {}, 3),
        (torch.optim.AdamW, {"foreach": True}, 3),
        (torch.optim.AdamW, {"fused": True}, 3),
        (torch.optim.Adam, {"amsgrad": True}, 4),
        (torch.optim.SGD, {"momentum": 0.9}, 1),
        (torch.optim.Adagrad, {}, 2),
        (torch.optim.RMSprop, {"momentum": 0.5}, 3),
    ],
)
def test_all_states_that_only_the_optimizer_has_are_offered(kind, more, each):
    shared = swap()["states_shared"]
    optimizer, parameters, step = make(kind, **more)
    assert swap()["states"] == 3 * each
    assert swap()["states_shared"] == shared
    assert "state" not in vars(optimizer)
    assert len(optimizer.state) == 3
    assert swap()["states"] == 0


def one(optimizer, parameters):
    return optimizer.state[parameters[0]]["exp_avg"]


WAYS = {
    "the tensor": (one, 1),
    "a list of it": (lambda *own: [one(*own)], 1),
    "a weak reference": (lambda *own: weakref.ref(one(*own)), 1),
    "a loop over the states": (lambda optimizer, _: iter(optimizer.state.items()), 9),
    "a loop over one": (lambda optimizer, ps: iter(optimizer.state[ps[0]].items()), 3),
    "a dictionary": (lambda optimizer, ps: optimizer.state[ps[0]], 3),
    "all of them": (lambda optimizer, _: optimizer.state, 9),
    "what is saved": (lambda optimizer, _: optimizer.state_dict(), 9),
    "a graph": (lambda *own: (nn.Parameter(torch.ones(4)) * one(*own)), 1),
    "a graph's own": (lambda *own: torch.autograd.graph.get_gradient_edge(
        nn.Parameter(torch.ones(4)) * one(*own)), 1),
    "a generator that stands in it": (lambda *own: started(one(*own)), 1),
}


def started(tensor):
    def wait():
        yield tensor

    going = wait()
    next(going)
    return going


@pytest.mark.parametrize("way", WAYS)
def test_whoever_has_a_way_to_states_keeps_these_and_no_others(way):
    take, count = WAYS[way]
    optimizer, parameters, step = make()
    held = take(optimizer, parameters)
    shared = swap()["states_shared"]
    step()
    assert swap()["states"] == 9 - count
    assert swap()["states_shared"] == shared + count
    del held
    gc.collect()
    optimizer.state
    step()
    assert swap()["states"] == 9


def test_an_exception_that_is_kept_keeps_what_its_frames_have():
    optimizer, parameters, step = make()

    def broken(state):
        moment = next(iter(state.values()))["exp_avg"]
        raise ValueError(moment.shape)

    try:
        broken(optimizer.state)
    except ValueError as error:
        caught = error
    step()
    assert swap()["states"] < 9
    del caught
    optimizer.state
    step()
    assert swap()["states"] == 9


def test_a_class_of_the_programs_own_is_counted():
    optimizer, parameters, step = make()
    own = type("Own", (torch.Tensor,), {})
    optimizer.state[parameters[0]]["exp_avg"] = torch.zeros(4).as_subclass(own)
    step()
    assert swap()["states"] == 8


def test_another_dictionary_is_not_taken_for_torchs():
    class Noted(dict):
        pass

    optimizer, parameters, step = make()
    state = optimizer.state
    optimizer.state = Noted(state)
    del state
    step()
    assert swap()["states"] == 0
    optimizer.state = {p: Noted(own) for p, own in optimizer.state.items()}
    step()
    assert swap()["states"] == 0


def test_two_optimizers_that_share_their_states_keep_them():
    optimizer, parameters, step = make()
    twin = torch.optim.AdamW(parameters)
    twin.state = optimizer.state
    step()
    assert swap()["states"] == 0
    assert twin.state is optimizer.state


def test_a_mode_that_sees_every_call_changes_nothing():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    optimizer, parameters, step = make()
    with Mode():
        step()
        assert swap()["states"] == 9
        assert optimizer.state is optimizer.state
'''


def test_who_else_has_states_is_seen(tmp_path):
    cases = tmp_path / "test_cases.py"
    cases.write_text(CASES)
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(cases), "-q", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-3000:]
