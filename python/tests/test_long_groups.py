"""What comes from different operators is put together in turns, and what is not known is seen."""

import contextlib
import ctypes
import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from long_layers import WIDTH, Model, assert_same, check, gradients, ids  # noqa: E402
from torch import nn  # noqa: E402

import girih  # noqa: E402
from girih._long import api, compare, trace  # noqa: E402
from girih._long.call import Call  # noqa: E402
from girih._long.layer import Layer  # noqa: E402
from girih._long.learn import learn as run_again  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class Products(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts products of matrices."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        is_product = func.name() in ("aten::mm", "aten::addmm", "aten::bmm")
        self.count += is_product and args[0].device.type != "meta"
        return func(*args, **(kwargs or {}))


def groups(model, layer=0):
    """How many there are of each way through a layer."""
    return [len(it.groups) for it in api.of(model).layers[layer].traces.values()]


def report(model, layer=0):
    return girih.long_context_report(model)["layers"][layer]


@pytest.mark.parametrize("alpha", [0, 0.5, "products"])
def test_a_layer_is_put_together_in_turns_and_nothing_is_computed_twice(monkeypatch, alpha):
    model, data = Model(layers=1), ids(tokens=512)
    counts, replays, grads = [], [], []
    for part in (2.0, 0.1):
        monkeypatch.setattr(trace, "GROUP_LEAST", part)
        girih.long_context(model, alpha=alpha)
        gradients(model, data)
        loss = model(data).pow(2).mean()
        before = report(model)["replays"]
        with Products() as products:
            loss.backward()
        counts.append(products.count)
        replays.append(report(model)["replays"] - before)
        grads.append([it.grad for it in model.parameters()])
        assert report(model)["astray"] == 0
    assert replays[0] == 1
    assert replays[1] >= 2
    # In parts no product runs for nothing, and none twice.
    assert counts[1] <= counts[0]
    assert_same(*grads)


def test_the_first_half_of_a_layer_is_not_there_while_the_second_goes_backward(monkeypatch):
    model, data = Model(layers=1), ids(tokens=512)
    most = {}
    put_together = Call._put_together_group

    def watched(self, *args):
        put_together(self, *args)
        there = sum(it.nbytes for it in self.put_together.values())
        most[part] = max(most.get(part, 0), there)

    monkeypatch.setattr(Call, "_put_together_group", watched)
    for part in (2.0, 0.1):
        monkeypatch.setattr(trace, "GROUP_LEAST", part)
        girih.long_context(model, alpha=0)
        for _ in range(3):
            gradients(model, data)
    assert most[0.1] < 0.9 * most[2.0]


def test_while_a_layer_is_compared_what_was_equal_is_let_go_of(monkeypatch):
    model, data = Model(layers=1), ids(tokens=512)
    girih.long_context(model, alpha=0)
    most, saved = [], []
    add = compare.Found.add

    def watched(self, index, rows, save):
        add(self, index, rows, save)
        call = calls[-1]
        there = {it.place: it.bytes for it in call.saves if it.tensor is not None}
        most.append(sum(there.values()))
        saved.append(sum({it.place: it.bytes for it in call.saves}.values()))

    calls = []
    close = run_again

    def learn(self, first):
        calls.append(self)
        return close(self, first)

    # As it is where ranks communicate: elsewhere it is let go of when it is saved.
    monkeypatch.setattr(Layer, "lets_go", lambda *_: False)
    monkeypatch.setattr(compare.Found, "add", watched)
    monkeypatch.setattr("girih._long.layer.learn", learn)
    gradients(model, data)
    assert most[0] == saved[0]
    assert most[-1] < 0.5 * saved[0]


def test_autocast_goes_the_same_way_in_every_replay(monkeypatch):
    monkeypatch.setattr(trace, "GROUP_LEAST", 0.1)
    model = Model(layers=2)

    def context():
        return torch.autocast("cpu", dtype=torch.bfloat16)

    check(model, ids(tokens=512), context=context)
    girih.long_context(model, alpha=0)
    for _ in range(3):
        gradients(model, ids(tokens=512), context=context)
    assert max(groups(model)) > 1
    assert report(model)["astray"] == 0


class Turns(nn.Module):
    """Takes one way or the other, by turns, with the same operators in the same order."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.third, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.passes = 0
        self.is_other = False

    def forward(self, x):
        if not getattr(self, "is_replayed", False):
            self.is_other = self.passes % 3 == 2
        a, b = torch.tanh(self.first(x)), torch.tanh(self.second(x))
        query, key = (b, a) if self.is_other else (a, b)
        y = F.scaled_dot_product_attention(*(it[:, None] for it in (a, b, x)))[:, 0]
        # What comes after attention needs `a`, or `b`.
        c = torch.sin(self.third(y)) * torch.sigmoid(query)
        return self.last(torch.tanh(c)) + 0 * key


def test_a_way_that_was_not_traced_is_seen(monkeypatch):
    monkeypatch.setattr(trace, "GROUP_LEAST", 0.0)
    torch.manual_seed(0)
    whole = Model(layers=2, make=Turns)
    split = Model(layers=2, make=Turns)
    split.load_state_dict(whole.state_dict())
    girih.long_context(split, alpha=0)
    for turn in range(12):
        for model in (whole, split):
            for layer in model.layers:
                layer.passes = turn
        assert_same(*(gradients(it, ids(tokens=256)) for it in (whole, split)))
    assert sum(it["astray"] for it in girih.long_context_report(split)["layers"]) > 0


class Hidden(nn.Module):
    """A kernel that no operator tells of, into memory of its own or that was written before."""

    def __init__(self, make):
        super().__init__()
        self.make = make
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = Copied.apply(torch.tanh(self.first(x)), self.make)
        y = F.scaled_dot_product_attention(*(it[:, None] for it in (x, x, y)))[:, 0] + y
        return torch.sin(self.third(torch.tanh(self.second(y))))


class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, make):
        y = make(x)
        ctypes.memmove(y.data_ptr(), x.data_ptr(), x.nbytes)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


@pytest.mark.parametrize("make", [torch.empty_like, torch.zeros_like])
def test_kernels_that_no_operator_tells_of(monkeypatch, make):
    monkeypatch.setattr(trace, "GROUP_LEAST", 0.0)
    model = Model(layers=2, make=lambda: Hidden(make))
    check(model, ids(tokens=256), passes=5)


def test_what_a_kernel_hides_is_found_by_what_is_no_number(monkeypatch):
    monkeypatch.setattr(trace, "GROUP_LEAST", 0.0)
    found = []
    grouped = trace.Trace.grouped

    def watched(self, *args):
        found.append(grouped(self, *args))
        return found[-1]

    monkeypatch.setattr(trace.Trace, "grouped", watched)
    model = Model(layers=1, make=lambda: Hidden(torch.zeros_like))
    girih.long_context(model, alpha=0)
    gradients(model, ids(tokens=256))
    # Some were thought to come from operators that they do not come from alone.
    assert len(found[0]) > sum(groups(model))
    # Memory that nobody wrote tells of itself: nothing is even tried.
    model = Model(layers=1, make=lambda: Hidden(torch.empty_like))
    girih.long_context(model, alpha=0)
    gradients(model, ids(tokens=256))
    assert groups(model) == []


class Careful(nn.Module):
    """Looks at its numbers past all operators, and stops where one is none."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = torch.tanh(self.first(x))
        numbers = (ctypes.c_float * y.numel()).from_address(y.data_ptr())
        if any(map(math.isnan, numbers)):
            raise ValueError("this is no number")
        y = F.scaled_dot_product_attention(*(it[:, None] for it in (x, x, y)))[:, 0]
        return torch.sin(self.third(torch.tanh(self.second(y))))


def test_a_layer_that_stops_at_what_is_no_number(monkeypatch):
    monkeypatch.setattr(trace, "GROUP_LEAST", 0.0)
    check(Model(layers=2, make=Careful), ids(tokens=64), alphas=(0, "products"), passes=3)


def test_digests_tell_bits_apart():
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        noise = torch.randn(3, 77) * 9
        tensor = noise > 0 if dtype == torch.bool else noise.to(dtype)
        assert compare.digest(tensor) == compare.digest(tensor.clone())
        assert compare.digest(tensor) != compare.digest(tensor.flip(1))
        assert compare.digest(tensor) != compare.digest(tensor.reshape(77, 3))
        for at in range(0, tensor.numel(), 13):
            other = tensor.clone().contiguous()
            other.view(-1)[at] = (
                ~tensor.view(-1)[at] if dtype == torch.bool else tensor.view(-1)[at] + 1
            )
            assert compare.digest(tensor) != compare.digest(other)
    empty = torch.empty(0, 3)
    assert compare.digest(empty) == compare.digest(empty.clone()) != compare.digest(empty.t())
    odd = torch.arange(9, dtype=torch.int16)[1:]
    assert compare.digest(odd) == compare.digest(odd.clone())
    before = torch.arange(5)
    compare.digest(before)
    assert torch.equal(before, torch.arange(5))


def test_digests_tell_what_was_moved():
    torch.manual_seed(0)
    # Which of 8 experts a token goes to: two tokens change places, also so that sums of columns,
    # or of rows, are what they were.
    routes = torch.zeros(1 << 15, 8, dtype=torch.int64)
    routes[torch.arange(len(routes)), torch.randint(8, (len(routes),))] = 1
    whole = compare.digest(routes)
    apart = [4096 // 8 * times for times in (1, 2, 3, 39)]
    pairs = [(at, at + by) for by in (1, 2, *apart) for at in range(0, 1 << 13, 397)]
    changed = 0
    for one, other in pairs:
        moved = routes.clone()
        moved[[one, other]] = moved[[other, one]]
        if not torch.equal(moved, routes):
            changed += 1
            assert compare.digest(moved) != whole
    assert changed > len(pairs) // 2


class RunsOut(torch.utils._python_dispatch.TorchDispatchMode):
    """There is no memory for some operators, counted from when it begins."""

    def __init__(self, fails):
        super().__init__()
        self.fails, self.count = fails, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        if self.fails(self.count):
            raise torch.OutOfMemoryError("there is no memory")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("alpha", [0, "products", 0.5])
def test_without_memory_while_a_layer_is_compared_the_bits_are_the_same(monkeypatch, alpha):
    monkeypatch.setattr(trace, "GROUP_LEAST", 0.0)
    model, data = Model(layers=1), ids(tokens=300)
    expected = gradients(model, data)
    learn = run_again
    count, fails = 0, lambda _: False

    def learning(self, first):
        nonlocal count
        with RunsOut(fails) as operators:
            try:
                return learn(self, first)
            finally:
                count = max(count, operators.count)

    monkeypatch.setattr("girih._long.layer.learn", learning)
    girih.long_context(model, alpha=alpha)
    assert_same(expected, gradients(model, data))
    assert count > 100
    for at in [*range(1, 60, 5), *range(60, count, 31)]:
        # One operator alone, and all from there on.
        for is_once in (True, False):
            fails = (lambda it, at=at: it == at) if is_once else (lambda it, at=at: it >= at)
            girih.long_context(model, alpha=alpha)
            for _ in range(2):
                assert_same(expected, gradients(model, data))
            monkeypatch.setattr("girih._long.layer.learn", learn)
            for _ in range(2):
                # There is memory again.
                assert_same(expected, gradients(model, data))
            monkeypatch.setattr("girih._long.layer.learn", learning)
            if is_once and alpha == 0:
                assert report(model)["kept"] == 0


@pytest.mark.parametrize("alpha", [0, "products", 0.5])
def test_without_memory_while_a_layer_is_put_together_the_bits_are_the_same(monkeypatch, alpha):
    monkeypatch.setattr(trace, "GROUP_LEAST", 0.1)
    model, data = Model(layers=1), ids(tokens=300)
    expected = gradients(model, data)
    put_together, served = Call._put_together_group, 0
    for at in range(1, 120, 3):
        left = 1

        def once(self, *args, at=at):
            nonlocal left
            with RunsOut(lambda count: left and count == at) as operators:
                try:
                    return put_together(self, *args)
                finally:
                    left -= operators.count >= at

        girih.long_context(model, alpha=alpha)
        gradients(model, data)
        monkeypatch.setattr(Call, "_put_together_group", once)
        # Of one tensor there can be no smaller part.
        with contextlib.suppress(torch.OutOfMemoryError):
            assert_same(expected, gradients(model, data))
            served += 1
        monkeypatch.setattr(Call, "_put_together_group", put_together)
        assert_same(expected, gradients(model, data))
    assert served > 20
