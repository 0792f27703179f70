"""Training under the hooks of swapping gives what it gives without. On the CPU: nothing goes."""

import ctypes
import functools
import importlib
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("girih._native", reason="the extension is not built")
torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from girih import _native, _process, _saved, _settings  # noqa: E402

# What Girih puts functions of its own in the place of.
REPLACED = ("_saved_tensors_hooks_disable", "_saved_tensors_hooks_enable")


def functions_of_torch():
    return [getattr(torch._C._autograd, name) for name in REPLACED]


@pytest.fixture
def replaced(monkeypatch):
    """Torch has its own functions again after a test."""
    for name, function in zip(REPLACED, functions_of_torch(), strict=True):
        monkeypatch.setattr(torch._C._autograd, name, function)


@pytest.fixture
def hooked(replaced):
    """The hooks of swapping, for as long as a test runs."""
    yield _saved.install(torch)
    torch._C._autograd._pop_saved_tensors_default_hooks()


@pytest.fixture
def called(replaced, monkeypatch):
    """A heap that calls for hooks at any time, and takes them away again.

    What is called runs in the main thread between any two of its instructions, as a heap's call
    does. Gives the hooks, and how often they came and went.
    """
    monkeypatch.setattr(_native, "wants_hooks", lambda: True)
    hooks, counts, is_over = _saved.Hooks(torch), {"set": 0, "taken": 0, "calls": 0}, []
    hooks.step_aside()

    def take_away():
        if hooks.are_innermost() and not hooks._here.is_busy and not hooks._is_looking:
            torch._C._autograd._pop_saved_tensors_default_hooks()
            counts["taken"] += 1

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    def come(_nothing):
        counts["calls"] += 1
        if hooks.are_innermost():
            take_away()
        else:
            hooks.set_if_wanted()
            counts["set"] += hooks.are_innermost()
        return 0

    def call():
        while not is_over:
            ctypes.pythonapi.Py_AddPendingCall(come, None)
            time.sleep(0.0001)

    thread = threading.Thread(target=call)
    thread.start()
    yield hooks, counts
    is_over.append(True)
    thread.join()
    time.sleep(0.001)
    take_away()
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


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


def transformed():
    """Gradients by transforms of functions, one within another, and their rows in one."""
    model = nn.Linear(4, 1)

    def run():
        def loss(weights, x):
            return torch.func.functional_call(model, weights, (x,)).tanh().sum()

        weights = dict(model.named_parameters())
        rows = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, torch.randn(5, 4))
        hessian = torch.func.hessian(lambda x: loss(weights, x))(torch.randn(4))
        model.weight.grad = rows["weight"].sum(0) + hessian.sum()
        model.bias.grad = rows["bias"].sum(0)

    return model, run


def own_hooks():
    """Hooks of the program's own: to the host, and of two kinds one within the other."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    hooks = torch.autograd.graph.saved_tensors_hooks

    def run():
        with torch.autograd.graph.save_on_cpu():
            loss = model(torch.randn(8, 16)).sum()
        with hooks(lambda t: (t,), lambda t: t[0]):
            more = model(torch.randn(8, 16))
            with hooks(lambda t: [t], lambda t: t[0]):
                more = more + model(torch.randn(8, 16))
        (loss + more.sum()).backward()

    return model, run


class Subclass(torch.Tensor):
    """A tensor of the program's own class."""


def of_a_class():
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1))

    def run():
        model(torch.randn(8, 16).as_subclass(Subclass)).sum().backward()

    return model, run


def compiled():
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1))

    def run():
        torch.compiler.reset()
        whole = torch.compile(model, backend="aot_eager")
        for _ in range(3):
            whole(torch.randn(8, 16)).sum().backward()

    return model, run


def compiled_with_transforms():
    """Regions with transforms in them, whose graphs run as they are or are made of operators."""
    model = nn.Linear(4, 1)

    def run():
        torch.compiler.reset()
        for backend in ("eager", "aot_eager"):

            @torch.compile(backend=backend, fullgraph=True)
            def penalty(x):
                slope = torch.func.grad(lambda y: model(y).tanh().sum())(x)
                value, pull = torch.func.vjp(lambda y: model(y).sin(), x)
                return (slope * pull(value)[0]).sum()

            for _ in range(2):
                penalty(torch.randn(5, 4)).backward()

    return model, run


