"""Checkpoints of a private pool: what `torch.compile` with graph trees brings back and asks."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from checks.registry import MIB, alone, equal

Pool = tuple[int, int]
Segment = dict[str, Any]


def segments(pool: Pool) -> list[Segment]:
    """The segments of a pool, by address."""
    found = [it for it in torch.cuda.memory_snapshot() if tuple(it["segment_pool_id"]) == pool]
    return sorted(found, key=lambda segment: int(segment["address"]))


def live(pool: Pool) -> list[int]:
    """The addresses of the live blocks of a pool."""
    blocks = [block for segment in segments(pool) for block in segment["blocks"]]
    return [block["address"] for block in blocks if block["state"] == "active_allocated"]


def shape(found: list[Segment]) -> list[tuple[Any, ...]]:
    """What a checkpoint must bring back of segments."""
    numbers = ("address", "total_size", "allocated_size", "active_size", "segment_type", "stream")
    return [
        tuple(segment[name] for name in numbers)
        + tuple((block["size"], block["state"]) for block in segment["blocks"])
        for segment in found
    ]


def graphed(
    make: Callable[[], list[torch.Tensor]], pool: Pool | None = None
) -> tuple[torch.cuda.CUDAGraph, list[torch.Tensor]]:
    """A graph of what makes some tensors, and these."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        make()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=side):
        made = make()
    return graph, made


def filled(size: int, value: int = 1) -> torch.Tensor:
    """Bytes that are written to."""
    return torch.full((size,), value, dtype=torch.uint8, device="cuda")


def restore(state: Any, stale: list[torch.Tensor], owners: list[torch.Tensor]) -> None:
    """Brings a pool back; `stale` are tensors that end with it, `owners` those that own again."""
    storages = [[tensor.untyped_storage()._cdata for tensor in some] for some in (stale, owners)]
    torch._C._cuda_setCheckpointPoolState(0, state, *storages)


def no_segments(pool: Pool) -> None:
    """Fails if a pool without users holds something when all is given back."""
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    equal(segments(pool), [], "the segments of a pool that is gone")


# Live blocks first, last and between free ones; several segments; both classes of size.
PROGRAMS: tuple[Callable[[], list[torch.Tensor]], ...] = (
    lambda: [[filled(512) for _ in range(11)][5].add_(2)],
    lambda: [[filled(512) for _ in range(11)][at] for at in (5, 8)],
    lambda: [[filled(512) for _ in range(11)][at] for at in (5, 6)],
    lambda: [filled(8 * MIB) + filled(8 * MIB), filled(MIB) + filled(MIB), filled(MIB)],
    lambda: [filled(2 * MIB) + 1, filled(20 * MIB) + 1, filled(45 * MIB) + 1, filled(512)],
)


@alone
def checkpoint_at_once() -> None:
    """A checkpoint that is brought back at once changes nothing of the pool."""
    for at, program in enumerate(PROGRAMS):
        graph, made = graphed(program)
        pool = tuple(graph.pool())
        before = segments(pool)
        restore(torch._C._cuda_getCheckpointState(0, pool), [], [])
        equal(shape(segments(pool)), shape(before), f"the pool of program {at}")
        del graph, made
        no_segments(pool)


@alone
def checkpoint_undoes_a_graph() -> None:
    """What a second graph took of the pool is free again when the state before it is back."""
    graph, made = graphed(lambda: [filled(512)])
    pool = tuple(graph.pool())
    before, state = segments(pool), torch._C._cuda_getCheckpointState(0, pool)
    second, later = graphed(lambda: [filled(512), filled(30 * MIB)], pool)
    equal(len(live(pool)), 3, "live blocks of both graphs")
    restore(state, later, [])
    later.clear()
    after = {segment["address"]: segment for segment in segments(pool)}
    kept = [after[segment["address"]] for segment in before]
    equal(shape(kept), shape(before), "what there was of the pool")
    equal(live(pool), [made[0].data_ptr()], "the live blocks")
    del graph, second, made
    no_segments(pool)


