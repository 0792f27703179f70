"""The parameters that a pass ran with: a replay runs with them, whatever the modules have by then.

A program may have others in its modules for one pass (`torch.func.functional_call`, averaged
weights), and may freeze some before the backward pass. Autograd has what it saved of those of the
pass, and what is computed again must be of the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from operator import is_
from typing import Any

from girih._long.communicate import is_wrapper
from girih._long.picture import modules_of


class Weights:
    """Parameters of a module and of those within it."""

    def __init__(self, module: Any) -> None:
        self._tables: list[tuple[dict[str, Any], dict[str, Any]]] = []
        """Where each module has them, and those that are there."""
        self._learns: list[tuple[Any, bool]] = []
        """Each, and whether it wants a gradient."""
        for it in modules_of(module):
            if table := it._parameters:
                self._tables.append((table, table.copy()))
                self._learns += [
                    (one, one.requires_grad) for one in table.values() if one is not None
                ]

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within, the modules have them."""
        others = [(table, table.copy(), was) for table, was in self._tables if _differ(table, was)]
        # Two modules may have the same.
        turned = {it for it, learns in self._learns if it.requires_grad != learns and it.is_leaf}
        try:
            for table, now, was in others:
                table.update({name: it for name, it in was.items() if _is_one(it, now.get(name))})
            _turn(turned)
            yield
        finally:
            _turn(turned)
            for table, now, _ in others:
                table.clear()
                table.update(now)


def _differ(table: dict[str, Any], was: dict[str, Any]) -> bool:
    return len(table) != len(was) or not all(map(is_, table.values(), was.values()))


def _is_one(was: Any, now: Any) -> bool:
    """Whether one is there in place of the other by a program's will.

    FSDP2 has the parameter of this rank's part in a module, and while the module is used the whole
    one: which of them is there is its own affair.
    """
    return bool(_sharding(was) == _sharding(now))


def _sharding(it: Any) -> Any:
    return (it.device_mesh, it.placements) if is_wrapper(type(it)) else None


def _turn(parameters: set[Any]) -> None:
    for it in parameters:
        it.requires_grad_(not it.requires_grad)
