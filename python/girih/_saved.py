"""Puts the hooks of swapping under autograd: see `python/src/saved.rs`.

PyTorch keeps such hooks by thread. Those of the main thread hold in the backward passes that it
starts, whichever threads these run on. Where a program sets hooks of its own
(`torch.utils.checkpoint`, `save_on_cpu`), the innermost hold: what is saved within them stays as
they want it. The transforms of `torch.func` refuse to work under any; ours step aside for them.

What a saved tensor costs under hooks is in `bench/results/swap.md`: a microsecond or two. With a
budget they are set from the first on; without one, once a heap calls for them, for its GPU is half
full: between two instructions of the main thread, or at a mark. That may be anywhere, also within
hooks of the program's own or in the midst of a transform. There nothing is done: hooks are a stack,
and whoever has pushed the last will pop it. The next call, or the next mark, finds a better place.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from girih._errors import GirihWarning

log = logging.getLogger("girih")


class _Here(threading.local):
    """What is so in one thread."""

    # Hooks are just being disabled or enabled.
    is_busy = False
    # Ours were in force when hooks were disabled last.
    are_aside = False


class Hooks:
    """The hooks of one process, which hold in the thread that makes this."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._autograd = torch._C._autograd
        self._top: Callable[[bool], Any] | None = getattr(
            self._autograd, "_top_saved_tensors_default_hooks", None
        )
        self._thread = threading.get_ident()
        self._here = _Here()
        self._is_wanted = False
        self._is_looking = False

    @property
    def can_wait(self) -> bool:
        """True if it can be seen whether another's hooks are in force."""
        return self._top is not None

    def set(self) -> None:
        """From now on what this thread saves for backward has a record."""
        from girih import _native

        self._autograd._push_saved_tensors_default_hooks(_native.pack, _native.unpack)
        _native.note_hooks()

    def set_if_wanted(self) -> None:
        """Sets them if a heap wants them, they are not set, and nobody's would be in the way."""
        from girih import _native

        # A heap may call while this looks.
        if self._is_looking:
            return
        self._is_looking = True
        try:
            self._is_wanted = self._is_wanted or _native.wants_hooks()
            if self._is_wanted and self._may_be_set():
                # Whoever forbids hooks for a while says so with this error.
                with contextlib.suppress(RuntimeError):
                    self.set()
        finally:
            self._is_looking = False

    def _may_be_set(self) -> bool:
        if self._top is None or threading.get_ident() != self._thread:
            return False
        return not self._here.is_busy and self._top(True) is None

    def are_innermost(self) -> bool:
        """True if they are in force in this thread."""
        from girih import _native

        innermost = None if self._top is None else self._top(True)
        return innermost is not None and innermost[0] is _native.pack

    def step_aside(self) -> None:
        """From now on they are out of force wherever hooks are disabled.

        The context manager `disable_saved_tensors_hooks` calls these two functions, and so does
        what `torch.compile` makes of it. It stays itself, for Dynamo knows it by its identity.
        """
        for name in ("_saved_tensors_hooks_disable", "_saved_tensors_hooks_enable"):
            original = getattr(self._autograd, name, None)
            if original is not None:
                setattr(self._autograd, name, self._without_ours(original))

    def _without_ours(self, original: Callable[..., None]) -> Callable[..., None]:
        """Takes ours away before `original`, and brings them back as soon as hooks are allowed."""
        is_enabled = self._autograd._saved_tensors_hooks_is_enabled
        here = self._here

        @functools.wraps(original)
        def without_ours(*args: Any, **kwargs: Any) -> None:
            # First: a heap may call at any time, and nothing may be set from here on.
            was_busy, here.is_busy = here.is_busy, True
            try:
                if is_enabled():
                    # They are back, or of a state that the engine has taken from its thread.
                    here.are_aside = False
                if self.are_innermost():
                    self._autograd._pop_saved_tensors_default_hooks()
                    here.are_aside = True
                try:
                    original(*args, **kwargs)
                finally:
                    if here.are_aside and is_enabled():
                        self.set()
            finally:
                here.is_busy = was_busy

        return without_ours


def install(torch: Any) -> Hooks:
    """Sets the hooks now."""
    hooks = Hooks(torch)
    hooks.step_aside()
    hooks.set()
    return hooks


def install_when_wanted(torch: Any) -> Hooks:
    """Sets the hooks once a heap wants them."""
    from girih import _native

    hooks = Hooks(torch)
    if not hooks.can_wait:
        log.debug("torch %s does not tell of hooks: what does not fit stays", torch.__version__)
        return hooks
    hooks.step_aside()

    def called() -> None:
        hooks.set_if_wanted()
        say(_native.take_warnings)

    _native.when_called(called)
    return hooks


def say(take: Callable[[], list[str]]) -> None:
    """Says what heaps want a user to know, wherever the program is: so it raises nothing."""
    for text in take():
        try:
            warnings.warn(text, GirihWarning, stacklevel=3)
        except GirihWarning:
            # Warnings are errors in this program, which is in the midst of something.
            sys.stderr.write(f"girih: {text}\n")
