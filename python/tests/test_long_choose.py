"""The way that is the fastest is found by trying, and no device is waited for."""

import itertools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from long_layers import Model, assert_same, gradients, ids  # noqa: E402

import girih  # noqa: E402
from girih import _summary  # noqa: E402
from girih._long import api, choose  # noqa: E402
from girih._long.choose import (  # noqa: E402
    GAIN,
    MIXES,
    SLOWER,
    STEPS,
    STEPS_MOST,
    STEPS_UNTIMED,
    WAYS,
    Choosing,
    OnCpu,
)
from girih._long.part import Held, Part  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

HELD = Held(nothing=1, products=6, whole=10)
LAYERS = 3


class Run:
    """A training run on a device that is some steps behind, and swapping that settles late."""

    def __init__(self, seconds, *, host=1 << 60, layers=LAYERS, behind=0, settles=0, tokens=100):
        self.behind, self.settles, self.layers = behind, settles, layers
        self.noise = 1.0
        self.late = 1.05
        """What steps take before swapping has settled, of what they take then."""
        self.seconds = seconds
        """Of a token, by the level."""
        self.tokens = tokens if callable(tokens) else lambda step: tokens
        self.step, self.time = 0, 0.0
        # From 0: the 4th, the 8th, and another.
        self.compared = (3, 7, 10)
        self.levels = []
        self.choosing = Choosing(
            layers,
            0,
            host,
            steps=lambda: self.step,
            now=lambda: Mark(self),
            is_settled=lambda: self.steps_of_now() >= self.settles,
        )

    def steps_of_now(self):
        """How many of the last steps were of the level that is tried."""
        return next(
            (at for at, it in enumerate(reversed(self.levels)) if it != self.levels[-1]),
            len(self.levels),
        )

    def train(self, steps, passes=1):
        for _ in range(steps):
            for _ in range(passes):
                tokens = self.tokens(self.step)
                parts = [self.choosing.part(it, tokens, HELD) for it in range(self.layers)]
                level = sum(WAYS.index(way_of(part, tokens)) for part in parts)
                # The first two steps of a way are slow: that is no matter.
                is_slow = self.levels[-2:].count(level) < 2 or self.step in self.compared
                late = self.late if self.steps_of_now() + 1 < self.settles else 1
                self.time += self.seconds(level) * tokens * (9 if is_slow else late) * self.noise
            self.levels.append(level)
            self.step += 1
        return self.levels

    def ways(self):
        """The names of what was tried, in turn."""
        turns = [it for at, it in enumerate(self.levels) if not at or self.levels[at - 1] != it]
        return [self.choosing.name(it) for it in turns]


class Mark:
    def __init__(self, run):
        self.run, self.step, self.at = run, run.step, run.time

    def is_past(self):
        return self.run.step >= self.step + self.run.behind

    def since(self, other):
        assert self.is_past(), "the device is waited for"
        assert other.is_past(), "the device is waited for"
        return self.at - other.at


def way_of(part, tokens):
    return "whole" if part.first == tokens else "products" if part.products else "nothing"


def longer_of(computed, copied, layers):
    """Seconds of a step, by the level: what is computed gets less, what is copied more, products
    being half the bytes and most of the time."""

    def seconds(level):
        way, more = divmod(level, layers)
        part = more / layers
        lines = ((computed, (1.3, 1.03, 1.0, 1.0)), (copied, (0.0, 0.5, 1.0, 1.0)))
        return max(by * (at[way] * (1 - part) + at[way + 1] * part) for by, at in lines)

    return seconds


