"""Scopes of `torch.cuda.MemPool`: who is in one, who uses a pool, and what emptying does within."""

from __future__ import annotations

import gc
import threading
from typing import Any

import torch

from checks.registry import MIB, alone, blank, equal


def held(pool: torch.cuda.MemPool) -> list[dict[str, Any]]:
    """The segments of a pool."""
    found: list[dict[str, Any]] = torch.cuda.memory_snapshot(pool.id)
    return found


def is_in(tensor: torch.Tensor, pool: torch.cuda.MemPool) -> bool:
    """True if a tensor lies in a pool."""
    place = tensor.data_ptr()
    return any(it["address"] <= place < it["address"] + it["total_size"] for it in held(pool))


@alone
def scopes_count_users() -> None:
    """A pool has one user, two in a scope of it, and one afterwards."""
    pool = torch.cuda.MemPool()
    equal(pool.use_count(), 1, "users of a new pool")
    with torch.cuda.use_mem_pool(pool):
        block = blank(1)
        equal(pool.use_count(), 2, "users within")
    equal(pool.use_count(), 1, "users afterwards")
    assert is_in(block, pool), "the block is elsewhere"


@alone
def scopes_fill_small_segments() -> None:
    """Two blocks of 1 MiB lie in one segment or page of 2 MiB; a third one needs more."""
    pool = torch.cuda.MemPool()
    blocks = []
    for expected in (2, 2, 4):
        with torch.cuda.use_mem_pool(pool):
            blocks.append(blank(1))
        total = sum(segment["total_size"] for segment in held(pool))
        equal(total, expected * MIB, f"bytes of the pool for {len(blocks)} blocks")


@alone
def scopes_within_scopes() -> None:
    """The innermost scope serves; behind it the one around it does again."""
    pools = [torch.cuda.MemPool() for _ in range(3)]
    made: list[list[torch.Tensor]] = [[], [], []]

    def nest(depth: int) -> None:
        if depth == len(pools):
            return
        with torch.cuda.use_mem_pool(pools[depth]):
            made[depth].append(blank(20))
            nest(depth + 1)
            made[depth].append(blank(20))

    nest(0)
    outside = blank(20)
    for depth, pool in enumerate(pools):
        equal(sum(it["total_size"] for it in held(pool)), 40 * MIB, f"bytes of pool {depth}")
        for at, other in enumerate(made):
            for tensor in other:
                equal(is_in(tensor, pool), at == depth, f"that a block of {at} is in pool {depth}")
        assert not is_in(outside, pool), "a block outside is in a pool"


@alone
def scopes_are_of_threads() -> None:
    """A scope is its thread's: what another thread asks for meanwhile is outside."""
    torch.cuda.empty_cache()
    pool = torch.cuda.MemPool()
    is_open, is_done = threading.Event(), threading.Event()
    others: list[torch.Tensor] = []

    def other() -> None:
        is_open.wait(60)
        others.append(blank(1))
        others.append(blank(30))
        is_done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with torch.cuda.use_mem_pool(pool):
        inside = blank(1)
        place = inside.data_ptr()
        del inside
        is_open.set()
        assert is_done.wait(60), "the other thread does not come to an end"
        again = blank(1)
    thread.join()
    equal(again.data_ptr(), place, "the place of a block that was freed in the scope")
    assert is_in(again, pool), "the thread that is in the scope is served elsewhere"
    assert not any(is_in(tensor, pool) for tensor in others), "another thread is served by it"


@alone
def scopes_keep_what_is_free() -> None:
    """empty_cache by threads within scopes leaves what is free in their pools; afterwards, too."""
    pools = [torch.cuda.MemPool() for _ in range(4)]

    def work(pool: torch.cuda.MemPool) -> None:
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.randn(4, device="cuda")
            del tensor
            torch.cuda.empty_cache()

    threads = [threading.Thread(target=work, args=(pool,)) for pool in pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal([len(held(pool)) for pool in pools], [1] * 4, "the segments of the pools")
    torch.cuda.empty_cache()
    equal([len(held(pool)) for pool in pools], [1] * 4, "the segments after emptying outside")
    names = [tuple(pool.id) for pool in pools]
    del pools
    gc.collect()
    torch.cuda.empty_cache()
    left = {tuple(it["segment_pool_id"]) for it in torch.cuda.memory_snapshot()}
    assert not left & set(names), "segments outlive their pools"


@alone
def scopes_have_ids_of_their_own() -> None:
    """Pools and handles of graphs, made by several threads at once, all have other ids."""
    ids: list[tuple[int, int]] = []

    def work() -> None:
        for _ in range(20):
            ids.append(tuple(torch.cuda.MemPool().id))
            ids.append(tuple(torch.cuda.graph_pool_handle()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(len(set(ids)), 160, "the number of ids")


@alone
def tensors_outlive_their_pool() -> None:
    """A tensor whose pool is gone keeps its bytes; its segment goes once it has gone."""
    pool = torch.cuda.MemPool()
    name = tuple(pool.id)
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.full((30 * MIB,), 7, dtype=torch.uint8, device="cuda")
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    others = [blank(30).fill_(at) for at in range(10)]
    equal(tensor.unique().tolist(), [7], "the tensor of the pool that is gone")
    del tensor, others
    torch.cuda.empty_cache()
    left = {tuple(it["segment_pool_id"]) for it in torch.cuda.memory_snapshot()}
    assert name not in left, "its segment is left"


@alone
def snapshot_of_a_pool() -> None:
    """memory_snapshot(pool.id) and pool.snapshot() show the segments of that pool and no other."""
    pools = [torch.cuda.MemPool() for _ in range(2)]
    tensors = []
    for pool in pools:
        with torch.cuda.use_mem_pool(pool):
            tensors.append(blank(12))
    tensors.append(blank(12))
    for pool, tensor in zip(pools, tensors, strict=False):
        for found in (held(pool), pool.snapshot()):
            equal({tuple(it["segment_pool_id"]) for it in found}, {tuple(pool.id)}, "the pools")
            blocks = [block["address"] for segment in found for block in segment["blocks"]]
            assert tensor.data_ptr() in blocks, "the pool's tensor is not shown"
    everything = {tuple(it["segment_pool_id"]) for it in torch.cuda.memory_snapshot()}
    assert {tuple(pool.id) for pool in pools} < everything, f"all pools are {everything}"
