"""Lightning, under both of its names: its batches and its evaluations.

Its steps are its optimizer's, which goes forward and backward in a closure.
"""

from __future__ import annotations

from types import ModuleType

from girih._watch import Watch, wrap

MODULES = (
    "lightning.pytorch.strategies.strategy",
    "lightning.pytorch.loops.evaluation_loop",
    "pytorch_lightning.strategies.strategy",
    "pytorch_lightning.loops.evaluation_loop",
)


def look(module: ModuleType, watch: Watch) -> None:
    """Sets the hooks."""
    steps = watch.steps
    if module.__name__.endswith(".strategy"):
        wrap(module.Strategy, "training_step", before=lambda _args, _kwargs: steps.forward())
    else:
        wrap(
            module._EvaluationLoop,
            "run",
            before=lambda _args, _kwargs: steps.evaluation_begins(),
            after=steps.evaluation_ends,
        )
