"""The model of a program that says nothing: what it calls first, with a gradient to come."""

from __future__ import annotations

import logging
import weakref
from typing import Any

import torch

from girih._errors import GirihError
from girih._long import api
from girih._long.part import Alpha

log = logging.getLogger("girih")


def install(
    part: bool | Alpha | list[Alpha], gpu_budget: int | None, *, mlp_in_tiles: bool | int = False
) -> None:
    """Splits the first model that is called to be trained and has layers.

    `part` is alpha, or one for each layer, or True: then it is found. `gpu_budget` is in bytes.
    """
    hooks = torch.nn.modules.module
    handle: Any = None
    tried: weakref.WeakSet[Any] = weakref.WeakSet()

    def before(module: Any, _inputs: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if not module.training or module in tried:
            return
        # What it calls is called within it: the first one is the outermost.
        tried.update(module.modules())
        alpha = None if isinstance(part, bool) else part
        try:
            # What Girih swaps within is found by trying, and not to be filled.
            budget = None if alpha is not None or api.swapping() else gpu_budget
            api.apply(module, alpha=alpha, gpu_budget=budget, mlp_in_tiles=mlp_in_tiles)
        except GirihError as error:
            log.warning("%s is not split by tokens: %s", type(module).__name__, error)
            return
        log.info("%s is split by tokens", type(module).__name__)
        handle.remove()

    handle = hooks.register_module_forward_pre_hook(before)
