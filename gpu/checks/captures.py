"""Graph captures in which another stream uses what is freed (`graph_capture_record_stream_reuse`).

The check has a process of its own: the setting stays until the end.
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
