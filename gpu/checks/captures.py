"""Graph captures in which another stream uses what is freed (`graph_capture_record_stream_reuse`).

Each check has a process of its own: the setting stays until the end.
"""

from __future__ import annotations

import torch

from checks.registry import MIB, Skip, alone, blank, equal

KEY = "graph_capture_record_stream_reuse"


@alone
def capture_reuses_what_a_joined_stream_used() -> None:
    """A block that a side stream used serves again in the capture, behind the join."""
    if KEY not in torch.cuda.memory._snapshot()["allocator_settings"]:
        raise Skip("this release does not have it")
    torch.cuda.memory._set_allocator_settings(f"{KEY}:True")
    equal(torch.cuda.memory._snapshot()["allocator_settings"][KEY], True, KEY)
    side = torch.cuda.Stream()
    result = torch.zeros(1, device="cuda", dtype=torch.int64)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        first = blank(64).fill_(3)
        place = first.data_ptr()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            result += first.sum(dtype=torch.int64)
        first.record_stream(side)
        del first
        second = blank(64).fill_(5)
        assert second.data_ptr() != place, "the side stream was not joined yet"
        main.wait_stream(side)
        third = blank(64).fill_(7)
        equal(third.data_ptr(), place, "the place behind the join")
    for replays in range(1, 4):
        graph.replay()
        equal(int(result.item()), replays * 3 * 64 * MIB, f"the sum after {replays} replays")
    equal((second.unique().tolist(), third.unique().tolist()), ([5], [7]), "the other tensors")


@alone
def capture_waits_for_every_join() -> None:
    """A block that three streams used serves again when all have joined, not when some have."""
    if KEY not in torch.cuda.memory._snapshot()["allocator_settings"]:
        raise Skip("this release does not have it")
    torch.cuda.memory._set_allocator_settings(f"{KEY}:True")
    main = torch.cuda.Stream()
    sides = [torch.cuda.Stream() for _ in range(3)]
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(main):
        graph.capture_begin()
        source = torch.ones(8, device="cuda")
        place = source.data_ptr()
        marks = [torch.empty_like(source) for _ in range(2)]
        sums = []
        for at, side in enumerate(sides):
            side.wait_stream(main)
            with torch.cuda.stream(side):
                sums.append(torch.add(source, at + 2.0))
            source.record_stream(side)
        del source
        main.wait_stream(sides[0])
        marks[0].fill_(1.0)
        # The other two join each other, and not yet the first.
        sides[1].wait_stream(sides[2])
        with torch.cuda.stream(sides[1]):
            marks[1].fill_(3.0)
        marks[1].record_stream(sides[1])
        early = torch.empty(8, device="cuda")
        assert early.data_ptr() != place, "two streams were not joined yet"
        main.wait_stream(sides[1])
        marks[0].add_(marks[1])
        late = torch.empty(8, device="cuda")
        equal(late.data_ptr(), place, "the place behind all joins")
        late.fill_(9.0)
        graph.capture_end()
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        found = [tensor.unique().tolist() for tensor in (*sums, marks[0], late)]
        equal(found, [[3.0], [4.0], [5.0], [4.0], [9.0]], "what the graph made")
