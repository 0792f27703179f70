"""Without the cache: `caching_allocator_enable(False)`, and PYTORCH_NO_CUDA_MEMORY_CACHING."""

from __future__ import annotations

import torch

from checks.child import child
from checks.registry import MIB, Skip, alone, check, equal


def requested() -> int:
    """Bytes that were ever asked of the cache."""
    return int(torch.cuda.memory_stats()["requested_bytes.all.allocated"])


@alone
def cache_off_and_on() -> None:
    """With the cache off neither tensors nor plain addresses come from it; then they do again."""
    if not hasattr(torch.cuda, "caching_allocator_enable"):
        raise Skip("this release does not have it")
    stream = torch._C._cuda_getCurrentRawStream(0)
    kept = torch.full((MIB,), 3, dtype=torch.uint8, device="cuda")
    before = requested()
    torch.cuda.caching_allocator_enable(False)
    try:
        place = torch._C._cuda_cudaCachingAllocator_raw_alloc(MIB, stream)
        assert place, "no address was given"
        torch._C._cuda_cudaCachingAllocator_raw_delete(place)
        tensor = torch.full((MIB,), 5, dtype=torch.uint8, device="cuda")
        equal(requested() - before, 0, "bytes asked of the cache while it is off")
    finally:
        torch.cuda.caching_allocator_enable(True)
    # What came from elsewhere goes back there, also now.
    equal(tensor.cpu().unique().tolist(), [5], "the tensor that was made meanwhile")
    del tensor
    place = torch._C._cuda_cudaCachingAllocator_raw_alloc(MIB, stream)
    torch._C._cuda_cudaCachingAllocator_raw_delete(place)
    equal(requested() - before, MIB, "bytes asked of the cache when it is on again")
    equal(kept.unique().tolist(), [3], "a tensor from before")


@check
def cache_off_from_the_start() -> None:
    """PYTORCH_NO_CUDA_MEMORY_CACHING=1 turns it off for the process, and 0 does not."""
    code = """
import torch
held = torch.full((1000,), 2.0, device="cuda")
print(torch.cuda.memory_allocated(), held.sum().item())
"""
    for word, allocated in (("1", 0), ("0", 4096)):
        found = child(code, PYTORCH_NO_CUDA_MEMORY_CACHING=word)
        equal(found.returncode, 0, f"the exit status ({found.stderr.strip()[-300:]})")
        equal(found.stdout.split(), [str(allocated), "2000.0"], f"what {word} gives")
