"""Marks by themselves: what torch itself lets one see of a training loop.

| seen | mark |
|:--|:--|
| an optimizer steps (`torch.optim`'s global hooks) | `optimizer`; after the last, `step` |
| `Tensor.backward`, `torch.autograd.backward` | `backward` |
| the model goes to evaluation and back (`Module.train`) | `eval`, `step` |

Each costs about a microsecond, a few times an iteration. While `torch.compile` traces, all of them
are silent: a mark belongs to no graph.
"""

from __future__ import annotations

import functools
import importlib
import logging
import threading
import weakref
from typing import Any

from girih._watch import Watch, wrap

log = logging.getLogger("girih")


def install(torch: Any, watch: Watch) -> None:
    """Sets the hooks."""
    optimizers = _Optimizers(torch, watch)
    _watch_backward(torch, watch)
    _watch_evaluation(torch, watch, optimizers)


class _Optimizers:
    """Tells the finder of steps about every `torch.optim.Optimizer`."""

    def __init__(self, torch: Any, watch: Watch) -> None:
        self._is_compiling = torch.compiler.is_compiling
        self._watch = watch
        self._known: set[int] = set()
        # The optimizer whose step has ended last, until a scaler asks.
        self._ended: int | None = None
        # The most parameters that any optimizer has: a measure of the model.
        self.parameters_max = 0
        # torch.optim hides this module behind the class of nearly its name.
        module = importlib.import_module("torch.optim.optimizer")
        module.register_optimizer_step_pre_hook(self._begins)
        module.register_optimizer_step_post_hook(self._ends)
        self._watch_scaler(torch)

    def _begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_compiling():
            return
        identity = id(optimizer)
        self._meet(optimizer)
        # `args` begins with the optimizer itself.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        self._watch.steps.optimizer_begins(identity, has_closure=closure is not None)

    def _ends(self, optimizer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        if not self._is_compiling():
            self._ended = id(optimizer)
            self._watch.steps.optimizer_ends(id(optimizer))

    def _meet(self, optimizer: Any) -> bool:
        """Whether it is known, be it from now on: then it will be forgotten when it dies.

        Its `id` may come again, so nothing is noted of one whose death nobody tells.
        """
        identity = id(optimizer)
        if identity in self._known:
            return True
        try:
            weakref.finalize(optimizer, self._forget, identity).atexit = False
        except TypeError:
            return False
        self._known.add(identity)
        parameters = sum(len(group["params"]) for group in getattr(optimizer, "param_groups", ()))
        self.parameters_max = max(self.parameters_max, parameters)
        return True

    def _forget(self, identity: int) -> None:
        self._known.discard(identity)
        self._watch.steps.optimizer_gone(identity)

    def _watch_scaler(self, torch: Any) -> None:
        """A step that `GradScaler` skips, for gradients that overflowed, ends an iteration too."""
        scaler = getattr(getattr(torch.amp, "grad_scaler", None), "GradScaler", None)
        stepping: list[int | None] = []

        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            optimizer = args[1] if len(args) > 1 else kwargs.get("optimizer")
            # The scaler may skip the first step of it that is seen.
            stepping.append(id(optimizer) if self._meet(optimizer) else None)
            self._ended = None

        def after() -> None:
            identity = stepping.pop()
            if identity is not None and identity != self._ended:
                self._watch.steps.optimizer_ends(identity)

        if scaler is not None:
            wrap(scaler, "step", before=before, after=after)


def _watch_backward(torch: Any, watch: Watch) -> None:
    """Marks the outermost backward pass. `Tensor.backward` calls this function too."""
    original = torch.autograd.backward
    is_compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if watch.is_backward or is_compiling():
            return original(*args, **kwargs)
        watch.is_backward = True
        try:
            watch.steps.backward()
            return original(*args, **kwargs)
        finally:
            watch.is_backward = False

    torch.autograd.backward = backward


def _watch_evaluation(torch: Any, watch: Watch, optimizers: _Optimizers) -> None:
    """Marks where the model is switched to evaluation and back.

    Programs switch parts of a model as well, to freeze them. A module counts as the model if it has
    at least half as many parameters as the largest optimizer; before the first iteration nothing
    does.
    """
    original = torch.nn.Module.train
    is_compiling = torch.compiler.is_compiling
    # Module.train calls itself for each child.
    inside = threading.local()

    def is_model(module: Any) -> bool:
        wanted = (optimizers.parameters_max + 1) // 2
        return any(number >= wanted for number, _ in enumerate(module.parameters(), start=1))

    @functools.wraps(original)
    def train(module: Any, mode: bool = True) -> Any:
        is_switch = module.training != mode and not is_compiling()
        if not is_switch or getattr(inside, "train", False):
            return original(module, mode)
        inside.train = True
        try:
            result = original(module, mode)
        finally:
            inside.train = False
        if watch.steps.count > 0 and is_model(module):
            if mode:
                watch.steps.evaluation_ends()
            else:
                watch.steps.evaluation_begins()
        return result

    torch.nn.Module.train = train
