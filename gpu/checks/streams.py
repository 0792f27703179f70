"""Streams: memory that one has freed and another still uses."""

from __future__ import annotations

import torch

from checks.registry import MIB, check, equal


@check
def record_stream() -> None:
    """A tensor that a side stream reads is not given away while it reads."""
    side = torch.cuda.Stream()
    for _ in range(10):
        source = torch.full((8 * MIB,), 7, dtype=torch.uint8, device="cuda")
        copy = torch.empty_like(source)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            copy.copy_(source)
        source.record_stream(side)
        del source
        # The same size again, on the stream that the tensor was made on, and overwritten.
        thief = torch.zeros(8 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        equal(copy.min().item(), 7, "the smallest byte that was copied")
        del thief, copy


@check
def streams_do_not_mix() -> None:
    """Memory freed on one stream is safe while another still computes in its own."""
    streams = [torch.cuda.Stream() for _ in range(4)]
    results = []
    for value, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            for _ in range(20):
                block = torch.full((MIB,), value, dtype=torch.int32, device="cuda")
                total = block.sum()
                del block
            results.append((total, value * MIB))
    torch.cuda.synchronize()
    for total, expected in results:
        equal(total.item(), expected, "a sum")
