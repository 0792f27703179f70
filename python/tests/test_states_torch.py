"""Optimizers of torch whose states are away between steps. On the CPU: a stand-in takes the bytes.

The stand-in empties the storages of all states when they are taken out, and fills them again when
they are asked for: whoever reads them unseen computes with nothing, or fails.
"""

import copy
import functools
import gc
import importlib
import io
import pickle
import warnings
import weakref

import pytest

pytest.importorskip("girih._native", reason="the extension is not built")
torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from girih import _native, _states  # noqa: E402


class Records:
    """As `_native.Records`: what the states had, until they are asked for."""

    def __init__(self, counts, state):
        self.counts, self.away = counts, []
        counts["alive"] += 1
        for own in state.values():
            for value in own.values():
                if torch.is_tensor(value) and value.is_floating_point() and value.dim() > 0:
                    storage = value.untyped_storage()
                    if not storage.resizable():
                        # It was read from a file.
                        continue
                    self.away.append((value, bytes(storage)))
                    storage.resize_(0)
        counts["went"] += len(self.away)

    def bring(self, is_step):
        if self.counts["full"]:
            raise torch.OutOfMemoryError("there is no room for them")
        self.counts["steps" if is_step else "asked"] += bool(self.away)
        for value, content in self.away:
            storage = value.untyped_storage()
            storage.resize_(len(content))
            storage.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8).untyped_storage())
        self.away.clear()

    def give_up(self):
        self.counts["given_up"] += bool(self.away)
        self.away.clear()
        self.counts["alive"] -= 1


@pytest.fixture
def counts(monkeypatch):
    """Has all states go after each step. How often things came about."""
    counts = dict.fromkeys(("went", "steps", "asked", "given_up", "alive", "full"), 0)

    def seal(instance, key, sealed, _sharded):
        state = instance.pop("state")
        sealed.state, sealed.records = state, Records(counts, state)
        instance[key] = sealed
        return True

    monkeypatch.setattr(_native, "seal", seal)
    monkeypatch.setattr(_native, "wants_states", lambda: True)
    # torch.optim hides this module behind the class of nearly its name.
    module = importlib.import_module("torch.optim.optimizer")
    before = dict(vars(torch.optim.Optimizer))
    hooks = module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks
    kept = [dict(hook) for hook in hooks]
    _states.install(torch)
    yield counts
    for hook, own in zip(hooks, kept, strict=True):
        hook.clear()
        hook.update(own)
    if "state" in vars(torch.optim.Optimizer):
        del torch.optim.Optimizer.state
    torch.optim.Optimizer.__setstate__ = before["__setstate__"]
    gc.collect()
    assert counts["alive"] == 0, "something is left"


def is_away(optimizer):
    return "state" not in vars(optimizer)


class Training:
    """A model that is trained a few steps, in one of many ways."""

    def __init__(self, make=torch.optim.AdamW):
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.x = torch.randn(32, 8)
        self.optimizer = make(self.model.parameters(), lr=0.05)

    def loss(self):
        return self.model(self.x).square().mean()

    def step(self):
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def result(self):
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def plain(training):
    for _ in range(4):
        training.step()


def checkpointed(training):
    for step in range(5):
        training.step()
        if step == 2:
            file = io.BytesIO()
            torch.save(training.optimizer.state_dict(), file)
            training.step()
            file.seek(0)
            training.optimizer.load_state_dict(torch.load(file))


def loaded_twice(training):
    training.step()
    kept = copy.deepcopy(training.optimizer.state_dict())
    for _ in range(2):
        training.step()
        training.optimizer.load_state_dict(copy.deepcopy(kept))


def copied(training):
    training.step()
    twin = copy.deepcopy(training)
    training.step()
    twin.step()
    assert all(map(torch.equal, training.result(), twin.result()))
    training.optimizer = pickle.loads(pickle.dumps(training.optimizer))
    training.optimizer.param_groups[0]["params"] = list(training.model.parameters())
    training.step()


def looked_at(training):
    for _ in range(3):
        training.step()
        norms = [own["exp_avg"].norm() for own in training.optimizer.state.values()]
        assert all(norm > 0 for norm in norms)
        states = training.optimizer.state
        training.step()
        assert states is training.optimizer.state


