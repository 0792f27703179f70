"""Graphs and pools: memory apart from the rest, which only its owner gets."""

from __future__ import annotations

import gc

import torch

from checks.registry import MIB, alone, blank, equal


def graph_of(inputs: torch.Tensor) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A captured computation with memory of its own."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            (inputs * 2).relu() @ inputs
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = (inputs * 2).relu() @ inputs
    return graph, output


@alone
def cuda_graph() -> None:
    """torch.cuda.graph captures and replays; nobody gets its memory while it lives."""
    inputs = torch.randn(512, 512, device="cuda")
    graph, output = graph_of(inputs)
    held = torch.cuda.memory_reserved()
    for _ in range(5):
        inputs.copy_(torch.randn(512, 512, device="cuda"))
        # Whoever takes the graph's memory now would be overwritten by the replay.
        canaries = [torch.full((MIB,), 5, dtype=torch.int32, device="cuda") for _ in range(8)]
        graph.replay()
        expected = (inputs * 2).relu() @ inputs
        torch.cuda.synchronize()
        assert torch.allclose(output, expected, rtol=1e-3, atol=1e-3), "the replay is wrong"
        assert all(bool((canary == 5).all()) for canary in canaries), "a tensor was overwritten"
        del canaries
    assert held > 0
    del graph, output
    gc.collect()
    torch.cuda.empty_cache()


@alone
def graphs_share_a_pool() -> None:
    """Two graphs captured in one pool replay one after the other."""
    inputs = torch.randn(256, 256, device="cuda")
    torch.cuda.synchronize()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        middle = inputs * 3
    with torch.cuda.graph(second, pool=first.pool()):
        output = middle + 1
    inputs.fill_(2)
    first.replay()
    second.replay()
    torch.cuda.synchronize()
    equal(output.unique().tolist(), [7.0], "the output")


@alone
def graphed_training() -> None:
    """make_graphed_callables: forward and backward as graphs."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda()
    sample = torch.randn(8, 64, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    for _ in range(3):
        graphed(torch.randn(8, 64, device="cuda", requires_grad=True)).sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters())


@alone
def mem_pool() -> None:
    """MemPool and use_mem_pool: what is made inside is in the pool's own segments."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = blank(4)
    outside = blank(4)
    owned = {segment["address"]: segment["total_size"] for segment in pool.snapshot()}

    def is_inside(tensor: torch.Tensor) -> bool:
        address = tensor.data_ptr()
        return any(start <= address < start + size for start, size in owned.items())

    assert is_inside(inside), "the tensor made inside is elsewhere"
    assert not is_inside(outside), "the tensor made outside is inside"
    del inside, outside, pool
    gc.collect()
    torch.cuda.empty_cache()
    left = {segment["address"] for segment in torch.cuda.memory_snapshot()}
    assert not left & set(owned), "segments outlive their pool"


@alone
def mem_pool_reuses() -> None:
    """A pool serves again from what was freed in it."""
    pool = torch.cuda.MemPool()
    addresses = set()
    for _ in range(5):
        with torch.cuda.use_mem_pool(pool):
            block = blank(16)
        addresses.add(block.data_ptr())
        del block
    equal(len(addresses), 1, "the number of places")
