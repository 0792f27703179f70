"""Call something when a module has been imported, and never import it for that.

A finder stands at the head of `sys.meta_path`. It finds nothing itself: it asks the others, and has
the loader that they name call back when the module is ready. A module that nobody imports costs
nothing.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType

Callback = Callable[[ModuleType], None]

log = logging.getLogger("girih")

_waiting: dict[str, list[Callback]] = {}
# The modules that this thread is looking for right now, so that we do not ask ourselves.
_searching = threading.local()


def when_imported(name: str, callback: Callback) -> None:
    """Calls `callback` with the module `name`: now, if it is there, or once it is imported.

    An error in `callback` is logged, unless it is one that the program should see: it then comes
    out of the program's import.
    """
    module = sys.modules.get(name)
    if module is not None and not _is_initializing(module):
        callback(module)
        return
    _waiting.setdefault(name, []).append(callback)
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def _is_initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _Finder:
    """Asks the other finders, and wraps the loader that they give."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module that someone waits for; None for every other."""
        if name not in _waiting:
            return None
        searching: set[str] = _searching.__dict__.setdefault("names", set())
        if name in searching:
            return None
        searching.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            searching.discard(name)
        if spec is not None and spec.loader is not None:
            _call_back_after(spec)
        return spec


def _call_back_after(spec: importlib.machinery.ModuleSpec) -> None:
    """Has the callbacks called after the spec's loader has executed the module."""
    loader = spec.loader
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        log.debug("%s has an old kind of loader; Girih does not look into it", spec.name)
        return

    def exec_module(module: ModuleType) -> None:
        # The loader is itself again before the module runs: nobody sees a foreign attribute.
        loader.__dict__.pop("exec_module", None)
        execute(module)
        for callback in _waiting.pop(spec.name, []):
            callback(module)

    try:
        loader.__dict__["exec_module"] = exec_module
    except (AttributeError, TypeError):
        log.debug("%s has a loader without attributes; Girih does not look into it", spec.name)


_FINDER = _Finder()