def held(training):
    """A state that the program has is read without asking the optimizer."""
    training.step()
    moment = next(iter(training.optimizer.state.values()))["exp_avg"]
    training.optimizer.zero_grad()
    loss = training.loss()
    loss.backward(retain_graph=True)
    loss.backward()
    assert moment.norm() > 0
    training.optimizer.step()


def grown(training):
    training.step()
    extra = nn.Parameter(torch.ones(3))
    training.optimizer.add_param_group({"params": [extra], "lr": 0.1})
    (training.loss() + extra.sum()).backward()
    training.optimizer.step()
    assert len(training.optimizer.state) == 5


def scheduled(training):
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(training.optimizer, 4)
    for _ in range(4):
        training.step()
        schedule.step()


def scaled(training):
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(4):
        training.optimizer.zero_grad()
        loss = training.loss() * (float("inf") if step == 2 else 1.0)
        scaler.scale(loss).backward()
        # The third is skipped.
        scaler.step(training.optimizer)
        scaler.update()


def accumulated(training):
    for _ in range(3):
        for _ in range(4):
            training.loss().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()


def two(training):
    first, second = training.model[0], training.model[2]
    optimizers = [torch.optim.Adam(first.parameters()), torch.optim.Adam(second.parameters())]
    for step in range(6):
        training.model.zero_grad()
        training.loss().backward()
        optimizers[step % 2].step()
        if step % 3 == 0:
            optimizers[1].step()


def closure(training):
    def again():
        training.optimizer.zero_grad()
        loss = training.loss()
        loss.backward()
        return loss

    for _ in range(3):
        training.optimizer.step(again)


def replaced(training):
    """A program that puts its own dictionary in the place of the optimizer's."""
    training.step()
    fresh = type(training.optimizer)(training.model.parameters())
    training.optimizer.state = fresh.state
    training.step()
    training.step()


def failed(training):
    """A step that raises within, and one after it."""
    training.step()

    def broken():
        raise ValueError("the program's own")

    for _ in range(2):
        with pytest.raises(ValueError, match="own"):
            training.optimizer.step(broken)
        training.step()


def averaged(training):
    average = torch.optim.swa_utils.AveragedModel(training.model)
    for _ in range(3):
        training.step()
        average.update_parameters(training.model)


WAYS = [
    *(plain, checkpointed, loaded_twice, copied, looked_at, held, grown, scheduled, scaled),
    *(accumulated, two, closure, replaced, failed, averaged),
]
MAKES = {
    "adamw": torch.optim.AdamW,
    "foreach": functools.partial(torch.optim.AdamW, foreach=True),
    "fused": functools.partial(torch.optim.Adam, fused=True),
    "amsgrad": functools.partial(torch.optim.Adam, amsgrad=True),
}


def trained(way, make):
    training = Training(make)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        way(training)
    return training.result()


EXPECTED = {(way, make): trained(way, MAKES[make]) for way in WAYS for make in MAKES}


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("way", WAYS)
def test_parameters_are_equal_to_the_bit_and_nothing_is_left(way, make, counts, monkeypatch):
    if way is held:
        # The native one sees that somebody has it: nothing goes.
        monkeypatch.setattr(_native, "wants_states", lambda: False)
    found = trained(way, MAKES[make])
    assert all(map(torch.equal, found, EXPECTED[way, make]))
    assert counts["went"] > 0 or way is held


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(torch.optim.SGD, momentum=0.9),
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        torch.optim.Adadelta,
        torch.optim.NAdam,
        torch.optim.LBFGS,
    ],
)
def test_other_optimizers_are_equal_to_the_bit_too(make, counts, monkeypatch):
    way = closure if make is torch.optim.LBFGS else checkpointed
    found = trained(way, make)
    monkeypatch.setattr(_native, "wants_states", lambda: False)
    assert all(map(torch.equal, found, trained(way, make)))


