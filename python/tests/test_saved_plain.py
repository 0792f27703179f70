"""The hooks of swapping where they look at tensors without Python, as under the shim."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("girih._native", reason="the extension is not built")
if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from girih import GirihError, _toolchain

HERE = Path(__file__).parent

CASES = '''
"""Run by test_saved_plain.py, in a process of its own."""
import gc
import weakref

import pytest
import torch

from girih import _native


class Asked(torch.overrides.TorchFunctionMode):
    """Notes what is asked of tensors in Python."""

    def __init__(self):
        self.names = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(function)
        return function(*args, **(kwargs or {}))


def test_what_has_no_graph_is_asked_nothing_in_python():
    tensor, sample = torch.randn(3), torch.randn(3)
    # Where the first tensor of the process is of another class, it shows nothing.
    own = type("Own", (torch.Tensor,), {})
    for _ in range(100):
        _native.pack(torch.randn(3).as_subclass(own))
    _native.pack(sample)
    with Asked() as asked:
        _native.unpack(_native.pack(tensor))
    assert asked.names == []
    with Asked() as asked:
        tensor.detach()
    assert len(asked.names) == 1, "the mode sees what is asked"


def test_a_leaf_is_kept_itself_and_the_rest_without_its_graph():
    leaf, parameter = torch.randn(3), torch.nn.Parameter(torch.randn(3))
    wanted = torch.randn(3, requires_grad=True)
    for tensor in (leaf, parameter, wanted, leaf * 2):
        assert _native.unpack(_native.pack(tensor)) is tensor
    product = parameter * 2
    saved = _native.pack(product)
    found = _native.unpack(saved)
    assert found is not product
    assert found.grad_fn is None
    assert not found.requires_grad
    assert type(found) is torch.Tensor
    assert found.data_ptr() == product.data_ptr()
    assert (found.shape, found.stride()) == (product.shape, product.stride())
    assert _native.unpack(saved) is found, "a second backward pass gets the same"


@pytest.mark.parametrize("is_leaf", [True, False])
def test_a_change_in_place_is_seen_through_every_view(is_leaf):
    tensor = torch.randn(4, 4) if is_leaf else torch.nn.Parameter(torch.randn(4, 4)) * 2
    saved = _native.pack(tensor)
    with torch.no_grad():
        tensor[1:].add_(1)
    with pytest.raises(RuntimeError, match="is at version 1; expected version 0 instead"):
        _native.unpack(saved)


def test_a_change_of_what_was_unpacked_is_one_of_the_tensor():
    tensor = torch.nn.Parameter(torch.randn(4)) * 2
    saved = _native.pack(tensor)
    _native.unpack(saved).add_(1)
    assert tensor._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        _native.unpack(saved)


def test_nothing_that_was_saved_keeps_a_graph_that_nobody_runs():
    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.note = Note()
            notes.append(weakref.ref(ctx.note))
            result = x.exp()
            ctx.save_for_backward(result)
            return result

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0]

    class Note:
        pass

    notes = []
    torch._C._autograd._push_saved_tensors_default_hooks(_native.pack, _native.unpack)
    try:
        Noted.apply(torch.randn(3, requires_grad=True))
        Noted.apply(torch.randn(3, requires_grad=True)).sum().backward()
    finally:
        torch._C._autograd._pop_saved_tensors_default_hooks()
    gc.collect()
    assert [note() for note in notes] == [None, None]


def test_exchanged_tensors_are_found_exchanged():
    one, other = torch.zeros(3), torch.ones(3)
    other.add_(1)
    saved = _native.pack(one)
    torch.utils.swap_tensors(one, other)
    with pytest.raises(RuntimeError, match="is at version 1"):
        _native.unpack(saved)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3).as_subclass(type("Own", (torch.Tensor,), {})),
        lambda: torch.randn(3, 3).to_sparse(),
        lambda: torch.randn(3, device="meta"),
        lambda: torch.randn(()),
        lambda: torch.randn(1, 1, 1, 1, 1, 1, 1, 1, 1, 2),
        lambda: torch.tensor([True]),
        lambda: torch.empty(0),
        lambda: torch.nn.Buffer(torch.randn(3)),
    ],
)
def test_tensors_of_any_kind_come_back(make):
    tensor = make()
    assert _native.unpack(_native.pack(tensor)) is tensor
    if tensor.is_floating_point() and tensor.numel():
        product = tensor.requires_grad_() * 1
        found = _native.unpack(_native.pack(product))
        assert type(found) is type(product)
        assert found.grad_fn is None
'''


def test_it_is_as_in_python_and_gradients_are_the_same(tmp_path):
    try:
        _toolchain.find_compiler()
    except GirihError as error:
        pytest.skip(str(error))
    cases = tmp_path / "test_cases.py"
    cases.write_text(CASES)
    shim = tmp_path / "shim"
    shim.mkdir()
    done = subprocess.run(
        [
            *(sys.executable, str(HERE / "lent.py"), str(shim), str(cases)),
            *(str(HERE / "test_saved_torch.py"), "-q", "-p", "no:cacheprovider"),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
