"""Hugging Face `Trainer`: its microbatches and its evaluations. Its steps are its optimizer's."""

from __future__ import annotations

from types import ModuleType

from girih._watch import Watch, wrap

MODULES = ("transformers.trainer",)


def look(module: ModuleType, watch: Watch) -> None:
    """Sets the hooks."""
    steps = watch.steps
    trainer = module.Trainer
    wrap(trainer, "training_step", before=lambda _args, _kwargs: steps.forward())
    wrap(
        trainer,
        "evaluation_loop",
        before=lambda _args, _kwargs: steps.evaluation_begins(),
        after=steps.evaluation_ends,
    )
