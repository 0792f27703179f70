"""Accelerate: its microbatches. Its steps are its optimizer's."""

from __future__ import annotations

from types import ModuleType

from girih._watch import Watch, wrap

MODULES = ("accelerate.accelerator",)


def look(module: ModuleType, watch: Watch) -> None:
    """Sets the hooks."""
    # A context manager around each microbatch: what calls it enters it at once.
    wrap(
        module.Accelerator,
        "accumulate",
        before=lambda _args, _kwargs: watch.steps.forward(),
    )
