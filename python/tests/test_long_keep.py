"""Where products are kept, what is saved of them may be kept instead: the fewest bytes."""

import collections
import itertools
import random

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from long_layers import WIDTH, Model, assert_same, check, gradients, ids  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

import girih  # noqa: E402
from girih._long import api  # noqa: E402
from girih._long.keep import cheapest  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def fewest(products, sizes, needs):
    """Bytes of the cheapest of all ways."""
    best = sum(sizes.values())
    for count in range(len(products) + 1):
        for kept in itertools.combinations(products, count):
            rest = sum(size for it, size in sizes.items() if not needs[it] <= set(kept))
            best = min(best, rest + sum(products[it] for it in kept))
    return best


@pytest.mark.parametrize("seed", range(300))
def test_the_cheapest_is_that_of_all_ways(seed):
    draw = random.Random(seed)
    products = {index: draw.randrange(9) for index in range(draw.randrange(7))}
    sizes = {f"saved {index}": draw.randrange(9) for index in range(draw.randrange(8))}
    needs = {
        it: frozenset(draw.sample(sorted(products), draw.randint(1, min(3, len(products)))))
        for it in (sizes if products else ())
    }
    sizes = {it: sizes[it] for it in needs}
    kept, saved = cheapest(products, sizes, needs)
    assert all(it in saved or needs[it] <= kept for it in sizes)
    found = sum(products[it] for it in kept) + sum(sizes[it] for it in saved)
    assert found == fewest(products, sizes, needs)
    # Of what is saved nothing more could be kept for nothing, nor any product be let go of.
    assert all(any(it in needs[other] for other in sizes if other not in saved) for it in kept)


def test_of_equal_ways_what_is_saved_is_kept():
    needs = {"rotated": frozenset({0})}
    assert cheapest({0: 5}, {"rotated": 5}, needs) == (set(), {"rotated"})
    # One product that is fewer bytes than what comes of it.
    assert cheapest({0: 4}, {"rotated": 5}, needs) == ({0}, set())


class Operators(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts them, those apart that only find out shapes."""

    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [it for it in tree_leaves(args) if isinstance(it, torch.Tensor)]
        self.counts[func.name()] += all(it.device.type != "meta" for it in tensors)
        return func(*args, **(kwargs or {}))


class Rotated(nn.Module):
    """Queries and keys are turned by their positions, and autograd saves them after that alone."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.up = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x):
        angles = torch.linspace(0, 9, x.shape[1])[:, None]
        turn, other = angles.cos(), angles.sin()
        rows = self.norm(x)
        q, k = (
            it * turn + torch.cat((-it[..., 16:], it[..., :16]), -1) * other
            for it in (self.query(rows), self.key(rows))
        )
        parts = (it.unflatten(-1, (4, -1)).transpose(1, 2) for it in (q, k, self.value(rows)))
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


def backward(model, data):
    """The operators of a backward pass, and the gradients."""
    model.zero_grad(set_to_none=True)
    loss = model(data).pow(2).mean()
    with Operators() as operators:
        loss.backward()
    return operators.counts, [it.grad for it in model.parameters()]


def test_what_is_rotated_is_not_rotated_again():
    model, data = Model(layers=2, make=Rotated), ids(tokens=512, batch=2)
    plain, expected = backward(model, data)
    girih.long_context(model, alpha="products")
    kept = []
    for turn in range(1, 8):
        counts, found = backward(model, data)
        assert_same(expected, found)
        report = girih.long_context_report(model)["layers"]
        assert [it["astray"] for it in report] == [0, 0]
        kept.append(report[1]["bytes_kept"])
        if turn in (3, 5, 6, 7):
            # The 1st, 2nd and 4th are compared, and keep what products gave.
            for name in ("aten::addmm", "aten::cat", "aten::neg"):
                assert counts[name] == plain[name], (turn, name)
            assert counts["aten::silu"] > plain["aten::silu"]
    row = 2 * 512 * WIDTH * 4
    # Input, query, key, value, attention's output, gate and up, what `out` gave; and what is small.
    assert kept[2] < (5 + 6 + 1) * row * 1.05
    assert kept[2] <= kept[0]


def test_a_replay_of_all_of_it_makes_what_was_let_go_of():
    model, data = Model(layers=2, make=Rotated), ids(tokens=512)
    expected = gradients(model, data)
    girih.long_context(model, alpha="products")
    for _ in range(4):
        gradients(model, data)
    traces = [it for layer in api.of(model).layers for it in layer.traces.values()]
    assert all(trace.keeping.dropped and trace.keeping.places for trace in traces)
    for trace in traces:
        # As if this pass went another way than all before it.
        trace.operators[3] = trace.operators[0]
    assert_same(expected, gradients(model, data))
    report = girih.long_context_report(model)["layers"]
    assert [it["astray"] for it in report] == [1, 1]
    for _ in range(5):
        assert_same(expected, gradients(model, data))


class Grouped(nn.Module):
    """Keys are fewer than queries and repeated before attention: kept before that."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8), None
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q = torch.tanh(self.query(x)).unflatten(-1, (4, -1)).transpose(1, 2)
        k = torch.sin(self.key(x))[:, None].expand(-1, 4, -1, -1).contiguous()
        y = F.scaled_dot_product_attention(q, k, k * 2, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


def test_what_is_larger_than_the_product_is_made_of_it_again():
    model, data = Model(layers=1, make=Grouped), ids(tokens=512)
    check(model, data, alphas=("products",), passes=6)
    girih.long_context(model, alpha="products")
    for _ in range(3):
        counts, _ = backward(model, data)
    assert counts["aten::sin"] > 0
    (trace,) = api.of(model).layers[0].traces.values()
    # Of the query what tanh gave is kept, which goes to attention too.
    assert len(trace.keeping.dropped) == 1


def test_any_length_and_any_part_may_come_next():
    model = Model(layers=2, make=Rotated)
    data = [ids(tokens=tokens, batch=batch) for tokens, batch in ((301, 1), (512, 2), (77, 3))]
    expected = [gradients(model, it) for it in data]
    girih.long_context(model, alpha="products")
    for turn in random.Random(1).choices(range(3), k=24):
        assert_same(expected[turn], gradients(model, data[turn]))


def test_two_passes_at_once_and_a_graph_that_is_kept():
    model, data = Model(layers=2, make=Rotated), ids(tokens=300)
    expected = gradients(model, data)[1:]
    girih.long_context(model, alpha="products")
    for turn in range(6):
        model.zero_grad(set_to_none=True)
        losses = [model(data).pow(2).mean() for _ in range(2)]
        losses[1].backward(retain_graph=turn % 2 == 1)
        assert_same(expected, [it.grad for it in model.parameters()])
        if turn % 2:
            model.zero_grad(set_to_none=True)
            losses[1].backward()
            assert_same(expected, [it.grad for it in model.parameters()])
        model.zero_grad(set_to_none=True)
        losses[0].backward()
        assert_same(expected, [it.grad for it in model.parameters()])
