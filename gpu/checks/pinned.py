"""Pinned memory of the host, which is PyTorch's own: counted, cached, and part of captures."""

from __future__ import annotations

import gc

import torch

from checks.child import release
from checks.registry import Skip, alone, equal


@alone
def pinned_memory_is_counted() -> None:
    """host_memory_stats counts pinned tensors, and nothing else."""
    if not hasattr(torch.cuda, "host_memory_stats"):
        raise Skip("this release does not have it")
    torch.ones(1, device="cuda")
    gc.collect()
    torch._C._host_emptyCache()
    torch.cuda.reset_accumulated_host_memory_stats()
    before = torch.cuda.host_memory_stats()
    tensors = [torch.ones(kib * 1024, pin_memory=True) for kib in (10, 20)]
    block = torch.zeros(1 << 20, device="cuda")
    stats = torch.cuda.host_memory_stats()
    # Powers of two, of 40 and 80 KiB.
    for name, change in (("allocated_bytes", (64 + 128) << 10), ("allocations", 2)):
        equal(stats[f"{name}.current"] - before[f"{name}.current"], change, name)
    equal(stats["num_host_alloc"] - before["num_host_alloc"], 2, "num_host_alloc")
    del tensors, block


@alone
def pinned_memory_serves_again() -> None:
    """A pinned block serves again at once; one that a copy still reads, not before it is read."""
    host = torch.tensor([1.0]).pin_memory()
    place = host.data_ptr()
    del host
    host = torch.tensor([1.0]).pin_memory()
    equal(host.data_ptr(), place, "the place of the second one")
    there = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)
    there.copy_(host, non_blocking=True)
    del host
    other = torch.tensor([2.0]).pin_memory()
    assert other.data_ptr() != place, "it was given away while it was read"
    equal(there.tolist(), [1.0], "what was read")


@alone
def pinned_memory_in_a_capture() -> None:
    """Pinned blocks within a capture: one that a copy of the graph reads is never given away."""
    if release() < (2, 11):
        raise Skip("before 2.11 captures have no pinned memory of their own")
    for is_read in (False, True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            host = torch.randn(8).pin_memory()
            place = host.data_ptr()
            there = torch.zeros(8, device="cuda")
            if is_read:
                there.copy_(host, non_blocking=True)
            del host
            other = torch.randn(8).pin_memory()
        equal(other.data_ptr() == place, not is_read, f"that the place serves again ({is_read})")
        del other, there, graph
