"""Streams: memory that one has freed and another still uses."""

from __future__ import annotations

import torch

from checks import cudart
from checks.late import Rounds
from checks.registry import MIB, Skip, alone, check, equal, girih_mode


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


@alone
def read_late_by_a_side_stream() -> None:
    """Freed on its own stream, still read by a side stream, asked for by a third: 2,000 rounds."""
    rounds = Rounds(seed=1)
    while rounds.done < 2_000:
        rounds.round()
    equal(rounds.wrong(), 0, "the number of wrong elements")


def use_on(stream: torch.cuda.Stream) -> None:
    """Tensors that a stream allocates, and one that it reads late, all freed at the end."""
    with torch.cuda.stream(stream):
        own = torch.full((40 * MIB,), 1, dtype=torch.uint8, device="cuda")
    source = torch.full((40 * MIB,), 2, dtype=torch.uint8, device="cuda")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        own.copy_(source)
    source.record_stream(stream)
    del source
    thief = torch.full((40 * MIB,), 3, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    equal(own.unique().tolist(), [2], "what the stream read")
    equal(thief.unique().tolist(), [3], "what was allocated afterwards")
    # What is freed here was last used on the current stream, by the two lines above.
    torch.cuda.synchronize()


def churn(turns: int) -> None:
    """Allocates and frees on several streams, which all see their own values."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    for turn in range(turns):
        with torch.cuda.stream(streams[turn % 3]):
            size = (1 + turn * 7 % 60) * MIB
            block = torch.full((size,), turn % 251, dtype=torch.uint8, device="cuda")
            wrong[turn % 3] += (block != turn % 251).sum()
            del block
    torch.cuda.synchronize()
    equal(sum(int(count.item()) for count in wrong), 0, "the number of wrong elements")


@alone
def external_stream_destroyed() -> None:
    """A stream of a library is used, recorded and destroyed; another one takes its handle."""
    if girih_mode() is None and torch.cuda.memory._snapshot()["allocator_settings"].get(
        "expandable_segments"
    ):
        raise Skip("torch's own expandable segments synchronize with the stream that is gone")
    handles = set()
    for _ in range(3):
        handle = cudart.create_stream()
        handles.add(handle)
        use_on(torch.cuda.ExternalStream(handle))
        cudart.destroy_stream(handle)
        churn(1_000)
        torch.cuda.empty_cache()
        churn(200)
    print(f"  {len(handles)} handles for 3 streams")


def beside_a_capture(capturing: torch.cuda.Stream, mode: int) -> None:
    """A capture that torch is not told of, while other streams allocate and free."""
    other = torch.cuda.Stream()
    target = torch.zeros(MIB, device="cuda")
    before = torch.full((40 * MIB,), 4, dtype=torch.uint8, device="cuda")
    before.record_stream(capturing)
    target.add_(0)  # its kernel is loaded before the capture
    torch.cuda.synchronize()
    cudart.begin_capture(capturing, mode)
    try:
        with torch.cuda.stream(capturing):
            target.add_(1)
        del before
        with torch.cuda.stream(other):
            for value in range(5, 25):
                block = torch.full((40 * MIB,), value, dtype=torch.uint8, device="cuda")
                block.record_stream(capturing)
                del block
    finally:
        cudart.end_capture(capturing)
    torch.cuda.synchronize()
    equal(target.sum().item(), 0.0, "what was captured and never run")


@alone
def raw_capture() -> None:
    """A library captures a stream by itself; blocks recorded on it come and go beside it."""
    if girih_mode() is None:
        raise Skip("torch's own allocator records an event on the stream, which ends the capture")
    for mode in (cudart.RELAXED, cudart.THREAD_LOCAL):
        beside_a_capture(torch.cuda.Stream(), mode)
        churn(300)
        use_on(torch.cuda.Stream())
    torch.cuda.empty_cache()
    active = torch.cuda.memory_stats()["active_bytes.all.current"]
    equal(active, 0, "bytes that are in use or wait for a stream when everything is freed")
