"""Training under the hooks of swapping gives what it gives without. On the CPU: nothing goes."""

import functools

import pytest

pytest.importorskip("girih._native", reason="the extension is not built")
torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from girih import _native, _saved  # noqa: E402


@pytest.fixture
def hooked():
    """The hooks of swapping, for as long as a test runs."""
    original = torch.autograd.graph.disable_saved_tensors_hooks
    _saved.install(torch)
    yield
    torch._C._autograd._pop_saved_tensors_default_hooks()
    torch.autograd.graph.disable_saved_tensors_hooks = original


def train(model, make_input):
    for _ in range(2):
        model(make_input()).float().pow(2).mean().backward()


def convolutions():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(), nn.MaxPool2d(2)
    )
    return model, functools.partial(train, model, lambda: torch.randn(4, 3, 16, 16))


def attention():
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return model, functools.partial(train, model, lambda: torch.randn(2, 7, 32))


def recomputed():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.2)) for _ in range(3)])

    def run():
        for is_reentrant in (False, True):
            x = torch.randn(8, 32, requires_grad=True)
            for layer in model:
                x = checkpoint(layer, x, use_reentrant=is_reentrant)
            x.sum().backward()

    return model, run


def twice():
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))

    def run():
        x = torch.randn(8, 32, requires_grad=True)
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.norm(2, dim=1).mean().backward()
        loss = model(torch.randn(8, 32)).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    return model, run


def optimized():
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters())

    def run():
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.randn(8, 32)).float().sum()
            loss.backward()
            optimizer.step()

    return model, run


PROGRAMS = [convolutions, attention, recomputed, twice, optimized]


def gradients(program):
    torch.manual_seed(1)
    model, run = program()
    torch.manual_seed(2)
    run()
    return [parameter.grad for parameter in model.parameters()]


# Before the hooks are set, for they stay in the thread.
EXPECTED = {program: gradients(program) for program in PROGRAMS}


@pytest.mark.usefixtures("hooked")
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_are_equal_to_the_bit(program):
    found = gradients(program)
    assert found
    assert all(torch.equal(one, other) for one, other in zip(found, EXPECTED[program], strict=True))


@pytest.mark.usefixtures("hooked")
def test_a_change_in_place_is_the_error_that_it_is_without_hooks():
    weights = torch.randn(4, requires_grad=True)
    exponentials = (2 * weights).exp()
    exponentials.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        exponentials.sum().backward()


@pytest.mark.usefixtures("hooked")
def test_transforms_of_functions_work_and_the_hooks_are_back_afterwards():
    x = torch.randn(3)
    assert torch.equal(torch.func.grad(lambda y: y.sin().sum())(x), x.cos())
    innermost = torch._C._autograd._top_saved_tensors_default_hooks(True)
    assert innermost[0] is _native.pack
