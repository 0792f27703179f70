"""What a layer has of its own is seen whatever holds it, put back, and costs little to look at."""

import collections
import dataclasses
import gc
import random

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

from long_layers import WIDTH, Gated, Model, assert_same, ids  # noqa: E402
from torch import nn  # noqa: E402

import girih  # noqa: E402
from girih._long import picture  # noqa: E402
from girih._long.call import Call  # noqa: E402
from girih._long.own import Own, Undo, as_it_was  # noqa: E402
from girih._long.picture import LARGE, Picture, Thing  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class Holds(nn.Module):
    """Of one attribute."""

    def __init__(self, it):
        super().__init__()
        self.it = it


@dataclasses.dataclass(slots=True)
class Slots:
    calls: int = 0
    seen: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    within: Slots


class Private:
    __slots__ = ("__calls", "late")

    def __init__(self):
        self.__calls = 0

    def call(self):
        self.__calls += 1
        self.late = self.__calls

    def __repr__(self):
        return f"{self.__calls} {getattr(self, 'late', None)}"


class Refuses(collections.OrderedDict):
    """As the outputs of Hugging Face's models do."""

    def update(self, *_args, **_kwargs):
        raise RuntimeError("cannot be updated")


def counts(there):
    there.calls += 1
    there.seen.append(there.calls)