PROGRAMS = [
    convolutions,
    attention,
    recomputed,
    twice,
    optimized,
    transformed,
    own_hooks,
    of_a_class,
    compiled,
    compiled_with_transforms,
]


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


@pytest.mark.parametrize("program", PROGRAMS)
def test_hooks_may_be_set_in_the_midst_of_anything(program, called):
    _, counts = called
    runs, until = 0, time.monotonic() + 3
    while (runs < 5 or min(counts.values()) < 20) and time.monotonic() < until:
        found = gradients(program)
        runs += 1
        both = zip(found, EXPECTED[program], strict=True)
        assert all(torch.equal(one, other) for one, other in both)
    assert counts["set"] > 0
    assert counts["taken"] > 0


def test_hooks_that_come_late_compile_nothing_anew(monkeypatch):
    torch.compiler.reset()
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(nn.Linear(4, 4), backend=backend)
    x = torch.randn(2, 4)
    compiled(x).sum().backward()
    monkeypatch.setattr(_native, "wants_hooks", lambda: True)
    hooks = _saved.Hooks(torch)
    hooks.set_if_wanted()
    assert hooks.are_innermost()
    try:
        compiled(x).sum().backward()
    finally:
        torch._C._autograd._pop_saved_tensors_default_hooks()
    assert len(graphs) == 1


def test_what_a_compiled_region_saves_is_seen_tensor_by_tensor():
    torch.compiler.reset()
    model, x = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1)), torch.randn(8, 16)
    compiled, kinds = torch.compile(model, backend="aot_eager"), []

    def pack(tensor):
        saved = _native.pack(tensor)
        kinds.append((tuple(tensor.shape), isinstance(tensor, nn.Parameter)))
        return saved

    compiled(x).sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(pack, _native.unpack):
        compiled(x).sum().backward()
    activations = [shape for shape, is_parameter in kinds if not is_parameter]
    assert activations.count((8, 16)) >= 2, kinds
    assert any(is_parameter for _, is_parameter in kinds), kinds


def test_another_thread_leaves_the_hooks_alone(monkeypatch):
    monkeypatch.setattr(_native, "wants_hooks", lambda: True)
    hooks, seen = _saved.Hooks(torch), []

    def work():
        hooks.set_if_wanted()
        seen.append(torch._C._autograd._top_saved_tensors_default_hooks(True))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None]


@pytest.mark.parametrize("options", [{"swap": "off"}, {"hooks": False}])
def test_off_sets_no_hooks_at_all_and_says_so_to_the_heaps(options, monkeypatch):
    settings = _settings.make("auto", options=options)
    assert not settings.swaps_at_the_edge
    assert '"swap": "off"' in settings.for_heaps(key="", torch="2.11.0")
    before = functions_of_torch()
    monkeypatch.setattr(_process._hooks, "install", lambda *_: None)
    monkeypatch.setattr(_process._integrations, "install", lambda *_: None)
    watch = _process._set_hooks(settings)
    assert watch.before_mark is None
    assert functions_of_torch() == before
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


@pytest.fixture
def swapping(monkeypatch):
    """The programs of the checks on a GPU."""
    folder = Path(__file__).resolve().parent.parent.parent / "gpu"
    if not folder.is_dir():
        pytest.skip("the checks on a GPU are not here")
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module("checks.swapping")


def test_the_programs_of_the_checks_give_the_same_gradients_under_hooks(swapping, request):
    size = (3, 16, 24)
    expected = swapping.digests("cpu", size=size)
    request.getfixturevalue("hooked")
    assert swapping.digests("cpu", size=size) == expected
    assert all(len(set(found)) == 1 for found in expected.values())


