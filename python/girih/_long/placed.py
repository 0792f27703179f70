"""What is put into a module in place of its own, and is in no copy of the module.

Copies, pickles and the replicas of `DataParallel` are made of a module's attributes. A forward that
lies among these would run the module that it was put into, with the weights of that one. So two
more attributes are put there, by which Python and torch ask a module what it is made of: they give
the attributes as they would be without. The class of the module stays what it is, for which
programs look.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

ASKED = ("__getstate__", "_replicate_for_data_parallel")
"""What a module is asked by who makes another of it."""
HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
)
_NOTHING: Any = object()


class Forward:
    """Runs in place of a module's own forward. A copy of it is the own forward of the copy."""

    def __init__(self, module: Any, runs: Callable[..., Any]) -> None:
        self.module = module
        self.original = module.forward
        self.runs = runs
        # Programs look at the names of what a forward takes.
        functools.update_wrapper(self, self.original, updated=())
        of(module).put("forward", self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.runs(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.original, memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.module, "forward")

    def remove(self) -> None:
        """Gives the module its own back. Who has noted this one as it runs that from now on."""
        self.runs = self.original
        of(self.module).take("forward", self)


class Placed:
    """What one module has of Girih's."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._values: dict[str, list[tuple[Any, Any]]] = {}
        """By the name of an attribute: what was put there, and what was there before; the last is
        there now."""
        self._hooks: list[Any] = []
        vars(module).update(zip(ASKED, (self, self._replica), strict=True))

    def put(self, name: str, value: Any) -> None:
        """An attribute is to be another."""
        there = vars(self._module)
        self._values.setdefault(name, []).append((value, there.get(name, _NOTHING)))
        there[name] = value

    def take(self, name: str, value: Any) -> None:
        """Puts back what was there before; not if the program has put something over it."""
        values = self._values[name]
        at = next(index for index, it in enumerate(values) if it[0] is value)
        _, before = values.pop(at)
        if at < len(values):
            values[at] = values[at][0], before
        elif vars(self._module).get(name) is value:
            _write(vars(self._module), name, before)
        if not values:
            del self._values[name]
        self._end()

    def hook(self, *handles: Any) -> None:
        """The module was given hooks."""
        self._hooks += handles

    def unhook(self, *handles: Any) -> None:
        """They are taken away."""
        for handle in handles:
            handle.remove()
            self._hooks.remove(handle)
        self._end()

    def __call__(self) -> Any:
        """The module's state, of which a copy is made."""
        state = type(self._module).__getstate__(self._module)
        return self._without(state) if isinstance(state, dict) else state

    def _replica(self) -> Any:
        replica = type(self._module)._replicate_for_data_parallel(self._module)
        replica.__dict__ = self._without(replica.__dict__)
        return replica

    def _without(self, attributes: dict[str, Any]) -> dict[str, Any]:
        plain = {name: it for name, it in attributes.items() if name not in ASKED}
        for name, values in self._values.items():
            if plain.get(name) is values[-1][0]:
                _write(plain, name, values[0][1])
        ours = {it.id for it in self._hooks}
        for name in HOOKS:
            if ours & plain[name].keys():
                plain[name] = type(plain[name])(
                    (key, it) for key, it in plain[name].items() if key not in ours
                )
        return plain

    def _end(self) -> None:
        if not self._values and not self._hooks:
            for name in ASKED:
                vars(self._module).pop(name, None)


def of(module: Any) -> Placed:
    """What a module has; nothing yet, if it is asked for the first time."""
    found = vars(module).get(ASKED[0])
    return found if isinstance(found, Placed) else Placed(module)


def _write(attributes: dict[str, Any], name: str, value: Any) -> None:
    if value is _NOTHING:
        attributes.pop(name, None)
    else:
        attributes[name] = value
