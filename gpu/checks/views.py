"""The same memory as other parts of torch show it: torch.accelerator and torch.profiler."""

from __future__ import annotations

import torch

from checks.registry import MIB, Skip, blank, check, equal


@check
def accelerator() -> None:
    """torch.accelerator's memory functions give the same numbers."""
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or not hasattr(accelerator, "memory_allocated"):
        raise Skip("torch.accelerator.memory_* came with torch 2.9")
    block = blank(6)
    for name in (
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
    ):
        equal(getattr(accelerator, name)(), getattr(torch.cuda, name)(), name)
    equal(
        accelerator.memory_stats()["allocated_bytes.all.current"],
        torch.cuda.memory_stats()["allocated_bytes.all.current"],
        "memory_stats",
    )
    del block
    accelerator.reset_peak_memory_stats()
    accelerator.empty_cache()
    equal(
        torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated(), "the peak after the reset"
    )


@check
def profiler() -> None:
    """torch.profiler with profile_memory sees allocations on the GPU."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        block = blank(9) + 1
        torch.cuda.synchronize()
    del block
    averages = profile.key_averages()
    names = ("device_memory_usage", "cuda_memory_usage")
    most = max(abs(getattr(event, name, 0)) for event in averages for name in names)
    assert most >= 9 * MIB, f"the largest change that it saw is {most} bytes"