def gradient_after_exchange():
    """A parameter's data is exchanged between forward and backward, as sharding libraries do."""
    torch.manual_seed(1)
    weight, x = nn.Parameter(torch.randn(4, 4)), torch.randn(2, 4, requires_grad=True)
    output = torch.mm(x, weight)
    weight.data = torch.full((4, 4), 3.0)
    output.sum().backward()
    return x.grad


EXCHANGED = gradient_after_exchange()


@pytest.mark.usefixtures("hooked")
def test_a_parameter_whose_data_is_exchanged_is_found_exchanged_in_backward():
    assert torch.equal(EXCHANGED, torch.full((2, 4), 12.0)), "without hooks"
    assert torch.equal(gradient_after_exchange(), EXCHANGED)


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


def test_the_context_manager_that_dynamo_knows_stays_torchs_own(replaced):
    before, functions = torch.autograd.graph.disable_saved_tensors_hooks, functions_of_torch()
    _saved.Hooks(torch).step_aside()
    assert torch.autograd.graph.disable_saved_tensors_hooks is before
    for one, other in zip(functions_of_torch(), functions, strict=True):
        assert one is not other
        assert (one.__module__, one.__name__) == (other.__module__, other.__name__)


# In the process of the tests Dynamo comes first, with the programs above.
DYNAMO_COMES_LATE = """
import sys, torch
from girih import _native, _saved

_saved.install(torch)
assert "torch._dynamo" not in sys.modules
x = torch.randn(3)
whole = torch.compile(
    lambda x: torch.func.grad(lambda y: y.sin().sum())(x), backend="eager", fullgraph=True
)
assert torch.equal(whole(x), x.cos())
assert torch._C._autograd._top_saved_tensors_default_hooks(True)[0] is _native.pack
"""


def test_transforms_compile_where_dynamo_comes_after_the_hooks(python):
    result = python("-c", DYNAMO_COMES_LATE)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_region_with_a_transform_outlives_hooks_that_come_late(backend, replaced, monkeypatch):
    torch.compiler.reset()
    compiled = torch.compile(torch.func.grad(lambda y: y.sin().sum()), backend=backend)
    monkeypatch.setattr(_native, "wants_hooks", lambda: True)
    hooks, x = _saved.Hooks(torch), torch.randn(3)
    hooks.step_aside()
    assert torch.equal(compiled(x), x.cos())
    hooks.set_if_wanted()
    assert hooks.are_innermost()
    try:
        with torch.compiler.set_stance("fail_on_recompile"):
            assert torch.equal(compiled(x), x.cos())
        assert hooks.are_innermost()
    finally:
        torch._C._autograd._pop_saved_tensors_default_hooks()


def stack():
    """The hooks of this thread, the innermost first; where none may be set there are none."""
    autograd, found = torch._C._autograd, []
    while (top := autograd._top_saved_tensors_default_hooks(True)) is not None:
        found.append(top)
        autograd._pop_saved_tensors_default_hooks()
    for pair in reversed(found):
        autograd._push_saved_tensors_default_hooks(*pair)
    return [pack for pack, _ in found]


def test_hooks_are_back_once_when_the_outermost_allows_them(hooked):
    autograd, disabled = torch._C._autograd, torch.autograd.graph.disable_saved_tensors_hooks
    with disabled("one"):
        with disabled("two"):
            assert stack() == []
            with pytest.raises(RuntimeError, match="two"), torch.autograd.graph.save_on_cpu():
                pass
        assert autograd._saved_tensors_hooks_get_disabled_error_message() == "one"
        assert stack() == []
    assert stack() == [_native.pack]
    autograd._saved_tensors_hooks_enable()
    assert stack() == [_native.pack]


def test_nothing_is_set_while_hooks_are_disabled(replaced, monkeypatch):
    monkeypatch.setattr(_native, "wants_hooks", lambda: True)
    hooks = _saved.Hooks(torch)
    hooks.step_aside()
    with torch.autograd.graph.disable_saved_tensors_hooks("none of these"):
        hooks.set_if_wanted()
        assert stack() == []
    assert stack() == []
    hooks.set_if_wanted()
    assert stack() == [_native.pack]
    torch._C._autograd._pop_saved_tensors_default_hooks()


