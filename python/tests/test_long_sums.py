"""What a norm needs of a row is one number: it is kept, and what it comes of not computed again."""

import collections

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from long_layers import WIDTH, Gated, Model, assert_same, check, gradients, ids  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

import girih  # noqa: E402
from girih._long import notes  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class Norm(nn.Module):
    """As Hugging Face's Llama has it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def variance(self, x):
        return x.pow(2).mean(-1, keepdim=True) + 1e-6

    def forward(self, x):
        dtype, x = x.dtype, x.to(torch.float32)
        return self.weight * (x * torch.rsqrt(self.variance(x))).to(dtype)


class InPlace(Norm):
    """What the sum gave is changed, and nothing that the layer was given."""

    def variance(self, x):
        return x.pow(2).mean(-1, keepdim=True).add_(1e-6)


class IntoOne(Norm):
    """The sum is written into memory that is there."""

    def variance(self, x):
        with torch.no_grad():
            into = torch.empty(*x.shape[:-1], 1)
            torch.mean(x.detach().pow(2), -1, keepdim=True, out=into)
        return into + 1e-6


class Deep(nn.Module):
    """A norm and a perceptron, twice."""

    def __init__(self, norm=Norm):
        super().__init__()
        self.norms = nn.ModuleList([norm(), norm()])
        self.mlps = nn.ModuleList([Gated(), Gated()])

    def forward(self, x):
        for norm, mlp in zip(self.norms, self.mlps, strict=True):
            x = x + mlp(norm(x))
        return x


class Operators(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts those that run."""

    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [it for it in tree_leaves(args) if isinstance(it, torch.Tensor)]
        self.counts[func.name()] += all(it.device.type != "meta" for it in tensors)
        return func(*args, **(kwargs or {}))


def backward(model, data):
    """The operators of a backward pass, and the gradients."""
    model.zero_grad(set_to_none=True)
    loss = model(data).float().pow(2).mean()
    with Operators() as operators:
        loss.backward()
    return operators.counts, [it.grad for it in model.parameters()]


POWER, MEAN = "aten::pow.Tensor_Scalar", "aten::mean.dim"


@pytest.mark.parametrize("alpha", [0, "products"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_kept_sum_comes_of_is_not_computed_again(alpha, dtype):
    model, data = Model(layers=2, make=Deep).to(dtype), ids(tokens=512)
    plain, expected = backward(model, data)
    girih.long_context(model, alpha=alpha)
    for turn in range(1, 8):
        counts, found = backward(model, data)
        assert_same(expected, found)
        if turn in (3, 5, 6, 7):
            # The 1st, 2nd and 4th are compared.
            assert counts[MEAN] == plain[MEAN] == 0
            assert counts[POWER] == plain[POWER], "the backward pass of powers has its own"
            assert counts["aten::rsqrt"] > plain["aten::rsqrt"]
    report = girih.long_context_report(model)["layers"]
    assert [it["astray"] for it in report] == [0, 0]


def test_a_kept_sum_is_of_few_bytes(monkeypatch):
    kept = {}
    for terms in (8, WIDTH, WIDTH + 1):
        monkeypatch.setattr(notes, "TERMS", terms)
        model = Model(layers=1, make=Deep)
        girih.long_context(model, alpha=0)
        counts, _ = [backward(model, ids(tokens=512)) for _ in range(3)][-1]
        kept[terms] = girih.long_context_report(model)["layers"][0]["bytes_kept"]
        assert (counts[MEAN] > 0) == (terms > WIDTH)
    # A number in 32 bits of each token, of two norms.
    assert kept[8] == kept[WIDTH] == kept[WIDTH + 1] + 2 * 512 * 4


@pytest.mark.parametrize("norm", [Norm, InPlace, IntoOne])
def test_gradients_whatever_is_done_with_a_sum(norm):
    check(Model(layers=2, make=Deep, norm=norm), ids(tokens=300, batch=2), passes=5)


def test_a_sum_that_decides_the_way_is_right():
    ways = set()

    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.mlps = Norm(), nn.ModuleList([Gated(), Gated()])

        def forward(self, x):
            rows = self.norm(x)
            way = int(float(x.detach().sum()) * 1e4) % 2
            ways.add(way)
            return x + self.mlps[way](rows)

    model = Model(layers=2, make=Branch)
    for seed in range(8):
        data = torch.randint(0, 50, (1, 300), generator=torch.Generator().manual_seed(seed))
        girih.long_context(model, alpha=1)
        expected = gradients(model, data)
        girih.long_context(model, alpha=0)
        for _ in range(3):
            assert_same(expected, gradients(model, data))
    assert ways == {0, 1}


def test_over_tokens_a_sum_is_answered_too():
    class Mixed(nn.Module):
        """All tokens have a part in every one."""

        def __init__(self):
            super().__init__()
            self.norm, self.mlp = Norm(), Gated()

        def forward(self, x):
            return x + self.mlp(self.norm(x - x.mean(1, keepdim=True)))

    model, data = Model(layers=2, make=Mixed), ids(tokens=300)
    check(model, data, alphas=(0, "products"), passes=4)
