"""Marks of modules, for those who ask for them (`modules=True`): the first two levels of calls.

    model                       level 0: the module that the program calls
    ├─ embedding                level 1: what its forward calls
    └─ decoder                  level 1
       └─ layers.0, layers.1    level 2: what those call

Forward passes are seen by torch's global module hooks, for which every module of the model pays
about a microsecond a call. Backward passes are seen by a hook on the output's gradient, which
changes nothing in the graph.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from girih._watch import Watch

_LEVELS = 2


class _Here(threading.local):
    """Where this thread is among the modules."""

    depth = 0
    root: Any = None


def install(torch: Any, watch: Watch) -> None:
    """Sets the hooks."""
    is_compiling = torch.compiler.is_compiling
    here = _Here()
    names: weakref.WeakKeyDictionary[Any, dict[int, str]] = weakref.WeakKeyDictionary()

    def name_of(module: Any) -> str:
        if here.root not in names:
            names[here.root] = {id(part): name for name, part in here.root.named_modules()}
        return names[here.root].get(id(module)) or type(module).__name__

    def enter(module: Any, _inputs: Any) -> None:
        if is_compiling():
            return
        if here.depth == 0:
            here.root = module
            watch.steps.forward()
        here.depth += 1
        if here.depth <= _LEVELS + 1:
            watch.mark("fwd_in", name_of(module))

    def leave(module: Any, _inputs: Any, output: Any) -> None:
        if is_compiling():
            return
        here.depth -= 1
        if here.depth <= _LEVELS:
            name = name_of(module)
            watch.mark("fwd_out", name)
            tensor = _first_with_gradient(torch, output)
            if tensor is not None:
                tensor.register_hook(lambda _gradient: watch.mark("bwd_in", name))
        if here.depth == 0:
            here.root = None

    hooks = torch.nn.modules.module
    hooks.register_module_forward_pre_hook(enter)
    # Called after an exception too, so that the depth stays right.
    hooks.register_module_forward_hook(leave, always_call=True)


def _first_with_gradient(torch: Any, output: Any) -> Any:
    """The first tensor of an output that a gradient will come back to; None if there is none."""
    if isinstance(output, torch.Tensor):
        return output if output.requires_grad else None
    if isinstance(output, dict):
        output = output.values()
    elif not isinstance(output, (list, tuple)):
        return None
    found = (_first_with_gradient(torch, part) for part in output)
    return next((tensor for tensor in found if tensor is not None), None)
