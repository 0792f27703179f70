"""What a capture needs of memory, does to it, and leaves of it."""

from __future__ import annotations

import gc
import threading

import torch

from checks.checkpoints import filled, segments
from checks.registry import MIB, Skip, alone, blank, equal, girih_mode


@alone
def capture_out_of_memory() -> None:
    """A request without memory in a capture is OutOfMemoryError; captures go on afterwards."""
    for elements in (2**40, 2**35):
        text = ""
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                torch.zeros(elements, device="cuda")
        except torch.OutOfMemoryError as error:
            text = str(error)
        assert "out of memory" in text, f"the text is {text!r}"
    inputs, graph = torch.ones(MIB, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = inputs + 1
    graph.replay()
    equal(output.unique().tolist(), [2.0], "what a later graph makes")


@alone
def capture_of_two_streams() -> None:
    """Of a capture that forks, each stream has a segment of its own in the graph's one pool."""
    x, y = filled(40 * MIB), filled(40 * MIB)
    known = {tuple(it["segment_pool_id"]) for it in torch.cuda.memory_snapshot()}
    graph, first, second = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        graph.capture_begin()
        z = x + y
        second.wait_stream(first)
        with torch.cuda.stream(second):
            w = z + y
        first.wait_stream(second)
        graph.capture_end()
    new = [it for it in torch.cuda.memory_snapshot() if tuple(it["segment_pool_id"]) not in known]
    equal(len({tuple(it["segment_pool_id"]) for it in new}), 1, "the number of new pools")
    equal(sorted(it["stream"] for it in new), sorted({it["stream"] for it in new}), "the streams")
    equal(len(new), 2, "the number of new segments")
    graph.replay()
    equal(w.unique().tolist(), [3], "what the graph made")


@alone
def graphs_in_a_pool_take_no_more() -> None:
    """A second graph whose tensors fit what the first left free in the pool takes nothing more."""
    inputs = torch.ones(1000, device="cuda")

    def chain(value: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            value = (value + 1) + (value + 2)
        return value

    torch.cuda.synchronize()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        middle = chain(inputs)
    held = sum(segment["total_size"] for segment in segments(tuple(first.pool())))
    with torch.cuda.graph(second, pool=first.pool()):
        output = chain(middle)
    equal(second.pool(), first.pool(), "the pool of the second graph")
    after = sum(segment["total_size"] for segment in segments(tuple(first.pool())))
    equal(after, held, "bytes of the pool with the second graph")
    first.replay()
    second.replay()
    equal(output.unique().tolist(), chain(chain(inputs)).unique().tolist(), "the output")


@alone
def graphs_out_of_order() -> None:
    """Two graphs of a pool that replay out of order overwrite each other; with pools apart, not."""
    for is_shared in (False, True):
        inputs = torch.ones(1000, device="cuda")
        torch.cuda.synchronize()
        graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
        with torch.cuda.graph(graphs[0]):
            b = inputs.clone()
            c, d = b + 1, b + 2
        pool = graphs[0].pool() if is_shared else None
        with torch.cuda.graph(graphs[1], pool=pool):
            e = c + 3
            del c
        with torch.cuda.graph(graphs[2], pool=pool):
            f = d + 4
        for order, expected in (((0, 1, 2), 5.0), ((0, 2, 1), 10.0 if is_shared else 5.0)):
            for at in order:
                graphs[at].replay()
            equal(e.unique().tolist(), [expected], f"e, pool shared: {is_shared}, in order {order}")
            equal(f.unique().tolist(), [7.0], "f")
        del b, d, e, f, graphs
        gc.collect()
        torch.cuda.empty_cache()


@alone
def graph_leaves_its_result() -> None:
    """A graph's result lives on when the graph has gone; its memory goes back with it."""
    for size in (512, MIB, MIB + 512, 10 * MIB - 512, 10 * MIB + 512):
        inputs = filled(size)
        before = torch.cuda.memory_stats()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = inputs.clone()
            for _ in range(5):
                result = result.clone() + 1
        pool = tuple(graph.pool())
        for _ in range(2):
            graph.replay()
            equal(result.unique().tolist(), [6], f"the result of {size} bytes")
            torch.cuda.empty_cache()
        del graph
        gc.collect()
        torch.cuda.empty_cache()
        equal(result.unique().tolist(), [6], f"the result of {size} bytes without its graph")
        live = [
            block["size"]
            for segment in segments(pool)
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        ]
        rounded = -(-size // 512) * 512
        equal(len(live), 1, "the live blocks of its pool")
        assert live[0] >= rounded, f"the live block of its pool has {live[0]} bytes"
        del result, inputs
        torch.cuda.empty_cache()
        equal(segments(pool), [], "segments of the pool in the end")
        after = torch.cuda.memory_stats()
        # A generator keeps two numbers on the device for graphs, from the first one on.
        more = after["active_bytes.all.current"] - before["active_bytes.all.current"]
        assert more <= 1024 - rounded, f"{more + rounded} bytes are in use of a graph that is gone"


@alone
def graphs_one_after_the_other() -> None:
    """A hundred graphs of a product, each in the place of the one before, take no more and more."""
    a, b = torch.rand(1024, 512, device="cuda"), torch.rand(512, 64, device="cuda")
    torch.mm(a, b)
    used = []
    for turn in range(100):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.mm(a, b)
        graph.replay()
        if turn in (1, 99):
            free, total = torch.cuda.mem_get_info()
            used.append(total - free)
    assert used[1] - used[0] < 100_000_000, f"{used[1] - used[0]} bytes more after 98 graphs"


@alone
def graphs_with_generators() -> None:
    """Graphs that draw numbers leave nothing in use when they are gone."""
    torch.rand(1, device="cuda")
    generator = torch.cuda.default_generators[0]
    counts = []
    for graphs, states in ((1, 1), (3, 2), (10, 20)):
        before = torch.cuda.memory_stats()["active.all.current"]
        captured = [torch.cuda.CUDAGraph() for _ in range(graphs)]
        kept = [generator.graphsafe_get_state()]
        kept += [generator.clone_state() for _ in range(states - 1)]
        for graph in captured:
            for state in kept:
                graph.register_generator_state(state)
            with torch.cuda.graph(graph):
                torch.rand(1, device="cuda")
            graph.replay()
        counts.append(torch.cuda.memory_stats()["active.all.current"] - before)
        del graph, captured, kept, state
        gc.collect()
        torch.cuda.empty_cache()
        after = torch.cuda.memory_stats()["active.all.current"]
        assert after - before <= 2, f"{after - before} blocks more, after {graphs} graphs"
    # They belong to the states, of which there may be many graphs.
    assert counts[2] <= 2 * 20 + 2, f"blocks in use: {counts}"


@alone
def capture_beside_late_readers() -> None:
    """Blocks that streams still read are freed before, in and behind a capture, which succeeds."""
    late, inside = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda")
    sides = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    with torch.cuda.stream(sides[0]):
        torch.cuda._sleep(50_000_000)
        late.fill_(1.0)
    late.record_stream(sides[0])
    del late
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(sides[1]):
        graph.capture_begin()
        copy = inside.clone()
        sides[2].wait_stream(sides[1])
        with torch.cuda.stream(sides[2]):
            copy.fill_(1.0)
        copy.record_stream(sides[2])
        del copy
        sides[1].wait_stream(sides[2])
        graph.capture_end()
    torch.cuda.synchronize()
    graph.replay()
    tensor = torch.zeros(3, device="cuda")
    equal(tensor.tolist(), [0.0] * 3, "a tensor afterwards")


@alone
def another_thread_beside_a_capture() -> None:
    """While one thread captures, another one asks for memory and frees it, cached and not."""
    for mode in ("thread_local", "relaxed"):
        torch.cuda.empty_cache()
        errors: list[BaseException] = []

        def work(errors: list[BaseException] = errors) -> None:
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    for size in (1024, 3 * MIB, 300 * MIB):
                        place = torch.cuda.caching_allocator_alloc(size)
                        torch.cuda.caching_allocator_delete(place)
            except BaseException as error:
                errors.append(error)

        inputs, graph = torch.zeros(2000, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode=mode):
            output = inputs + 1
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            output = output + 1
        assert not errors, f"{mode}: {errors[0]}"
        graph.replay()
        equal(output.unique().tolist(), [2.0], f"what the graph made ({mode})")


@alone
def empty_cache_in_a_capture() -> None:
    """empty_cache within a capture does not end it, and leaves the graph's memory alone."""
    if girih_mode() not in ("expandable", "stitch", "auto", "plan"):
        raise Skip("what would be freed then is a segment, which is the driver's to refuse")
    block = blank(300)
    del block
    inputs, graph = torch.ones(MIB, device="cuda"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        first = inputs + 1
        torch.cuda.empty_cache()
        second = first + 1
        del first
        torch.cuda.empty_cache()
    canaries = [torch.full((MIB,), 5.0, device="cuda") for _ in range(20)]
    for _ in range(3):
        graph.replay()
        equal(second.unique().tolist(), [3.0], "what the graph made")
    equal({canary.unique().item() for canary in canaries}, {5.0}, "the tensors beside it")


@alone
def graph_is_captured_again() -> None:
    """A graph that is reset gives its memory back, and captures something else."""
    inputs, graph = torch.ones(40 * MIB, dtype=torch.uint8, device="cuda"), torch.cuda.CUDAGraph()
    pools = []
    for value in (1, 2, 3):
        with torch.cuda.graph(graph):
            output = inputs + value
        graph.replay()
        equal(output.unique().tolist(), [1 + value], "what it made")
        pools.append(tuple(graph.pool()))
        del output
        graph.reset()
        torch.cuda.empty_cache()
        equal(segments(pools[-1]), [], "segments of its pool after the reset")
