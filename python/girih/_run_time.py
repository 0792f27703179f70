"""Allocator settings that a program changes while it runs.

torch keeps them in a configuration of its own, and its own allocator looks there. From 2.10 on the
shim hears of each change itself. Where it does not, torch's functions that change them are wrapped:

    torch.cuda.memory._set_allocator_settings ─► torch._C ─► torch's configuration
                                                    └──────► the heaps
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from girih._toolchain import release_of

# Before it the shim cannot hear of settings, and torch raises RuntimeError for what is wrong.
_HEARD_BY_SHIM = (2, 10)


def follow(torch: Any, door: str, change: Callable[[str], None]) -> None:
    """Has `change` called with each text that a program sets, where the door does not see to it.

    What it refuses, by a ValueError, the program gets as the kind of error that torch raises.
    """
    release = release_of(str(torch.__version__))
    is_late = release >= _HEARD_BY_SHIM
    if is_late and door == "shim":
        return
    names = ["_cuda_cudaCachingAllocator_set_allocator_settings"]
    if is_late:
        # Before, this changes settings that no CUDA allocator looks at.
        names.append("_accelerator_setAllocatorSettings")
    for name in names:
        if inner := getattr(torch._C, name, None):
            setattr(
                torch._C, name, _followed(inner, change, ValueError if is_late else RuntimeError)
            )


def _followed(
    inner: Callable[[str], None], change: Callable[[str], None], kind: type[Exception]
) -> Callable[[str], None]:
    """`inner`, which may refuse a text, and then `change`."""

    @functools.wraps(inner)
    def set_allocator_settings(text: str) -> None:
        inner(text)
        try:
            change(text)
        except ValueError as error:
            raise kind(str(error)) from None

    return set_allocator_settings
