"""The statistics: memory_stats, its short forms, their resets and the table of them."""

from __future__ import annotations

import torch

from checks.registry import MIB, blank, check, equal


@check
def memory_stats_fields() -> None:
    """memory_stats() has every field, and the counters add up."""
    before = torch.cuda.memory_stats()
    block = blank(3)
    stats = torch.cuda.memory_stats()
    for name in (
        "allocation",
        "segment",
        "active",
        "inactive_split",
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "inactive_split_bytes",
        "requested_bytes",
    ):
        for pool in ("all", "small_pool", "large_pool"):
            current, peak, allocated, freed = (
                stats[f"{name}.{pool}.{part}"] for part in ("current", "peak", "allocated", "freed")
            )
            assert peak >= current >= 0, f"{name}.{pool}: peak {peak}, current {current}"
            change = current - before[f"{name}.{pool}.current"]
            came = allocated - before[f"{name}.{pool}.allocated"]
            went = freed - before[f"{name}.{pool}.freed"]
            equal(came - went, change, f"{name}.{pool}: what came less what went")
    for name in (
        "num_alloc_retries",
        "num_ooms",
        "num_sync_all_streams",
        "num_device_alloc",
        "num_device_free",
        "oversize_allocations.current",
        "oversize_segments.current",
        "max_split_size",
    ):
        assert name in stats, f"{name} is missing"
    assert stats["num_device_alloc"] > 0
    del block


@check
def allocated_and_peaks() -> None:
    """memory_allocated and its peak follow tensors to the byte."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    first, second = blank(3), blank(0.5)
    expected = before + 3 * MIB + MIB // 2
    equal(torch.cuda.memory_allocated(), expected, "memory_allocated")
    del first
    equal(torch.cuda.memory_allocated(), expected - 3 * MIB, "memory_allocated after a free")
    equal(torch.cuda.max_memory_allocated(), expected, "max_memory_allocated")
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    del second


@check
def resets() -> None:
    """reset_peak_memory_stats and reset_accumulated_memory_stats do that."""
    block = blank(64)
    del block
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    stats = torch.cuda.memory_stats()
    equal(
        torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated(), "the peak after the reset"
    )
    equal(stats["num_ooms"], 0, "num_ooms after the reset")
    freed = stats["allocated_bytes.all.freed"]
    assert freed == 0, f"{freed} bytes count as freed after the reset"


@check
def requested_bytes() -> None:
    """requested_bytes counts what was asked for, allocated_bytes what was granted."""
    before = torch.cuda.memory_stats()
    block = torch.empty(1000, dtype=torch.uint8, device="cuda")
    after = torch.cuda.memory_stats()
    name = "requested_bytes.all.current"
    equal(after[name] - before[name], 1000, "requested")
    granted = torch.cuda.memory_allocated() - before["allocated_bytes.all.current"]
    assert granted >= 1000, f"granted {granted}"
    del block


@check
def memory_summary() -> None:
    """memory_summary() is a table, also of another kind than the default."""
    for abbreviated in (False, True):
        assert "Allocated memory" in torch.cuda.memory_summary(abbreviated=abbreviated)