@pytest.mark.parametrize("fastest", WAYS)
@pytest.mark.parametrize("behind", [0, 1, 3])
@pytest.mark.parametrize("passes", [1, 4])
def test_the_fastest_way_stays(fastest, behind, passes):
    best = WAYS.index(fastest) * LAYERS
    run = Run(lambda level: 1.0 if level == best else 1.05, behind=behind)
    levels = run.train((3 + MIXES) * (STEPS + behind) + 20, passes)
    turns = [(level, len(list(steps))) for level, steps in itertools.groupby(levels)]
    assert [level for level, _ in turns[:3]] == [way * LAYERS for way in range(3)]
    assert all(STEPS <= steps <= STEPS + behind for _, steps in turns[:2])
    assert set(levels[-10:]) == {best}
    report = run.choosing.report()
    assert report["way"] == fastest
    assert report["us_per_token"][fastest] == pytest.approx(1e6)
    assert set(report["us_per_token"]) >= set(WAYS)


@pytest.mark.parametrize("layers", [1, 2, 4, 7, 32])
@pytest.mark.parametrize("copied", [0.1, 0.8, 1.0, 1.1, 1.3, 1.7, 2.1, 3.0])
@pytest.mark.parametrize("settles", [0, 14, 1 << 30])
def test_what_stays_is_as_fast_as_the_best_of_all_levels(layers, copied, settles):
    seconds = longer_of(1.0, copied, layers)
    run = Run(seconds, layers=layers, settles=settles)
    levels = run.train((3 + MIXES) * STEPS_MOST + 8)
    assert run.choosing.is_chosen
    assert len(set(levels)) <= 3 + MIXES
    least = min(map(seconds, range(2 * layers + 1)))
    assert seconds(levels[-1]) <= (1 + 2 * GAIN) * least


def test_what_has_settled_is_waited_for_unless_it_is_much_slower():
    run = Run(lambda level: (1.3, 1.0, 1.02)[level], layers=1, settles=14)
    run.train(60)
    assert [run.levels.count(level) for level in (0, 2)] == [14, 14], "nothing better was known"
    assert run.choosing.report()["us_per_token"]["products"] == pytest.approx(1e6)
    run = Run(lambda level: (1.0, 1.2, 1.02)[level], layers=1, settles=14)
    run.train(60)
    assert run.levels.count(1) == STEPS
    assert SLOWER > 1.05, "of a plan that has not settled"
    assert run.levels.count(2) == 14


