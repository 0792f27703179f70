"""The hooks in torch, on a torch that is not there."""

import warnings

import pytest

from girih import _hooks
from girih._errors import GirihWarning
from girih._watch import Watch, wrap


@pytest.fixture
def hooked(torch, watch):
    _hooks.install(torch, watch)
    return torch


def test_a_loop_is_marked_without_a_word_from_its_author(hooked, marks):
    optimizer = hooked.Optimizer()
    for _ in range(2):
        hooked.backward()
        optimizer.step()
    assert marks == [
        ("backward", "0"),
        ("optimizer", ""),
        ("step", "1"),
        ("backward", "0"),
        ("optimizer", ""),
        ("step", "2"),
    ]


def test_a_backward_pass_within_another_is_part_of_it(hooked, marks):
    hooked.backward(hooked.backward)
    hooked.backward()
    assert marks == [("backward", "0"), ("backward", "1")]


def test_a_backward_pass_that_fails_does_not_hide_the_next(hooked, marks):
    def fail():
        raise ValueError("no gradient")

    with pytest.raises(ValueError, match="no gradient"):
        hooked.backward(fail)
    hooked.backward()
    assert len(marks) == 2


def test_what_is_traced_by_the_compiler_is_not_marked(hooked, marks):
    hooked.is_compiling = True
    hooked.backward()
    hooked.Optimizer().step()
    hooked.nn.Module(parameters=99).eval()
    assert marks == []


def test_a_step_that_the_scaler_skips_ends_its_iteration(hooked, marks):
    scaler, optimizer = hooked.amp.grad_scaler.GradScaler(), hooked.Optimizer()
    for overflows in (False, True, False):
        scaler.overflows = overflows
        hooked.backward()
        scaler.step(optimizer)
    assert marks.kinds() == "backward optimizer step backward step backward optimizer step"


def test_a_closure_goes_backward_within_the_step(hooked, marks):
    hooked.Optimizer().step(closure=hooked.backward)
    assert marks.kinds() == "backward step"


def test_the_model_in_evaluation_is_marked_and_so_is_its_return(hooked, marks):
    model, optimizer = hooked.nn.Module(hooked.nn.Module(parameters=10)), hooked.Optimizer(10)
    model.eval()
    model.train()
    optimizer.step()
    del marks[:]
    model.eval()
    model.train()
    model.train()
    assert marks.kinds() == "eval step"


def test_a_part_that_is_frozen_is_no_evaluation(hooked, marks):
    part = hooked.nn.Module(parameters=2)
    model = hooked.nn.Module(part, hooked.nn.Module(parameters=8))
    hooked.Optimizer(10).step()
    del marks[:]
    model.train()
    part.eval()
    assert marks == []


def test_an_optimizer_that_dies_is_forgotten(hooked, watch):
    first = hooked.Optimizer()
    first.step()
    del first
    assert watch.steps._anchor is None


def test_an_optimizer_whose_every_step_the_scaler_skipped_is_forgotten_too(hooked, watch):
    anchor, scaler = hooked.Optimizer(), hooked.amp.grad_scaler.GradScaler()
    anchor.step()
    scaler.overflows = True
    for _ in range(3):
        scaler.step(hooked.Optimizer())
    assert watch.steps._anchor_steps_since == {}


def test_what_steps_for_an_optimizer_and_cannot_be_watched_ends_no_iteration(hooked, marks):
    class Slotted:
        """A wrapper to which no weak reference can be had."""

        __slots__ = ()

        def step(self):
            pass

    hooked.amp.grad_scaler.GradScaler().step(Slotted())
    assert marks == []


def test_a_mark_that_is_refused_warns_once_and_training_goes_on(torch):
    def refuse(kind, name):
        raise RuntimeError("the driver is gone")

    _hooks.install(torch, Watch(refuse))
    with pytest.warns(GirihWarning, match="the driver is gone"):
        torch.backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.backward()


def test_wrap_touches_only_plain_functions_of_the_owner_itself():
    class Base:
        def inherited(self):
            return 1

    class Owner(Base):
        attribute = 3
        built_in = len

    assert not any(wrap(Owner, name) for name in ("inherited", "attribute", "built_in", "missing"))


def test_wrap_calls_after_even_if_the_function_fails():
    calls = []

    class Owner:
        def work(self):
            raise KeyError("work")

    wrap(Owner, "work", before=lambda args, kwargs: calls.append(1), after=lambda: calls.append(2))
    with pytest.raises(KeyError):
        Owner().work()
    assert calls == [1, 2]