def test_the_class_is_as_it_was_but_for_those_whose_states_are_away(counts):
    training = Training()
    assert not hasattr(torch.optim.Optimizer, "state")
    training.step()
    assert is_away(training.optimizer)
    assert counts["went"] == 8
    assert not hasattr(torch.optim.Optimizer, "state")
    with pytest.raises(AttributeError, match="has no attribute 'state'"):
        _ = torch.optim.AdamW.state
    assert len(training.optimizer.state) == 4
    assert not is_away(training.optimizer)
    assert set(vars(training.optimizer)) == set(vars(Training().optimizer))


def test_an_optimizer_without_states_says_so_as_ever(counts):
    Training().step()

    class Early(torch.optim.Optimizer):
        def __init__(self):
            self.state  # noqa: B018

    with pytest.raises(AttributeError, match="'Early' object has no attribute 'state'"):
        Early()
    assert counts["went"] > 0


def test_out_of_memory_leaves_all_as_it_was_and_can_be_tried_again(counts):
    training, other = Training(), Training()
    training.step()
    other.step()
    counts["full"] = True
    training.optimizer.zero_grad()
    training.loss().backward()
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            training.optimizer.step()
        with pytest.raises(torch.OutOfMemoryError):
            training.optimizer.state_dict()
        assert is_away(training.optimizer)
    counts["full"] = False
    training.optimizer.step()
    other.step()
    assert all(map(torch.equal, training.result(), other.result()))


def test_an_optimizer_that_dies_gives_its_states_up_also_in_a_cycle(counts):
    training = Training()
    training.step()
    training.optimizer.own = training.optimizer
    seen = weakref.ref(training.optimizer)
    del training
    gc.collect()
    assert seen() is None
    assert (counts["given_up"], counts["alive"]) == (1, 0)


def test_other_states_are_loaded_and_those_that_are_away_given_up_at_once(counts):
    training = Training()
    training.step()
    kept = copy.deepcopy(training.optimizer.state_dict())
    training.step()
    given_up = counts["given_up"]
    training.optimizer.load_state_dict(kept)
    assert counts["given_up"] == given_up + 1
    assert counts["alive"] == 0


class Own(torch.optim.AdamW):
    def __getstate__(self):
        return dict(vars(self))


class Property(torch.optim.AdamW):
    state = property(
        lambda self: vars(self)["own"], lambda self, value: vars(self).update(own=value)
    )


@pytest.mark.parametrize(
    "make", [Own, Property, functools.partial(torch.optim.AdamW, capturable=True, foreach=False)]
)
def test_those_with_ways_of_their_own_keep_their_states(make, counts, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: False)
    training = Training()
    training.optimizer = make(training.model.parameters())
    # On a CPU torch refuses to step what is capturable: only what comes afterwards is looked at.
    states = _states.States(torch)
    states.after(training.optimizer, (), {})
    assert counts["went"] == 0
    assert "_girih_states" not in vars(training.optimizer)


def test_a_heap_that_does_not_swap_is_offered_nothing(counts, monkeypatch):
    monkeypatch.setattr(_native, "wants_states", lambda: False)
    plain(Training())
    assert counts["went"] == 0


def test_a_torch_that_is_not_as_expected_loses_nothing_but_this(counts, monkeypatch):
    def refuse(*_):
        raise AttributeError("_use_count")

    monkeypatch.setattr(_native, "seal", refuse)
    plain(Training())
    assert counts["went"] == 0


def test_compiled_steps_find_their_states(counts, monkeypatch):
    """Those that were compiled when nothing was away, and those that find something away."""

    def run():
        training = Training()
        torch.compiler.reset()
        step = torch.compile(training.optimizer.step, backend="eager")
        for number in range(5):
            training.optimizer.zero_grad()
            training.loss().backward()
            (training.optimizer.step if number == 2 else step)()
        return training.result()

    found = run()
    assert counts["went"] > 0
    monkeypatch.setattr(_native, "wants_states", lambda: False)
    assert all(map(torch.equal, found, run()))


def test_what_is_sealed_cannot_be_pickled_by_accident(counts):
    training = Training()
    training.step()
    with pytest.raises(TypeError, match=r"optimizer\.state"):
        pickle.dumps(vars(training.optimizer))
    assert counts["went"] > 0
