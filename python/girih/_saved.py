"""Puts the hooks of swapping under autograd: see `python/src/saved.rs`.

PyTorch keeps such hooks by thread. Those of the main thread hold in the backward passes that it
starts, whichever threads these run on. Where a program sets hooks of its own
(`torch.utils.checkpoint`, `save_on_cpu`), the innermost hold: what is saved within them stays as
they want it.
"""

from __future__ import annotations

from typing import Any


def install(torch: Any) -> None:
    """From now on what this thread saves for backward has a record."""
    from girih import _native

    torch._C._autograd._push_saved_tensors_default_hooks(_native.pack, _native.unpack)