@alone
def checkpoint_revives_the_dead() -> None:
    """Blocks that had died live again, and are given back by their addresses."""
    graph, made = graphed(lambda: [filled(512), filled(512)])
    pool = tuple(graph.pool())
    state = torch._C._cuda_getCheckpointState(0, pool)
    places = [tensor.data_ptr() for tensor in made]
    made.clear()
    equal(live(pool), [], "live blocks when the tensors are gone")
    restore(state, [], [])
    equal(sorted(live(pool)), sorted(places), "live blocks at the checkpoint")
    for left, place in ((1, places[0]), (0, places[1])):
        torch._C._cuda_cudaCachingAllocator_raw_delete(place)
        equal(len(live(pool)), left, "live blocks after a free")
    del graph
    no_segments(pool)


@alone
def checkpoint_gives_owners() -> None:
    """Tensors over the old addresses own their blocks again; others do not."""
    inputs = torch.ones(1, dtype=torch.uint8, device="cuda")
    graph, made = graphed(lambda: [filled(n * MIB) + inputs for n in (2, 2, 20)])
    pool = tuple(graph.pool())
    graph.replay()
    state = torch._C._cuda_getCheckpointState(0, pool)
    sizes, places = [t.nbytes for t in made], [t.data_ptr() for t in made]
    made.clear()
    again = []
    for place, size in zip(places, sizes, strict=True):
        storage = torch._C._construct_storage_from_data_pointer(
            place, torch.device("cuda", 0), size
        )
        tensor = torch.empty(0, dtype=torch.uint8, device="cuda")
        again.append(tensor.set_(storage, 0, (size,), (1,)))
    del tensor, storage
    for value in (2, 3):
        graph.replay()
        equal([t.unique().tolist() for t in again], [[value]] * 3, "what the graph wrote")
        inputs += 1
    restore(state, [], again[:2])
    equal(len(live(pool)), 3, "live blocks at the checkpoint")
    for left in (2, 1, 1):
        again.pop(0)
        equal(len(live(pool)), left, "live blocks after a tensor has gone")
    torch._C._cuda_cudaCachingAllocator_raw_delete(places[2])
    equal(live(pool), [], "live blocks in the end")
    del graph
    no_segments(pool)


@alone
def live_blocks_are_as_expected() -> None:
    """_cuda_checkPoolLiveAllocations is true of the very set of live addresses, and of no other."""
    pool = tuple(torch.cuda.graph_pool_handle())
    graph, made = graphed(lambda: [torch.ones(4, device="cuda")], pool)
    place = made[0].data_ptr()
    for expected, is_so in (({place}, True), ({place, 0}, False), (set(), False)):
        found = torch._C._cuda_checkPoolLiveAllocations(0, pool, expected)
        equal(found, is_so, f"that {expected} live")
    made.clear()
    equal(torch._C._cuda_checkPoolLiveAllocations(0, pool, set()), True, "that none lives")
    del graph


@contextlib.contextmanager
def into_pool(pool: Pool) -> Iterator[None]:
    """What this thread asks for on a stream of its own comes from the pool."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
        try:
            yield
        finally:
            torch._C._cuda_endAllocateToPool(0, pool)
            torch._C._cuda_releasePool(0, pool)
    torch.cuda.current_stream().wait_stream(stream)


@alone
def pool_of_one_thread() -> None:
    """A thread that asks a graph's pool is served from it; another one, meanwhile, is not."""
    pool = tuple(torch.cuda.graph_pool_handle())
    graph, made = graphed(lambda: [torch.rand(4, device="cuda")], pool)
    made.clear()
    places: dict[str, list[int]] = {"inside": [], "after": [], "beside": []}

    def three(name: str) -> None:
        some = [filled(20 * MIB), filled(20 * MIB)]
        some.append(some[0] + some[1])
        places[name] += [tensor.data_ptr() for tensor in some]

    def inside() -> None:
        with into_pool(pool):
            for _ in range(10):
                three("inside")
        three("after")

    def beside() -> None:
        for _ in range(10):
            three("beside")

    threads = [threading.Thread(target=work) for work in (inside, beside)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    owned = [(s["address"], s["address"] + s["total_size"]) for s in segments(pool)]
    for name, expected in (("inside", True), ("after", False), ("beside", False)):
        for place in places[name]:
            is_in = any(start <= place < end for start, end in owned)
            equal(is_in, expected, f"that a tensor {name} is in the pool")
    large = sum(end - start for start, end in owned)
    assert large <= 64 * MIB, f"the pool holds {large} bytes for three of 20 MiB"
    del graph
    no_segments(pool)
