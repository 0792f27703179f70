"""The way that is the fastest is found by trying, and no device is waited for."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from long_layers import Model, assert_same, gradients, ids  # noqa: E402

import girih  # noqa: E402
from girih import _summary  # noqa: E402
from girih._long import api, choose  # noqa: E402
from girih._long.choose import STEPS, STEPS_TIMED, WAYS, Choosing, OnCpu  # noqa: E402
from girih._long.part import Held, Part  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

HELD = Held(nothing=1, products=6, whole=10)
LAYERS = 3


class Run:
    """A training run on a device that is some steps behind."""

    def __init__(self, seconds, *, host=1 << 60, behind=0, tokens=lambda step: 100):
        self.seconds, self.behind, self.tokens = seconds, behind, tokens
        self.step, self.time = 0, 0.0
        # From 0: the 4th, the 8th, and another.
        self.compared = (3, 7, 10)
        self.ways = []
        self.choosing = Choosing(LAYERS, 0, host, steps=lambda: self.step, now=lambda: Mark(self))

    def train(self, steps, passes=1):
        for _ in range(steps):
            for _ in range(passes):
                tokens = self.tokens(self.step)
                parts = [self.choosing.part(layer, tokens, HELD) for layer in range(LAYERS)]
                assert len({(it.first, it.products) for it in parts}) == 1
                name = way_of(parts[0], tokens)
                # The first two steps of a way are slow: that is no matter.
                is_slow = self.ways[-2:].count(name) < 2 or self.step in self.compared
                self.time += self.seconds[name] * tokens * (9 if is_slow else 1)
            self.ways.append(name)
            self.step += 1
        return self.ways


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


@pytest.mark.parametrize("fastest", WAYS)
@pytest.mark.parametrize("behind", [0, 1, 3])
@pytest.mark.parametrize("passes", [1, 4])
def test_the_fastest_way_stays(fastest, behind, passes):
    run = Run({way: 1.0 if way == fastest else 1.05 for way in WAYS}, behind=behind)
    ways = run.train(3 * STEPS + behind + 20, passes)
    assert ways[: 3 * STEPS] == [way for way in WAYS for _ in range(STEPS)]
    assert set(ways[3 * STEPS + behind :]) == {fastest}
    report = run.choosing.report()
    assert report["way"] == fastest
    assert report["us_per_token"][fastest] == pytest.approx(1e6)
    assert set(report["us_per_token"]) == set(WAYS)


def test_lengths_may_differ():
    run = Run(
        {"nothing": 1.2, "products": 1.0, "whole": 1.1}, tokens=lambda step: 50 + 37 * step % 100
    )
    assert set(run.train(30)[3 * STEPS :]) == {"products"}


@pytest.mark.parametrize(
    ("host", "tried"),
    [
        # What a layer holds of each token, times tokens and layers.
        (10 * 100 * LAYERS, WAYS),
        (10 * 100 * LAYERS - 1, WAYS[:2]),
        (1 * 100 * LAYERS, WAYS[:1]),
    ],
)
def test_a_way_that_the_host_has_no_room_for_is_left_out(host, tried):
    run = Run({"nothing": 1.2, "products": 1.1, "whole": 1.0}, host=host)
    ways = run.train(40)
    assert set(ways) == set(tried)
    assert ways[-1] == tried[-1]
    assert set(run.choosing.report()["us_per_token"]) == set(tried)


def test_nothing_is_kept_of_what_was_tried():
    run = Run(dict.fromkeys(WAYS, 1.0))
    run.train(100)
    assert run.choosing._closed == []
    assert run.choosing._open is None
    assert len(run.ways) == 100


def test_before_anything_is_chosen_the_report_says_so():
    run = Run(dict.fromkeys(WAYS, 1.0))
    run.train(STEPS)
    assert run.choosing.report() == {"way": "", "us_per_token": {}}
    assert STEPS_TIMED < STEPS


def test_a_model_trains_the_same_while_ways_are_tried(monkeypatch):
    monkeypatch.setattr(api, "swapping", lambda: {"gpu_budget": 1 << 40, "host_budget": 1 << 40})
    monkeypatch.setattr(api, "OnGpu", OnCpu)
    model, whole = Model(layers=3), Model(layers=3)
    whole.load_state_dict(model.state_dict())
    girih.long_context(model)
    both = [(it, torch.optim.SGD(it.parameters(), 0.1)) for it in (whole, model)]
    for step in range(3 * STEPS + 3):
        data = ids(tokens=300 + step)
        assert_same(*(gradients(it, data) for it, _ in both))
        for _, optimizer in both:
            optimizer.step()
    found = girih.long_context_report(model)["found"]
    assert found["way"] in WAYS
    assert set(found["us_per_token"]) == set(WAYS)
    assert all(it > 0 for it in found["us_per_token"].values())
    line = _summary.line_of_split(girih.long_context_report(model)["layers"], found)
    assert line.endswith(f"{found['way']} kept, the fastest of 3 ways that were tried")


def test_a_budget_of_its_own_is_filled_and_nothing_tried(monkeypatch):
    monkeypatch.setattr(api, "swapping", lambda: {"gpu_budget": 1 << 40})
    with pytest.raises(girih.GirihError, match="give alpha"):
        girih.long_context(Model(), gpu_budget="1GiB")
    assert 0 < choose.host_memory() < 1 << 50
    assert Choosing(1, 0, 0, steps=lambda: 0, now=OnCpu).part(0, 7, Held()) == Part(0)
    assert not Choosing(1, 9, 0, steps=lambda: 0, now=OnCpu).is_worth_it(0, 8)
