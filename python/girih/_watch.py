"""What all hooks share: the finder of steps, and the way of a mark to the heaps.

A mark is a hint. If a heap refuses one, training goes on, and a warning says so once.
"""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from collections.abc import Callable
from typing import Any

from girih._errors import GirihWarning
from girih._steps import Steps

log = logging.getLogger("girih")

Before = Callable[[tuple[Any, ...], dict[str, Any]], None]
After = Callable[[], None]


class Watch:
    """Sees the training loop go by."""

    def __init__(self, mark: Callable[[str, str], None]) -> None:
        self._mark = mark
        self._has_warned = False
        # Called at each mark, if there is something to call.
        self.before_mark: After | None = None
        self.steps = Steps(self.mark)
        # True while a pass goes backward. Recomputation and schedules call further ones inside it,
        # on other threads too.
        self.is_backward = False

    def mark(self, kind: str, name: str = "") -> None:
        """Tells the heaps."""
        if self.before_mark is not None:
            self.before_mark()
        try:
            self._mark(kind, name)
        except RuntimeError as error:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(f"a mark was refused: {error}", GirihWarning, stacklevel=2)


def wrap(
    owner: Any, name: str, *, before: Before | None = None, after: After | None = None
) -> bool:
    """Has a function or method call `before` with its arguments, and `after` when it is over.

    Only what is a plain Python function of `owner` itself is touched; anything else means that the
    library is not of a kind that we know, and is left alone. Gives whether it was done.
    """
    function = vars(owner).get(name)
    if not inspect.isfunction(function):
        owner_name = getattr(owner, "__name__", owner)
        log.debug("%s has no function %s; Girih leaves it alone", owner_name, name)
        return False

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(args, kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            if after is not None:
                after()

    setattr(owner, name, wrapper)
    return True
