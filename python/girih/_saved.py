"""Puts the hooks of swapping under autograd: see `python/src/saved.rs`.

PyTorch keeps such hooks by thread. Those of the main thread hold in the backward passes that it
starts, whichever threads these run on. Where a program sets hooks of its own
(`torch.utils.checkpoint`, `save_on_cpu`), the innermost hold: what is saved within them stays as
they want it. The transforms of `torch.func` refuse to work under any; ours step aside for them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any


def install(torch: Any) -> None:
    """From now on what this thread saves for backward has a record."""
    from girih import _native

    hooks = torch._C._autograd
    hooks._push_saved_tensors_default_hooks(_native.pack, _native.unpack)
    graph = torch.autograd.graph
    original = graph.disable_saved_tensors_hooks
    top = getattr(hooks, "_top_saved_tensors_default_hooks", lambda _: None)

    @functools.wraps(original)
    @contextlib.contextmanager
    def without_ours(*args: Any, **kwargs: Any) -> Iterator[Any]:
        innermost = top(True)
        is_ours = innermost is not None and innermost[0] is _native.pack
        if is_ours:
            hooks._pop_saved_tensors_default_hooks()
        try:
            with original(*args, **kwargs) as given:
                yield given
        finally:
            if is_ours:
                hooks._push_saved_tensors_default_hooks(_native.pack, _native.unpack)

    graph.disable_saved_tensors_hooks = without_ours
