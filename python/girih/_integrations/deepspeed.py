"""DeepSpeed: its engine knows which of its steps ends an iteration.

ZeRO calls an optimizer once for each group of parameters, so that optimizers say nothing here.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from girih._steps import Authority
from girih._watch import Watch, wrap

MODULES = ("deepspeed.runtime.engine", "deepspeed.runtime.pipe.engine")


def look(module: ModuleType, watch: Watch) -> None:
    """Sets the hooks."""
    if module.__name__.endswith(".pipe.engine"):
        _look_at_pipeline(module, watch)
    else:
        _look_at_engine(module, watch)


def _look_at_engine(module: ModuleType, watch: Watch) -> None:
    steps = watch.steps
    ends_iteration: list[bool] = []

    def forward(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        steps.claim(Authority.INTEGRATION)
        steps.forward()

    def backward(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        if not watch.is_backward:
            watch.is_backward = True
            steps.backward()

    def backward_ends() -> None:
        watch.is_backward = False

    def step(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        # The step itself moves on to the next microbatch, so it is asked before.
        ends_iteration.append(bool(args[0].is_gradient_accumulation_boundary()))

    def step_ends() -> None:
        if ends_iteration.pop():
            steps.begin(Authority.INTEGRATION)

    wrap(module.DeepSpeedEngine, "forward", before=forward)
    wrap(module.DeepSpeedEngine, "backward", before=backward, after=backward_ends)
    wrap(module.DeepSpeedEngine, "step", before=step, after=step_ends)


def _look_at_pipeline(module: ModuleType, watch: Watch) -> None:
    steps = watch.steps
    wrap(
        module.PipelineEngine,
        "train_batch",
        before=lambda _args, _kwargs: steps.begin(Authority.INTEGRATION),
    )
    wrap(
        module.PipelineEngine,
        "eval_batch",
        before=lambda _args, _kwargs: steps.evaluation_begins(),
        after=steps.evaluation_ends,
    )
