"""Megatron-core: its pipeline schedules know every microbatch.

A schedule (`forward_backward_*`) is one iteration's forward and backward passes, or an evaluation.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from girih._steps import Authority
from girih._watch import Watch, wrap

MODULES = ("megatron.core.pipeline_parallel.schedules",)


def look(module: ModuleType, watch: Watch) -> None:
    """Sets the hooks."""
    for name in (
        "forward_backward_no_pipelining",
        "forward_backward_pipelining_with_interleaving",
        "forward_backward_pipelining_without_interleaving",
    ):
        wrap(module, name, before=functools.partial(_schedule_begins, watch))

    def forward(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        watch.mark("forward_step", str(watch.steps.next_forward()))

    def backward(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        # What torch does in here is part of this pass.
        watch.is_backward = True
        watch.mark("backward_step", str(watch.steps.next_backward()))

    def backward_ends() -> None:
        watch.is_backward = False
        watch.mark("backward_step_end")

    wrap(module, "forward_step", before=forward, after=lambda: watch.mark("forward_step_end"))
    for name in ("backward_step", "backward_step_multimodule"):
        wrap(module, name, before=backward, after=backward_ends)


def _schedule_begins(watch: Watch, _args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    # Every schedule takes its arguments by name.
    if kwargs.get("forward_only", False):
        watch.steps.evaluation_begins()
    else:
        watch.steps.begin(Authority.INTEGRATION)
