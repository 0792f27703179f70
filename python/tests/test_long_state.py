"""Layers that have state of their own: it goes on once, and decides as in the model as it is.

Layers run again: to be compared, when what was let go of does not come again, and in backward. What
they write of their own (buffers, attributes, caches), hooks and generators go on once all the same.
"""

import collections
import gc
import random

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from long_layers import WIDTH, Gated, Model, assert_same, ids  # noqa: E402
from torch import nn  # noqa: E402

import girih  # noqa: E402
from girih._long import api  # noqa: E402
from girih._long.call import Call  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

PASSES = 9
"""The 1st, 2nd, 4th and 8th are compared."""


RUNS = collections.Counter()
"""How often each layer ran in this pass: no attribute leads to it."""


class Base(nn.Module):
    """A norm, a perceptron; what is between them is another in each."""

    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), Gated()
        self.way = "plain"

    def forward(self, x):
        y = self.mlp(self.does(self.norm(x)))
        if self.way == "longer":
            y = torch.sin(y) * y
        if self.way == "draws":
            # Where the layer is known, and lets go while it runs: it begins anew.
            y = y * torch.rand(y.shape, generator=torch.Generator().manual_seed(7))
        if self.way == "unseen":
            # Every second time something else: what was let go of does not come again.
            RUNS[id(self)] += 1
            y = y * (1 + RUNS[id(self)] % 2)
        return x + torch.tanh(y)

    def state(self):
        return []


class Counts(Base):
    """A buffer that counts, and goes into what comes of it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("scale", torch.ones(()))

    def does(self, x):
        self.steps += 1
        # It is added, so that autograd does not hold it: another by the time of a replay is not
        # seen by its version.
        x = x + self.scale
        with torch.no_grad():
            self.scale.mul_(0.9)
        return x + self.scale

    def state(self):
        return [self.steps, self.scale]


class Scales(Base):
    """What it writes into is saved by autograd, too: the largest value, and means."""

    def __init__(self):
        super().__init__()
        self.register_buffer("most", torch.ones(()))
        self.register_buffer("means", torch.zeros(2, WIDTH))
        self.mean, self.calls = torch.ones(WIDTH), 0

    def does(self, x):
        with torch.no_grad():
            self.most.mul_(0.9).add_(x.abs().amax())
            self.mean.lerp_(x.mean((0, 1)), 0.5)
            self.means[self.calls % 2].copy_(self.mean)
            self.calls += 1
        return x / self.most * self.mean * self.means[-1]

    def state(self):
        return [self.most, self.mean, self.means, self.calls]


class Normed(Base):
    """A batch norm over the channels."""

    def __init__(self):
        super().__init__()
        self.batch = nn.BatchNorm1d(WIDTH)

    def does(self, x):
        return self.batch(x.transpose(1, 2)).transpose(1, 2)

    def state(self):
        return [self.batch.running_mean, self.batch.running_var, self.batch.num_batches_tracked]


class NormedByHand(Base):
    """The same without a module, and without a count of its batches."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("var", torch.ones(WIDTH))

    def does(self, x):
        y = F.batch_norm(x.transpose(1, 2), self.mean, self.var, training=True).transpose(1, 2)
        return y + self.mean

    def state(self):
        return [self.mean, self.var]


class Loads(Base):
    """Experts whose loads are counted, and a loss for it that the program adds to its own."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.register_buffer("load", torch.zeros(4))
        self.register_buffer("bias", torch.zeros(4))
        self.aux_loss = None

    def does(self, x):
        scores = self.router(x).softmax(-1)
        chosen = (scores + self.bias).argmax(-1)
        with torch.no_grad():
            self.load += torch.bincount(chosen.flatten(), minlength=4)
            self.bias -= 0.01 * (self.load - self.load.mean()).sign()
        self.aux_loss = scores.mean((0, 1)).pow(2).sum()
        return x * scores.gather(-1, chosen[..., None])

    def state(self):
        return [self.load, self.bias, self.aux_loss]


class Stashes(Base):
    """Attributes: of a tensor, of a number, in a list, a dict, and an object of the program's."""

    class Book:
        def __init__(self):
            self.calls, self.seen = 0, collections.deque(maxlen=3)

    def __init__(self):
        super().__init__()
        self.last, self.calls, self.all, self.by = None, 0, [], {"calls": 0}
        self.book, self.names = self.Book(), set()

    def does(self, x):
        if self.last is not None:
            x = x + self.last[:, -1:].detach()
        y = x * (1 + self.calls % 3) + self.by["calls"] % 2
        self.calls += 1
        self.by["calls"] += 1
        self.book.calls += 1
        self.book.seen.append(self.calls)
        self.names.add(self.calls)
        self.all.append(float(y.detach().sum()))
        self.last = y
        return y

    def state(self):
        last = [self.calls, self.by["calls"], self.book.calls, len(self.names), *self.book.seen]
        return [self.last, *self.all, *last]


