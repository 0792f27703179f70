"""How a `torch.cuda.MemPool` may behave: it lends when memory is out, or never splits a segment.

Each check has a process of its own, whose memory it limits.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import inspect
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from checks.child import release
from checks.limited import is_refused, only
from checks.mempools import counting_allocator
from checks.registry import MIB, Skip, alone, blank, equal, girih_mode
from checks.settings import shown


def pool_with(*arguments: Any, **options: bool) -> torch.cuda.MemPool:
    """A pool; skips where this release does not know the option."""
    known = inspect.signature(torch.cuda.MemPool.__init__).parameters
    if lacking := [name for name in options if name not in known]:
        raise Skip(f"this release has no {', '.join(lacking)}")
    return torch.cuda.MemPool(*arguments, **options)


@contextlib.contextmanager
def own_allocator() -> Iterator[tuple[Any, ctypes.CDLL]]:
    """An allocator for pools, and its counters."""
    with tempfile.TemporaryDirectory() as folder:
        path = counting_allocator(Path(folder))
        counters = ctypes.CDLL(str(path))
        counters.bytes_out.restype = counters.times_called.restype = ctypes.c_longlong
        yield torch.cuda.memory.CUDAPluggableAllocator(str(path), "take", "give"), counters


def lends(*allocator: Any) -> None:
    """Of two pools with free memory, the one that lends serves when nothing else can."""
    keeps = pool_with(*allocator)
    gives = pool_with(*allocator, use_on_oom=True)
    with only(80):
        tensors = []
        for pool in (keeps, gives):
            with torch.cuda.use_mem_pool(pool):
                tensors.append(blank(40))
        place = tensors[1].data_ptr()
        equal(is_refused(40), True, "that a request is refused while both pools are in use")
        tensors.clear()
        lent = blank(30)
        equal(lent.fill_(3).data_ptr(), place, "the place of what is lent")
        equal(is_refused(30), True, "that one is refused which only the other pool could serve")
        equal(lent.cpu().unique().tolist(), [3], "what is lent")
        del lent
        with torch.cuda.use_mem_pool(gives):
            own = blank(20)
        equal(own.data_ptr(), place, "the place of the pool's own block afterwards")
        del own


@alone
def pool_lends() -> None:
    """use_on_oom=True: what is free in the pool serves others before they are out of memory."""
    if girih_mode() in (None, "expandable") and shown()["expandable_segments"]:
        raise Skip("PyTorch does not lend what lies in expandable segments")
    lends()


@alone
def pool_with_an_allocator_lends() -> None:
    """The same of a pool with an allocator of its own."""
    with own_allocator() as (allocator, _counters):
        lends(allocator.allocator())


@alone
def pools_that_are_gone_lend_nothing() -> None:
    """Of many pools that lent, one after the other, only the living one serves, in parts."""
    with own_allocator() as (allocator, counters), only(40):
        for _ in range(10):
            pool = pool_with(allocator.allocator(), use_on_oom=True)
            with torch.cuda.use_mem_pool(pool):
                block = blank(40)
            del block, pool
            gc.collect()
        equal(counters.bytes_out(), 0, "bytes that are out when all pools are gone")
        pool = pool_with(allocator.allocator(), use_on_oom=True)
        with torch.cuda.use_mem_pool(pool):
            block = blank(40)
        del block
        halves = [blank(20).fill_(at) for at in range(2)]
        equal([half.cpu().unique().tolist() for half in halves], [[0], [1]], "what is lent")
        equal(is_refused(20), True, "that a third half is refused")
        del halves, pool


@alone
def pool_never_splits() -> None:
    """no_split=True: each block has all that was taken for it, and lends no part of it."""
    whole, split = pool_with(no_split=True), pool_with()
    tensors = []
    for pool in (split, whole):
        for _ in range(2):
            with torch.cuda.use_mem_pool(pool):
                tensors.append(blank(4))
    blocks = {
        pool.id: [block for segment in pool.snapshot() for block in segment["blocks"]]
        for pool in (split, whole)
    }
    states = [block["state"] for block in blocks[whole.id]]
    equal(states, ["active_allocated"] * 2, "the blocks of the pool that does not split")
    assert min(block["size"] for block in blocks[whole.id]) >= 4 * MIB
    held = sum(block["size"] for block in blocks[whole.id])
    equal(held, sum(it["total_size"] for it in whole.snapshot()), "bytes of its blocks")
    live = [it["size"] for it in blocks[split.id] if it["state"] == "active_allocated"]
    equal(live, [4 * MIB] * 2, "the live blocks of the pool that splits")
    del tensors


@alone
def allocator_outlives_its_name() -> None:
    """A tensor in a pool whose allocator the program has let go of goes back to that allocator."""
    if release() < (2, 11):
        raise Skip("before 2.11 nothing but the program keeps the allocator")
    with own_allocator() as (allocator, counters):
        pool = torch.cuda.MemPool(allocator.allocator())
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.full((1000,), 7.0, device="cuda")
        assert counters.bytes_out() > 0, "the allocator was not asked"
        del pool, allocator
        gc.collect()
        equal(tensor.unique().tolist(), [7.0], "the tensor")
        assert counters.bytes_out() > 0, "memory in use was given back"
        del tensor
        torch.cuda.empty_cache()
        equal(counters.bytes_out(), 0, "bytes that are out in the end")


@alone
def pools_of_both_kinds_of_segments() -> None:
    """A pool with an allocator has one plain segment, whatever kind those outside are of."""
    with contextlib.suppress(ValueError, RuntimeError):
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    with own_allocator() as (allocator, _counters):
        pool = torch.cuda.MemPool(allocator.allocator())
        with torch.cuda.use_mem_pool(pool):
            inside = blank(1)
        outside = blank(1)
        found = {tuple(it["segment_pool_id"]): it for it in torch.cuda.memory_snapshot()}
        equal(len(found), 2, "the pools that hold something")
        equal(found[tuple(pool.id)]["is_expandable"], False, "that the pool's is expandable")
        equal(found[tuple(pool.id)]["blocks"][0]["address"], inside.data_ptr(), "its block")
        del inside, outside, pool