CHANGES = {
    "slots": (Slots, counts),
    "slots within what is frozen": (lambda: Frozen(Slots()), lambda it: counts(it.within)),
    "slots of a private name": (Private, Private.call),
    "ordered": (lambda: Refuses(a=1, b=2), lambda it: (it.move_to_end("a"), it.pop("b"))),
    "counter": (lambda: collections.Counter("ab"), lambda it: it.update("abc")),
    "default": (lambda: collections.defaultdict(int), lambda it: it["a"]),
    "empty": (dict, lambda it: it.setdefault("a", 1)),
    "queue": (lambda: collections.deque([1, 2], maxlen=2), lambda it: it.append(3)),
    "within a tuple": (lambda: (1, [2]), lambda it: it[1].append(3)),
    "array": (lambda: np.zeros(3), lambda it: it.__iadd__(1)),
    "many": (lambda: list(range(LARGE + 1)), lambda it: it.append(1)),
    "many by name": (lambda: dict.fromkeys(range(LARGE + 1)), lambda it: it.setdefault("a", 1)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_an_attribute_leads_to_is_put_back(name):
    make, change = CHANGES[name]
    module = Holds(make())
    it, before = module.it, repr(module.it)
    taken = Picture(module)
    assert taken.restore() == 0
    assert taken.changed() == []
    change(it)
    after = repr(it)
    assert after != before
    # What it left can be left again.
    left = taken.changed()
    assert bool(left) != name.startswith("many")
    assert taken.restore() > 0
    assert module.it is it
    assert repr(it) == before
    if not name.startswith("many"):
        for thing in left:
            thing.write(thing.there, thing.held)
        assert repr(it) == after


@pytest.mark.parametrize("length", [LARGE - 1, LARGE, LARGE + 1])
@pytest.mark.parametrize("appends", [0, 1, 2])
def test_around_a_replay_a_long_history_keeps_what_came_after_the_pass(length, appends):
    module = Holds(list(range(length)))
    it, own = module.it, Own(module, [])
    it.append("later")
    with as_it_was(module, own, Undo()):
        assert len(it) == (length if length <= LARGE else length + 1)
        it += ["by the replay"] * appends
    assert it == [*range(length), "later"]


def test_what_a_module_no_longer_leads_to_is_as_it_was_after_a_replay():
    book = {"calls": 1}
    module = Holds(book)
    own = Own(module, [])
    book["calls"] = 2
    module.it = None
    with as_it_was(module, own, Undo()):
        assert module.it is book
        assert book == {"calls": 1}
        book["calls"] = 7
    assert module.it is None
    assert book == {"calls": 2}


def test_buffers_are_seen_however_much_else_there_is(monkeypatch):
    monkeypatch.setattr(picture, "MOST", 0)
    module = nn.Sequential(Holds([1]), nn.BatchNorm1d(3))
    assert {id(it) for it in module.buffers()} <= {id(it) for it in Picture(module).tensors}
    assert {id(it) for it in module.parameters()} <= {id(it) for it in Picture(module).tensors}


def test_generators_of_all_go_on_where_they_were():
    # With half of a pair of normal numbers left, and none; read in full, and seen to be the same.
    np.random.seed(3)
    for draws in (0, 1, 0, 0, 3, 2, 700, 1, 0, 1, 1):
        for _ in range(draws):
            np.random.randn()
        taken = Picture(Holds(None))
        expected = [(np.random.randn(), random.gauss(0, 1)) for _ in range(3)]
        assert taken.restore() == 2
        assert [(np.random.randn(), random.gauss(0, 1)) for _ in range(3)] == expected
    # What is left over alone is drawn: the key stays as it is.
    np.random.seed(3)
    np.random.randn()
    Picture(Holds(None))
    expected = np.random.randn()
    taken = Picture(Holds(None))
    np.random.seed(3)
    np.random.randn()
    assert np.random.randn() == expected
    following = np.random.randn()
    taken.restore()
    assert np.random.randn() == following


# ---- what it costs


class Slow:
    """Says by a program of its own what attributes it has: as configurations of Hugging Face do."""

    asked = 0

    def __init__(self):
        self.width = 1

    def __getattribute__(self, name):
        Slow.asked += 1
        return super().__getattribute__(name)


def test_an_object_is_asked_once_for_what_it_has():
    module = Holds(Slow())
    Picture(module)
    Slow.asked = 0
    Picture(module)
    assert Slow.asked == 1


def test_of_a_module_without_state_nothing_is_looked_at_twice():
    module = nn.Sequential(*(nn.Linear(2, 2) for _ in range(200)))
    taken = Picture(module)
    generators = len(Picture(nn.Identity()).things) - 1
    # Each has its attributes: numbers, and buffers that are none.
    assert len(taken.things) == 201 + generators
    assert len(taken.tensors) == 400
    taken.settle()
    assert all(type(it.held) is dict for it in taken.things[:201])


def test_of_a_long_history_its_length_alone_is_held():
    for there in (list(range(LARGE * 10)), dict.fromkeys(range(LARGE * 10))):
        taken = Picture(Holds(there))
        assert [it.held for it in taken.things if it.there is there] == [LARGE * 10]


class Keeps(nn.Module):
    """A history that grows, a count, a cache that is written into, and what it gave last."""

    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), Gated()
        self.batch = nn.BatchNorm1d(WIDTH)
        self.register_buffer("steps", torch.zeros(()))
        self.history, self.last, self.stats = [0.0] * LARGE, None, Slots()

    def forward(self, x):
        y = self.batch(self.norm(x).transpose(1, 2)).transpose(1, 2)
        self.steps += 1
        counts(self.stats)
        del self.stats.seen[:-2]
        self.history.append(self.stats.calls)
        self.last = y
        return x + self.mlp(y) * self.steps


class Late(nn.Module):
    """Something within it must not run twice, and notes that it ran."""

    class Once(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.history = nn.Linear(WIDTH, WIDTH), ["before"] * (LARGE + 1)
            self.own = torch.Generator().manual_seed(1)

        def forward(self, x):
            self.history.append(x.shape[1])
            return self.linear(x) * torch.rand(WIDTH, generator=self.own)

    def __init__(self):
        super().__init__()
        self.norm, self.once, self.mlp = nn.LayerNorm(WIDTH), self.Once(), Gated()

    def forward(self, x):
        return x + self.mlp(self.once(self.norm(x)))


@pytest.mark.parametrize("alpha", [0, "products", 0.5])
def test_a_replay_of_an_earlier_pass_takes_nothing_away_of_a_long_history(alpha):
    found = []
    for way in (None, alpha):
        torch.manual_seed(0)
        model = Model(layers=2, make=Late)
        if way is not None:
            girih.long_context(model, alpha=way)
        found.append([])
        for seed in range(4):
            losses = [model(ids(tokens=it, batch=2)).pow(2).mean() for it in (520, 530 + seed)]
            model.zero_grad(set_to_none=True)
            for loss in losses:
                loss.backward()
            found[-1] += [it.grad.clone() for it in model.parameters() if it.grad is not None]
            found[-1] += [torch.tensor(it.once.history[LARGE + 1 :]) for it in model.layers]
    layers = girih.long_context_report(model)["layers"]
    assert all(it["kept_whole"] == ["once"] and it["replays"] > 4 for it in layers)
    assert_same(*found)


def there():
    gc.collect()
    kinds = (Call, Picture, Thing, Own, Undo, torch.Tensor)
    return collections.Counter(
        kind.__name__ for it in gc.get_objects() for kind in kinds if type(it) is kind
    )


@pytest.mark.parametrize("alpha", [0, "products", 0.5])
def test_nothing_grows_with_the_run(alpha):
    def run(passes):
        for seed in range(passes):
            model.zero_grad(set_to_none=True)
            torch.manual_seed(seed)
            loss = model(ids(tokens=520, batch=2)).pow(2).mean()
            found[-1].append(loss.detach())
            loss.backward()
        found[-1] += [it.grad.clone() for it in model.parameters() if it.grad is not None]
        for layer in model.layers:
            own = layer.stats.calls, layer.stats.seen[-1], len(layer.history), layer.history[-1]
            found[-1] += [*map(torch.as_tensor, own), *(it.clone() for it in layer.buffers())]

    found = []
    for way in (None, alpha):
        found.append([])
        torch.manual_seed(0)
        model = Model(layers=2, make=Keeps)
        if way is not None:
            girih.long_context(model, alpha=way)
        run(9)
        if way is not None:
            counted = []
            for _ in range(3):
                found_before, found = found, [[]]
                run(4)
                found = found_before
                counted.append(there())
            assert counted[0] == counted[1] == counted[2]
            assert all(it["split"] > 0 for it in girih.long_context_report(model)["layers"])
    assert_same(*found)
