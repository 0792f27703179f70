"""Frameworks whose training loops we know: each is looked into when, and only when, it is imported.

A module here has `MODULES`, the names of the framework's modules that it looks into, and
`look(module, watch)`. A framework that has changed its shape is left alone: `wrap` touches nothing
that it does not recognize, and an error here never reaches the program.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType

from girih._imports import when_imported
from girih._integrations import accelerate, deepspeed, lightning, megatron, transformers
from girih._watch import Watch

log = logging.getLogger("girih")


_INTEGRATIONS: tuple[tuple[tuple[str, ...], Callable[[ModuleType, Watch], None]], ...] = (
    (accelerate.MODULES, accelerate.look),
    (deepspeed.MODULES, deepspeed.look),
    (lightning.MODULES, lightning.look),
    (megatron.MODULES, megatron.look),
    (transformers.MODULES, transformers.look),
)


def install(watch: Watch) -> None:
    """Waits for every framework."""
    for names, look in _INTEGRATIONS:
        for name in names:
            when_imported(name, functools.partial(_look, look, watch))


def _look(look: Callable[[ModuleType, Watch], None], watch: Watch, module: ModuleType) -> None:
    try:
        look(module, watch)
    except Exception as error:
        log.debug("%s is not as expected: %s", module.__name__, error)