def test_lengths_may_differ():
    def seconds(level):
        return (1.2, 1.0, 1.1)[level // LAYERS] if level % LAYERS == 0 else 1.05

    run = Run(seconds, tokens=lambda step: 50 + 37 * step % 100)
    assert run.train(60)[-1] == LAYERS


@pytest.mark.parametrize(
    ("host", "most"),
    [
        # What a layer holds of each token, times tokens and layers.
        (10 * 100 * LAYERS, 2 * LAYERS),
        (10 * 100 * LAYERS - 1, 2 * LAYERS - 1),
        (6 * 100 * LAYERS, LAYERS),
        (6 * 100 * LAYERS - 1, LAYERS - 1),
        (1 * 100 * LAYERS, 0),
        (0, 0),
    ],
)
def test_what_the_host_has_no_room_for_is_left_out(host, most):
    run = Run(lambda level: 1.3 - level / 100, host=host)
    levels = run.train(60)
    assert max(levels) == most
    assert levels[-1] == most, "the more is kept the faster it is"
    assert set(levels) >= {0, min(LAYERS, most)}
    report = run.choosing.report()
    assert report["way"] == run.choosing.name(most)
    if most == 2 * LAYERS - 1:
        assert report["way"] == "whole of 2 of 3 layers, products of the others"


def test_layers_that_keep_more_lie_evenly_and_the_last_is_one_of_them():
    choosing = Run(lambda level: 1.0, layers=8).choosing
    for level in range(17):
        choosing.level = level
        ways = [choosing._way_of(layer) for layer in range(8)]
        assert sum(ways) == level
        assert ways[-1] == max(ways)
        most = [at for at, way in enumerate(ways) if way == max(ways)]
        steps = {after - before for before, after in itertools.pairwise(most)}
        assert max(steps, default=0) - min(steps, default=0) <= 1


@pytest.mark.parametrize("behind", [0, 5])
def test_nothing_is_kept_of_what_was_tried(behind):
    run = Run(lambda level: 1.0, behind=behind, settles=1 << 30)
    for _ in range(300):
        run.train(1)
        assert len(run.choosing._closed) <= behind + 1
    assert run.choosing.is_chosen
    assert run.choosing._closed == []
    assert run.choosing._open is None
    assert len(run.choosing.seconds) <= 3 + MIXES


def test_before_anything_is_chosen_the_report_says_so():
    run = Run(lambda level: 1.0)
    run.train(STEPS_UNTIMED + 1)
    assert run.choosing.report() == {"way": "", "us_per_token": {}}


def test_a_model_trains_the_same_while_ways_are_tried(monkeypatch):
    monkeypatch.setattr(api, "swapping", lambda: {"gpu_budget": 1 << 40, "host_budget": 1 << 40})
    monkeypatch.setattr(api, "OnGpu", OnCpu)
    monkeypatch.setattr(api, "has_settled", lambda: True)
    model, whole = Model(layers=3), Model(layers=3)
    whole.load_state_dict(model.state_dict())
    girih.long_context(model)
    both = [(it, torch.optim.SGD(it.parameters(), 0.1)) for it in (whole, model)]
    for step in range((3 + MIXES) * STEPS + 3):
        data = ids(tokens=300 + step)
        assert_same(*(gradients(it, data) for it, _ in both))
        for _, optimizer in both:
            optimizer.step()
    found = girih.long_context_report(model)["found"]
    assert found["way"] in found["us_per_token"]
    assert set(found["us_per_token"]) >= set(WAYS)
    assert all(it > 0 for it in found["us_per_token"].values())
    line = _summary.line_of_split(girih.long_context_report(model)["layers"], found)
    tried = len(found["us_per_token"])
    assert line.endswith(f"{found['way']} kept, the fastest of {tried} ways that were tried")


def test_a_host_budget_leaves_ways_out_that_need_more(monkeypatch):
    monkeypatch.setattr(api, "swapping", lambda: {"gpu_budget": 1 << 40, "host_budget": 1 << 40})
    monkeypatch.setattr(api, "OnGpu", OnCpu)
    monkeypatch.setattr(api, "has_settled", lambda: True)
    for budget, most in (("1KiB", "nothing"), (None, "whole"), ("2TiB", "whole")):
        model = Model(layers=2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        girih.long_context(model, host_budget=budget)
        for _ in range((3 + MIXES) * STEPS + 3):
            gradients(model, ids(tokens=300))
            optimizer.step()
        found = girih.long_context_report(model)["found"]
        assert most in found["us_per_token"]
        assert (len(found["us_per_token"]) == 1) == (most == "nothing")
    assert api.of(model).share.host_budget == 1 << 40, "no more than swapping has"
    for kwargs in ({"alpha": 0}, {"gpu_budget": "1GiB"}):
        with pytest.raises(girih.GirihError, match="leave alpha and gpu_budget out"):
            girih.long_context(Model(), host_budget="1GiB", **kwargs)
    monkeypatch.setattr(api, "swapping", dict)
    with pytest.raises(girih.GirihError, match="start the program by"):
        girih.long_context(Model(), host_budget="1GiB")


def alone(least_tokens):
    return Choosing(1, least_tokens, 0, steps=lambda: 0, now=OnCpu, is_settled=lambda: True)


def test_a_budget_of_its_own_is_filled_and_nothing_tried(monkeypatch):
    monkeypatch.setattr(api, "swapping", lambda: {"gpu_budget": 1 << 40})
    with pytest.raises(girih.GirihError, match="give alpha"):
        girih.long_context(Model(), gpu_budget="1GiB")
    assert 0 < choose.host_memory() < 1 << 50
    assert alone(0).part(0, 7, Held()) == Part(0)
    assert not alone(9).is_worth_it(0, 8)
