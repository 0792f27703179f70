"""Graphs of layers that are split: they live at once, go backward twice, or fail."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from long_layers import WIDTH, Block, Gated, Model, assert_same, ids  # noqa: E402
from torch import nn  # noqa: E402

import girih  # noqa: E402
from girih._long import api  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

WAYS = {
    "nothing": {"alpha": 0},
    "tiles": {"alpha": 0, "mlp_in_tiles": 100},
    "products": {"alpha": "products"},
    "half": {"alpha": 0.5},
    "each another": {"alpha": [0, 0.5]},
}
TOKENS = 523
"""A multiple of nothing."""


class Smooth(nn.Module):
    """All of it can be derived twice: attention is written out, and causal."""

    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.mlp = nn.Linear(WIDTH, 3 * WIDTH), Gated()

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        tokens = x.shape[1]
        later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        weights = (q @ k.transpose(-1, -2)).masked_fill(later, float("-inf")).softmax(-1)
        x = x + weights @ v
        return x + self.mlp(self.norm2(x))


def grads(model):
    found = [it.grad.clone() for it in model.parameters() if it.grad is not None]
    model.zero_grad(set_to_none=True)
    return found


def loss_of(model, tokens=TOKENS, batch=2, seed=1):
    torch.manual_seed(seed)
    return model(ids(tokens=tokens, batch=batch)).pow(2).mean()


def same_in(way, run, passes=4, compare=assert_same, **kwargs):
    """Runs it with a model as it is, and split; each pass must give the same."""
    found = []
    for is_split in (False, True):
        torch.manual_seed(0)
        model = Model(layers=2, **kwargs)
        if is_split:
            girih.long_context(model, **WAYS[way])
        found.append([run(model, seed) for seed in range(passes)])
    for one, other in zip(*found, strict=True):
        compare(one, other)
    return girih.long_context_report(model)["layers"]


@pytest.mark.parametrize("way", WAYS)
def test_graphs_that_live_at_once(way):
    def run(model, seed):
        # Of one length, of another; one goes backward last, one twice, and one never.
        first, second = loss_of(model, seed=seed), loss_of(model, tokens=77, seed=seed + 1)
        third, never = loss_of(model, seed=seed + 2), loss_of(model, batch=1, seed=seed + 3)
        found = [it.detach() for it in (first, second, third, never)]
        second.backward(retain_graph=True)
        found += grads(model)
        third.backward()
        found += grads(model)
        (first + second).backward()
        return [*found, *grads(model)]

    layers = same_in(way, run, make=Block, dropout=0.2)
    assert all(layer["split"] > 0 and layer["astray"] == 0 for layer in layers)


@pytest.mark.parametrize("way", WAYS)
def test_backward_of_what_was_kept_more_than_twice(way):
    def run(model, seed):
        loss, found = loss_of(model, seed=seed), []
        for retain in (True, True, False):
            loss.backward(retain_graph=retain)
            found += grads(model)
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        model.zero_grad(set_to_none=True)
        return found

    same_in(way, run, dropout=0.2)


@pytest.mark.parametrize("way", WAYS)
def test_backward_through_backward(way):
    def run(model, seed):
        torch.manual_seed(seed)
        x = model.embedding(ids(tokens=TOKENS)).detach().requires_grad_()
        y = x
        for layer in model.layers:
            y = layer(y)
        (slope,) = torch.autograd.grad(y.pow(2).mean(), x, create_graph=True)
        (slope.pow(2).sum() * 1e6 + y.sum()).backward()
        found = [slope.detach(), x.grad, *grads(model)]
        assert all(it.abs().max() > 0 for it in found)
        return found

    def compare(expected, found):
        if way != "tiles":
            return assert_same(expected, found)
        # A perceptron in tiles runs over all tokens for it, beside the graph: what it is given has
        # the same parts of its gradients, added in another order.
        assert_same(expected[:1], found[:1])
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(one.abs().max()))

    layers = same_in(way, run, make=Smooth, compare=compare)
    assert all(layer["split"] == 4 for layer in layers)
    assert all(layer["in_tiles"] == (["mlp"] if way == "tiles" else []) for layer in layers)


@pytest.mark.parametrize("way", WAYS)
def test_an_error_in_the_middle_of_backward(way):
    def run(model, seed):
        def fails(_gradient):
            raise ZeroDivisionError("on purpose")

        found = []
        for name in ("mlp", "norm", "norm2"):
            loss = loss_of(model, seed=seed)
            handle = getattr(model.layers[0], name).register_full_backward_hook(
                lambda _m, _i, _g: fails(None)
            )
            again = loss_of(model, seed=seed)
            handle.remove()
            with pytest.raises(ZeroDivisionError, match="on purpose"):
                again.backward()
            model.zero_grad(set_to_none=True)
            # The other graph is as it was.
            loss.backward()
            found += grads(model)
        return found

    same_in(way, run, make=Block)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


@pytest.mark.parametrize("way", WAYS)
def test_an_error_that_comes_of_one_of_many_graphs(way):
    class Fails(nn.Module):
        fails = False

        def __init__(self):
            super().__init__()
            self.linear, self.mlp, self.norm = nn.Linear(WIDTH, WIDTH), Gated(), nn.LayerNorm(WIDTH)

        def forward(self, x):
            y = torch.sin(self.linear(self.norm(x)))
            if self.fails:
                raise ZeroDivisionError("on purpose")
            return x + self.mlp(y)

    def run(model, seed):
        loss, found = loss_of(model, seed=seed), []
        model.layers[1].fails = True
        with pytest.raises(ZeroDivisionError, match="on purpose"):
            loss_of(model, seed=seed + 1)
        model.layers[1].fails = False
        found += [loss.detach()]
        loss.backward()
        return [*found, *grads(model)]

    same_in(way, run, make=Fails)


@pytest.mark.parametrize("way", WAYS)
def test_batches_of_padded_sequences_of_any_lengths(way):
    def run(model, seed):
        found = []
        for tokens, batch in ((1, 3), (2, 1), (TOKENS, 3), (509, 2), (31, 5)):
            chance = torch.Generator().manual_seed(seed + tokens)
            lengths = torch.randint(1, tokens + 1, (batch,), generator=chance)
            place = torch.arange(tokens)
            is_there = place[None] < lengths[:, None]
            mask = is_there[:, None, None] & (place[:, None] >= place[None])
            # A row of padding sees itself, as else it is no number.
            mask = mask | torch.eye(tokens, dtype=torch.bool)
            torch.manual_seed(seed)
            y = model(ids(tokens=tokens, batch=batch), mask)
            loss = (y.pow(2) * is_there[..., None]).sum() / is_there.sum()
            loss.backward()
            found += [loss.detach(), *grads(model)]
        return found

    same_in(way, run, passes=3, make=Block, dropout=0.1)


def test_gradients_by_functions_are_those_of_the_model():
    # Of torch.func, whose tensors have no bytes of their own: it runs as it is.
    found = []
    for is_split in (False, True):
        torch.manual_seed(0)
        model = Model(layers=2, make=Smooth)
        if is_split:
            girih.long_context(model, alpha=0)
        own = dict(model.named_parameters())

        def loss(own, model=model):
            return torch.func.functional_call(model, own, (ids(tokens=77),)).pow(2).mean()

        found.append(list(torch.func.grad(loss)(own).values()))
    assert_same(*found)
    api.remove(model)


def test_losses_of_what_is_within_a_layer():
    class Two(nn.Module):
        """Gives what it gives, and a loss of its own."""

        def __init__(self):
            super().__init__()
            self.mlp, self.norm, self.router = Gated(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)

        def forward(self, x):
            y = self.norm(x)
            scores = self.router(y).softmax(-1)
            return x + self.mlp(y) * scores.amax(-1, keepdim=True), scores.mean((0, 1)).pow(2).sum()

    for how in WAYS.values():
        found = []
        for is_split in (False, True):
            torch.manual_seed(0)
            layers = nn.ModuleList([Two(), Two()])
            model = nn.ModuleDict({"layers": layers})
            if is_split:
                girih.long_context(model, **how)
            found.append([])
            for seed in range(4):
                x = torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))
                x.requires_grad_()
                y, own = layers[0](x)
                y, more = layers[1](F.gelu(y))
                # Each alone, and both.
                own.backward(retain_graph=True)
                found[-1] += grads(model)
                (y.pow(2).mean() + more).backward()
                found[-1] += [x.grad.clone(), *grads(model)]
        assert_same(*found)