class Caches(Base):
    """Keys of the passes before, in a tensor that is written into, and in one that grows."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 16, WIDTH), persistent=False)
        self.grown, self.at = None, 0

    def does(self, x):
        with torch.no_grad():
            self.keys[:, self.at : self.at + 1].copy_(x[:1, -1:])
            self.at += 1
            new = x[:1, -1:].clone()
            self.grown = new if self.grown is None else torch.cat([self.grown, new], 1)
        return x + self.keys.sum(1, keepdim=True) + self.grown.mean(1, keepdim=True)

    def state(self):
        return [self.keys, self.grown, self.at]


class Draws(Base):
    """Random numbers: of torch, of Python and of numpy, of which some decide the way."""

    def __init__(self):
        super().__init__()
        self.own = random.Random(5)
        self.own_numpy = np.random.default_rng(5)

    def does(self, x):
        if random.random() < 0.5:
            x = torch.sin(x)
        if np.random.rand() < 0.5:
            x = x * torch.tanh(x)
        if self.own.random() < 0.5:
            x = x * x
        if self.own_numpy.random() < 0.5:
            x = torch.cos(x)
        if torch.rand(()) < 0.5:
            x = x + 1
        return F.dropout(x, 0.3)

    def state(self):
        own = self.own.random(), self.own_numpy.random(), random.random(), np.random.rand()
        return [*own, torch.rand(())]


class Decides(Base):
    """Branches by the data."""

    def does(self, x):
        if x.sum() > 0:
            return torch.sin(x) * x
        return torch.cos(x)


class Renormed(Base):
    """A table that its look-up writes into."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, WIDTH, max_norm=1.0)
        self.table.weight.requires_grad_(False)
        self.calls = 0

    def does(self, x):
        self.calls += 1
        with torch.no_grad():
            self.table.weight.mul_(3)
        return x + self.table(torch.tensor([self.calls % 7]))

    def state(self):
        return [self.table.weight, self.calls]


KINDS = [
    Counts, Scales, Normed, NormedByHand, Loads, Stashes, Caches, Draws, Decides, Renormed
]  # fmt: skip


def hooked(model):
    """Hooks of a program within its layers: what they note, in the order in which they do."""
    seen = []

    def notes(module, args, gives):
        seen.append(gives.detach().clone())
        seen.append(gives.float().pow(2).mean())
        module.noted = getattr(module, "noted", 0) + 1

    def before(module, args, kwargs):
        seen.append(len(args) + len(kwargs))

    for layer in model.layers:
        layer.mlp.register_forward_hook(notes)
        layer.norm.register_forward_pre_hook(before, with_kwargs=True)
        layer.mlp.down.register_forward_hook(lambda _m, _a, gives: gives * 1.5)
        layer.mlp.gate.register_forward_pre_hook(lambda _m, args: (args[0] + 0.5,))
    return seen


