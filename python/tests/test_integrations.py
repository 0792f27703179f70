"""The frameworks, each as a module of its shape that is made up here."""

import sys
import types

import pytest

from girih import _integrations
from girih._integrations import deepspeed, lightning, megatron, transformers


def module(name, **members):
    made = types.ModuleType(name)
    vars(made).update(members)
    return made


def test_megatron_marks_every_microbatch_and_every_iteration(watch, marks):
    schedules = module("schedules")

    def forward_step(data):
        return data

    def backward_step(gradient):
        assert watch.is_backward

    def forward_backward_no_pipelining(*, forward_only=False):
        for microbatch in range(2):
            schedules.forward_step(microbatch)
            if not forward_only:
                schedules.backward_step(microbatch)

    vars(schedules).update(
        forward_step=forward_step,
        backward_step=backward_step,
        forward_backward_no_pipelining=forward_backward_no_pipelining,
    )
    megatron.look(schedules, watch)
    schedules.forward_backward_no_pipelining()
    assert marks == [
        ("step", "1"),
        ("forward_step", "0"),
        ("forward_step_end", ""),
        ("backward_step", "0"),
        ("backward_step_end", ""),
        ("forward_step", "1"),
        ("forward_step_end", ""),
        ("backward_step", "1"),
        ("backward_step_end", ""),
    ]
    del marks[:]
    schedules.forward_backward_no_pipelining(forward_only=True)
    schedules.forward_backward_no_pipelining()
    assert marks.kinds().startswith("eval forward_step forward_step_end")
    assert ("step", "2") in marks


def test_a_deepspeed_engine_says_which_step_ends_the_iteration(watch, marks):
    class DeepSpeedEngine:
        micro_steps = 0

        def is_gradient_accumulation_boundary(self):
            return (self.micro_steps + 1) % 2 == 0

        def forward(self):
            pass

        def backward(self):
            watch.steps.optimizer_begins(1)

        def step(self):
            # ZeRO: the optimizer steps for each group of parameters.
            if self.is_gradient_accumulation_boundary():
                for _ in range(3):
                    watch.steps.optimizer_ends(1)
            self.micro_steps += 1

    deepspeed.look(module("deepspeed.runtime.engine", DeepSpeedEngine=DeepSpeedEngine), watch)
    engine = DeepSpeedEngine()
    for _ in range(4):
        engine.forward()
        engine.backward()
        engine.step()
    assert [mark for mark in marks if mark[0] == "step"] == [("step", "1"), ("step", "2")]
    assert marks.kinds().count("forward") == 4


def test_the_trainer_marks_microbatches_and_evaluations(watch, marks):
    class Trainer:
        def training_step(self):
            watch.steps.backward()

        def evaluation_loop(self):
            pass

    transformers.look(module("transformers.trainer", Trainer=Trainer), watch)
    trainer = Trainer()
    trainer.training_step()
    trainer.training_step()
    trainer.evaluation_loop()
    assert marks.kinds() == "forward backward forward backward eval step"


def test_lightning_marks_batches_and_evaluations(watch, marks):
    class Strategy:
        def training_step(self):
            pass

    class _EvaluationLoop:
        def run(self):
            pass

    lightning.look(module("lightning.pytorch.strategies.strategy", Strategy=Strategy), watch)
    name = "pytorch_lightning.loops.evaluation_loop"
    lightning.look(module(name, _EvaluationLoop=_EvaluationLoop), watch)
    Strategy().training_step()
    _EvaluationLoop().run()
    assert marks.kinds() == "forward eval step"


def test_a_framework_of_another_shape_is_left_alone(watch):
    for look in (megatron.look, transformers.look, deepspeed.look, lightning.look):
        _integrations._look(look, watch, module("something.else"))


def test_installing_imports_no_framework(watch):
    before = set(sys.modules)
    _integrations.install(watch)
    frameworks = {"megatron", "transformers", "accelerate", "lightning", "deepspeed"}
    assert not {name.partition(".")[0] for name in set(sys.modules) - before} & frameworks


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("transformers.trainer", "Trainer"),
        ("accelerate.accelerator", "Accelerator"),
        ("lightning.pytorch.strategies.strategy", "Strategy"),
        ("megatron.core.pipeline_parallel.schedules", "forward_step"),
    ],
)
def test_the_real_framework_has_the_shape_that_we_look_for(name, attribute, watch, caplog):
    real = pytest.importorskip(name, reason=f"{name} is not installed", exc_type=ImportError)
    caplog.set_level("DEBUG", "girih")
    for names, look in _integrations._INTEGRATIONS:
        if name in names:
            look(real, watch)
    assert hasattr(real, attribute)
    assert not caplog.records, caplog.text