def test_a_heap_that_calls_between_two_steps_of_the_exchange_sets_nothing(hooked, monkeypatch):
    monkeypatch.setattr(_native, "wants_hooks", lambda: True)
    autograd = torch._C._autograd
    push = autograd._push_saved_tensors_default_hooks
    pop = autograd._pop_saved_tensors_default_hooks

    def pop_and_call():
        pop()
        hooked.set_if_wanted()

    def call_and_push(*pair):
        hooked.set_if_wanted()
        push(*pair)

    with monkeypatch.context() as patched:
        patched.setattr(autograd, "_pop_saved_tensors_default_hooks", pop_and_call)
        patched.setattr(autograd, "_push_saved_tensors_default_hooks", call_and_push)
        with torch.autograd.graph.disable_saved_tensors_hooks("none of these"):
            assert autograd._top_saved_tensors_default_hooks(True) is None
    assert stack() == [_native.pack]


def test_hooks_are_back_after_a_transform_that_raises(hooked):
    def fails(_x):
        raise ValueError("in the midst of it")

    with pytest.raises(ValueError, match="in the midst of it"):
        torch.func.grad(fails)(torch.randn(3))
    assert stack() == [_native.pack]


def test_hooks_wait_for_whoever_allows_them_after_a_graph_that_raises(hooked):
    """A compiled graph disables hooks and allows them by two calls, with nothing to catch."""
    autograd = torch._C._autograd
    autograd._saved_tensors_hooks_disable("a graph that raises has left this")
    assert torch.equal(torch.func.grad(lambda y: y.sin().sum())(torch.zeros(3)), torch.ones(3))
    assert stack() == []
    autograd._saved_tensors_hooks_enable()
    assert stack() == [_native.pack]


def test_what_was_aside_is_forgotten_where_the_engine_has_put_the_state_back(hooked):
    disable, enable = functions_of_torch()
    disable("a function of a backward pass that raises has left this")
    # As the engine does: the functions of this module do not hear of it.
    enable.__wrapped__()
    with torch.autograd.graph.save_on_cpu():
        with pytest.raises(RuntimeError, match="refused"):
            disable("refused")
        enable()
        assert len(stack()) == 1
        assert _native.pack not in stack()
    hooked.set()


@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_programs_own_hooks_are_refused_by_transforms_as_ever(is_compiled, hooked):
    torch.compiler.reset()
    slope = torch.func.grad(lambda y: y.sin().sum())
    if is_compiled:
        slope = torch.compile(slope, backend="eager")
    with torch.autograd.graph.save_on_cpu():
        with pytest.raises(Exception, match="don't yet support saved tensor hooks"):
            slope(torch.randn(3))
        # Dynamo leaves them disabled, with hooks and without.
        torch._C._autograd._saved_tensors_hooks_enable()
        assert len(stack()) == 2
    assert stack() == [_native.pack]


@pytest.mark.skipif(
    "fail_if_non_empty" not in functions_of_torch()[0].__doc__, reason="this torch always looks"
)
def test_hooks_that_are_disabled_without_a_look_at_the_stack_are_aside_too(hooked):
    autograd = torch._C._autograd
    autograd._saved_tensors_hooks_disable("specialized", fail_if_non_empty=False)
    assert stack() == []
    autograd._saved_tensors_hooks_enable()
    assert stack() == [_native.pack]


def test_threads_have_each_their_own(hooked):
    autograd, seen = torch._C._autograd, []

    def work():
        with torch.autograd.graph.disable_saved_tensors_hooks("in this thread"):
            seen.append(stack())
        seen.append(stack())

    def work_in_another():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    work_in_another()
    assert stack() == [_native.pack]
    with torch.autograd.graph.disable_saved_tensors_hooks("in the main thread"):
        work_in_another()
        assert autograd._saved_tensors_hooks_get_disabled_error_message() == "in the main thread"
    assert seen == [[]] * 4
    assert stack() == [_native.pack]