def train(make, alpha, *, hooks=False, way=lambda _: "plain", tokens=301, **kwargs):
    """Losses, gradients and states of all passes."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = Model(layers=2, make=make)
    seen = hooked(model) if hooks else []
    if alpha is not None:
        girih.long_context(model, alpha=alpha, **kwargs)
    found = []
    for seed in range(PASSES):
        RUNS.clear()
        for layer in model.layers:
            layer.way = way(seed)
        torch.manual_seed(seed)
        model.zero_grad(set_to_none=True)
        loss = model(ids(tokens=tokens, batch=2)).pow(2).mean()
        noted = [it for it in seen if isinstance(it, torch.Tensor) and it.requires_grad]
        own = [it for layer in model.layers for it in layer.state()]
        aux = [layer.aux_loss for layer in model.layers if hasattr(layer, "aux_loss")]
        (loss + sum(aux) + sum(noted)).backward()
        grads = [it.grad for it in model.parameters() if it.grad is not None]
        own += [getattr(it, "noted", 0) for it in model.modules()]
        found.append([loss, *grads, *map(torch.as_tensor, (*own, *seen))])
        seen.clear()
    found = [[it.detach().clone() for it in them] for them in found]
    return found, girih.long_context_report(model)["layers"] if alpha is not None else []


WAYS = {
    "one": (lambda _: "plain", 0),
    # Where it is known, and where it is compared: something else is saved than was.
    "other": (lambda seed: "longer" if seed in (2, 3, 6, 7) else "plain", 0),
    "another later": (lambda seed: "draws" if seed >= 2 else "plain", 1),
    "unseen at first": (lambda _: "unseen", 1),
    "unseen later": (lambda seed: "unseen" if seed >= 3 else "plain", 1),
}
"""What the layers do in each pass; and how many passes of each, nothing kept, begin anew."""


def assert_all_the_same(expected, found):
    for one, other in zip(expected, found, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", KINDS)
def test_state_goes_on_once(make, way):
    goes, anew = WAYS[way]
    expected, _ = train(make, None, way=goes)
    for alpha in (0, "products"):
        found, report = train(make, alpha, way=goes)
        assert_all_the_same(expected, found)
        # Each begins anew, or has learnt from the first that it would.
        assert 0 < report[0]["anew"] <= anew if anew else report[0]["anew"] == 0
        if not anew:
            assert all(it["split"] == PASSES and it["kept_whole"] == [] for it in report)
    expected, _ = train(make, None, way=goes, tokens=520)
    found, report = train(make, 0.5, way=goes, tokens=520)
    assert_all_the_same(expected, found)
    if way == "one":
        assert all(it["replays"] >= PASSES or it["reason"] for it in report)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [Decides, Loads, Stashes])
def test_hooks_run_once(make, way):
    goes, _ = WAYS[way]
    for alpha, tokens in ((0, 301), ("products", 301), (0.5, 520)):
        expected, _ = train(make, None, hooks=True, way=goes, tokens=tokens)
        found, report = train(make, alpha, hooks=True, way=goes, tokens=tokens)
        assert_all_the_same(expected, found)
        assert all(layer["anew"] == 0 for layer in report)
        if way in ("one", "other"):
            assert all(layer["hooks"] == 4 for layer in report)


# ---- what the program does between the passes


class Scaled(Base):
    """What it has goes in without being saved by autograd: a change of it would not be seen."""

    def __init__(self):
        super().__init__()
        self.factor, self.shift = 2.0, nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.table, self.drop = torch.ones(WIDTH), nn.Dropout(0.3)

    def does(self, x):
        return torch.sin(self.drop(x) * self.factor + self.shift) + self.table


def one_pass(model, between, seed=1):
    torch.manual_seed(seed)
    model.zero_grad(set_to_none=True)
    loss = model(ids(batch=2)).pow(2).mean()
    between(model)
    loss.backward()
    return [loss.detach(), *(it.grad for it in model.parameters() if it.grad is not None)]


def evaluates(model):
    model.eval()


def sets_attributes(model):
    for layer in model.layers:
        layer.factor, layer.table = 0.5, torch.zeros(WIDTH)


@pytest.mark.parametrize("alpha", [0, "products"])
@pytest.mark.parametrize("between", [evaluates, sets_attributes])
def test_attributes_are_those_of_the_forward_pass(alpha, between):
    torch.manual_seed(0)
    model = Model(layers=2, make=Scaled)
    for passes in (1, 2, 3):
        api.remove(model)

        def ready():
            model.train()
            for layer in model.layers:
                layer.factor, layer.table = 2.0, torch.ones(WIDTH)

        ready()
        expected = one_pass(model, between)
        girih.long_context(model, alpha=alpha)
        for _ in range(passes):
            ready()
            found = one_pass(model, between)
        assert_same(expected, found)
        # And it is as the program left it.
        assert model.training == (between is not evaluates)
        assert between is evaluates or all(layer.factor == 0.5 for layer in model.layers)


@pytest.mark.parametrize("name", ["shift", "table"])
def test_what_was_written_into_before_the_backward_pass_is_an_error_and_not_wrong(name):
    torch.manual_seed(0)
    model = Model(layers=2, make=Scaled)
    girih.long_context(model, alpha=0)

    def writes(model):
        with torch.no_grad():
            getattr(model.layers[1], name).add_(1)

    for _ in range(3):
        with pytest.raises(RuntimeError, match="changed between its forward and its backward"):
            one_pass(model, writes)
    # The next is right.
    found = one_pass(model, lambda _: None)
    api.remove(model)
    assert_same(one_pass(model, lambda _: None), found)


def test_graphs_that_live_at_once_each_have_their_state():
    def losses(model):
        torch.manual_seed(1)
        first = model(ids(batch=2)).pow(2).mean()
        second = model(ids(tokens=77, batch=2)).pow(2).mean()
        found = []
        for loss, retain in ((first, True), (second, False), (first, False)):
            model.zero_grad(set_to_none=True)
            loss.backward(retain_graph=retain)
            found += [it.grad.clone() for it in model.parameters() if it.grad is not None]
        return [first.detach(), second.detach(), *found, *states(model)]

    def states(model):
        found = [it for layer in model.layers for it in layer.state()]
        return [torch.as_tensor(it).detach().clone() for it in found]

    for make in (Counts, Loads, Stashes, Caches, Draws):
        for alpha in (0, "products"):
            found = []
            for is_split in (False, True):
                torch.manual_seed(0)
                random.seed(0)
                np.random.seed(0)
                model = Model(layers=2, make=make)
                if is_split:
                    girih.long_context(model, alpha=alpha)
                found.append([losses(model) for _ in range(3)])
            assert_all_the_same(*found)


def calls():
    """The passes of layers that are there."""
    gc.collect()
    return [it for it in gc.get_objects() if type(it) is Call]


@pytest.mark.parametrize("alpha", [0, "products"])
def test_no_graph_lives_on_by_what_a_layer_holds_of_the_one_before(alpha):
    class Tuples(Base):
        def __init__(self):
            super().__init__()
            self.last, self.both, self.all = None, (), [None]

        def does(self, x):
            y = torch.sin(x)
            self.last, self.both, self.all[0] = y, (y, y * 2), y * 3
            return y

    model = Model(layers=2, make=Tuples)
    girih.long_context(model, alpha=alpha)
    of_others = len(calls())
    for _ in range(6):
        # None is run backward.
        model(ids()).sum()
    # What the program holds of the last pass of the last layer holds that pass of both.
    assert len(calls()) == of_others + 2
    for layer in model.layers:
        layer.last, layer.both, layer.all[0] = None, (), None
    assert len(calls()) == of_others


@pytest.mark.parametrize("alpha", [0, "products", 0.5])
def test_a_pass_in_inference_mode_leaves_what_the_next_begins_with(alpha):
    class Last(Base):
        def __init__(self):
            super().__init__()
            self.last, self.calls = None, 0

        def does(self, x):
            self.calls += 1
            y = x if self.last is None else x + self.last.detach().clone()[:1, -1:]
            self.last = y
            return y

        def state(self):
            return [self.last, self.calls]

    found = []
    for way in (None, alpha):
        torch.manual_seed(0)
        model = Model(layers=2, make=Last)
        if way is not None:
            girih.long_context(model, alpha=way)
        found.append([])
        for seed in range(4):
            found[-1] += one_pass(model, lambda _: None, seed)
            with torch.inference_mode():
                found[-1].append(model(ids(batch=2)).clone())
            found[-1] += [torch.as_tensor(it).clone() for m in model.layers for it in m.state()]
    assert all(layer["split"] > 0 for layer in girih.long_context_report(model)["layers"])
    assert_same(*found)


def test_an_error_in_the_middle_leaves_state_as_the_model_would():
    class Fails(Stashes):
        fails = False

        def does(self, x):
            y = super().does(x)
            if self.fails:
                raise ZeroDivisionError("on purpose")
            return y

    found = []
    for alpha in (None, 0, "products"):
        torch.manual_seed(0)
        model = Model(layers=2, make=Fails)
        seen = hooked(model)
        if alpha is not None:
            girih.long_context(model, alpha=alpha)
        results = []
        for fails in (False, True, False, False, True, False):
            seen.clear()
            model.layers[1].fails = fails
            if fails:
                with pytest.raises(ZeroDivisionError, match="on purpose"):
                    one_pass(model, lambda _: None)
                results.append(len(seen))
            else:
                results += one_pass(model, lambda _: None)
            results += [torch.as_tensor(it) for layer in model.layers for it in layer.state()]
        found.append([torch.as_tensor(it).detach().clone() for it in results])
        # No hook of Girih's stays where the program's was.
        hooks = [it for m in model.modules() for it in m._forward_hooks.values()]
        assert all(it.__module__ == __name__ for it in hooks)
    assert_same(found[0], found[1])
    assert_same(found[0], found[2])


def test_a_hook_may_take_itself_away():
    found = []
    for alpha in (None, 0):
        torch.manual_seed(0)
        model, calls = Model(layers=2, make=Decides), []

        def once(module, args, gives, calls=calls):
            calls.append(float(gives.detach().sum()))
            module.handle.remove()
            return gives * 2

        for layer in model.layers:
            layer.mlp.handle = layer.mlp.register_forward_hook(once)
        if alpha is not None:
            girih.long_context(model, alpha=alpha)
        grads = [it for seed in range(4) for it in one_pass(model, lambda _: None, seed)]
        found.append([*grads, torch.tensor(calls)])
        assert len(calls) == 2
        assert not any(layer.mlp._forward_hooks for layer in model.layers)
    assert_same(*found)


def test_a_hook_that_changes_what_it_is_shown_leaves_its_module_alone():
    found = []
    for alpha in (None, 0, "products"):
        torch.manual_seed(0)
        model = Model(layers=2, make=Decides)
        for layer in model.layers:
            layer.mlp.register_forward_hook(lambda _m, _a, gives: [gives.mul_(2), None][1])
        if alpha is not None:
            girih.long_context(model, alpha=alpha)
        found.append([it for seed in range(5) for it in one_pass(model, lambda _: None, seed)])
    assert_same(found[0], found[1])
    assert_same(found[0], found[2])
    report = girih.long_context_report(model)["layers"]
    assert all("changes what it is shown" in layer["reason"] for layer in report)


def test_hooks_of_all_modules_run_once():
    found = []
    for alpha in (None, 0):
        torch.manual_seed(0)
        model, calls = Model(layers=2), collections.Counter()

        def counts(module, _args, _gives, calls=calls):
            calls[type(module).__name__] += 1

        if alpha is not None:
            girih.long_context(model, alpha=alpha)
        handle = nn.modules.module.register_module_forward_hook(counts)
        try:
            for seed in range(4):
                one_pass(model, lambda _: None, seed)
        finally:
            handle.remove()
        found.append(calls)
    assert found[0] == found[1]
    assert found[0]["Gated"] == 8


def test_weights_that_hooks_of_torch_make_are_made_in_a_replay_too():
    for norm in (nn.utils.spectral_norm, nn.utils.weight_norm):
        found = []
        for alpha in (None, 0, "products"):
            torch.manual_seed(0)
            model = Model(layers=2, make=Decides)
            for layer in model.layers:
                norm(layer.mlp.gate)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            if alpha is not None:
                girih.long_context(model, alpha=alpha)
            found.append([])
            for seed in range(5):
                found[-1] += [it.clone() for it in one_pass(model, lambda _: None, seed)]
                optimizer.step()
                found[-1] += [it.detach().clone() for it in model.state_dict().values()]
        assert_same(found[0], found[1])
        assert_same(found[0], found[2])


# ---- perceptrons in tiles


class Counting(Gated):
    def __init__(self):
        super().__init__()
        self.calls, self.late = 0, 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.kind == "attribute":
            self.calls += 1
        self.late += self.kind == "late" and self.is_late
        if self.kind == "buffer" or (self.kind == "late buffer" and self.is_late):
            with torch.no_grad():
                self.seen += 1
        return super().forward(x)


@pytest.mark.parametrize("kind", ["attribute", "buffer", "late", "late buffer"])
def test_a_perceptron_that_counts_runs_whole(kind, monkeypatch):
    monkeypatch.setattr(Counting, "kind", kind, raising=False)
    found = []
    for tile in (None, False, 100):
        torch.manual_seed(0)
        model = Model(layers=2)
        for layer in model.layers:
            layer.mlp = Counting()
        if tile is not None:
            girih.long_context(model, alpha=0, mlp_in_tiles=tile)
        found.append([])
        for seed in range(5):
            monkeypatch.setattr(Counting, "is_late", seed >= 2, raising=False)
            found[-1] += one_pass(model, lambda _: None, seed)
            for layer in model.layers:
                own = layer.mlp.calls, layer.mlp.late, layer.mlp.seen
                found[-1] += [torch.as_tensor(it).clone() for it in own]
    report = girih.long_context_report(model)["layers"]
    assert all("it changes what it has" in layer["not_in_tiles"]["mlp"] for layer in report)
    assert_same(found[0], found[1])
    assert_same(found[0], found[2])
