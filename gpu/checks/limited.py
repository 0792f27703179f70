"""A process that may have little: what checks of limits are made with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from checks.registry import MIB, blank


@contextlib.contextmanager
def only(mebibytes: int) -> Iterator[None]:
    """So many MiB may be held, and no more, beside what is held already."""
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    # A share is rounded: a little more than the bytes that are meant.
    allowed = mebibytes * MIB + torch.cuda.memory_reserved() + 4096
    torch.cuda.set_per_process_memory_fraction(allowed / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def is_refused(mebibytes: int) -> bool:
    """True if so many MiB cannot be had."""
    try:
        blank(mebibytes)
    except torch.OutOfMemoryError:
        return True
    return False
