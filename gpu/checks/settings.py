"""Allocator settings that a program changes while it runs, and what a snapshot says of them.

Each check has a process of its own: settings stay until the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from checks.registry import Skip, alone, blank, equal, girih_mode

# Modes that have their large segments in pages. `auto` and `plan` are so where they follow no plan.
EXPANDABLE = ("expandable", "stitch", "auto", "plan")


def shown() -> dict[str, Any]:
    """The settings, as a snapshot has them."""
    settings: dict[str, Any] = torch.cuda.memory._snapshot()["allocator_settings"]
    return settings


def change_and_look(change: Callable[[str], None]) -> None:
    """Two settings are changed and changed again; a wrong one raises."""
    change("max_split_size_mb:64,garbage_collection_threshold:0.8")
    equal(shown()["max_split_size"], 64 << 20, "max_split_size")
    found = shown()["garbage_collection_threshold"]
    assert abs(found - 0.8) < 1e-6, f"garbage_collection_threshold is {found}"
    block = blank(100)
    del block
    change("max_split_size_mb:128,garbage_collection_threshold:0.5")
    equal(shown()["max_split_size"], 128 << 20, "max_split_size, changed again")
    for wrong in ("no_such_setting:1", "garbage_collection_threshold:7"):
        with contextlib.suppress(ValueError, RuntimeError):
            change(wrong)
            raise AssertionError(f"{wrong} was accepted")
    block = blank(100)
    equal(block.fill_(7).unique().tolist(), [7], "a tensor after all this")


@alone
def settings_while_it_runs() -> None:
    """torch.cuda.memory._set_allocator_settings: the snapshot shows them, a wrong one raises."""
    change_and_look(torch.cuda.memory._set_allocator_settings)


@alone
def settings_of_the_accelerator() -> None:
    """torch._C._accelerator_setAllocatorSettings does the same (torch 2.10 and later)."""
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if change is None:
        raise Skip("this release does not have it")
    torch.cuda.init()
    change_and_look(change)


@alone
def settings_say_expandable() -> None:
    """The settings say that segments are expandable exactly where a large segment is."""
    block = blank(64)
    address = block.data_ptr()
    segment = next(
        segment
        for segment in torch.cuda.memory_snapshot()
        if segment["address"] <= address < segment["address"] + segment["total_size"]
    )
    mode = girih_mode()
    if mode in EXPANDABLE:
        equal(segment["is_expandable"], True, f"is_expandable of a segment under {mode}")
    equal(shown()["expandable_segments"], segment["is_expandable"], "expandable_segments")
