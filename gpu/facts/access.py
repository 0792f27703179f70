"""What giving access to a page costs while memory is copied to and from the host, way by way.

    python gpu/facts/access.py
    python gpu/facts/access.py --ways both --pieces 256,16,4 --joins none,relay

Pinned memory is copied out of the GPU, into it, or both ways, in pieces: one behind the other on a
stream (`none`), on two streams in turn, each behind an event of the other (`lanes`), or each behind
an event of another stream that waits for the piece before it (`relay`), which may run a small
kernel in between (`kernel`); or each waits until a word of the host's memory is 0 (`gate`), and is
kept waiting while access is given (`gated`). Meanwhile pages of 2 MiB are mapped and access to them
is given, one by one or so many in a call, as long as copies are queued. Prints one JSON object a
line: how many calls there were, the median and 95th percentile of the microseconds a page that
cuMemSetAccess takes, and the GB/s of each way with those calls and without them.
"""

import argparse
import ctypes
import json
import statistics

import torch
from busy import MIB, Pages, call, micros

# Pieces that are queued at once; the driver takes no more than about a thousand without waiting.
QUEUED = 300
ROUNDS = 6
# CU_STREAM_WAIT_VALUE_EQ.
EQUAL = 1
# Of the memory of the host: closed where it is not 0.
GATE = torch.zeros(1, dtype=torch.int32)


def wait_for_gate(stream: torch.cuda.Stream) -> None:
    """What comes next on the stream waits until the gate is 0."""
    at, zero = ctypes.c_uint64(GATE.data_ptr()), ctypes.c_uint32(0)
    call("cuStreamWaitValue32_v2", ctypes.c_void_p(stream.cuda_stream), at, zero, EQUAL)


class Way:
    """Copies of one direction, in pieces that are joined in some way."""

    def __init__(self, is_out: bool, piece: int, join: str) -> None:
        size = max(piece, 256 * MIB)
        self.piece, self.size, self.join = piece, size, join
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        here = torch.empty(size, dtype=torch.uint8, device="cuda")
        self.source, self.target = (here, host) if is_out else (host, here)
        self.lanes = [torch.cuda.Stream() for _ in range(2 if join == "lanes" else 1)]
        self.relay = torch.cuda.Stream()
        self.little = torch.zeros(1, device="cuda")
        self.count = min(QUEUED, int(0.1 * 50e9 / piece))
        self.began = torch.cuda.Event(enable_timing=True)
        self.over = torch.cuda.Event(enable_timing=True)

    def queue(self) -> None:
        """All pieces."""
        self.began.record(self.lanes[0])
        before = self.began
        in_all = self.size // self.piece
        for number in range(self.count):
            lane = self.lanes[number % len(self.lanes)]
            if self.join.startswith("gate"):
                wait_for_gate(lane)
            elif self.join != "none":
                lane.wait_event(before)
            at = number % in_all * self.piece
            with torch.cuda.stream(lane):
                self.target[at : at + self.piece].copy_(
                    self.source[at : at + self.piece], non_blocking=True
                )
            if self.join in ("lanes", "relay", "kernel"):
                before = self.joined(lane)
        self.over.record(self.lanes[(self.count - 1) % len(self.lanes)])

    def joined(self, lane: torch.cuda.Stream) -> torch.cuda.Event:
        """What the next piece waits for."""
        after = torch.cuda.Event()
        after.record(lane)
        if self.join in ("relay", "kernel"):
            self.relay.wait_event(after)
            if self.join == "kernel":
                with torch.cuda.stream(self.relay):
                    self.little.add_(1)
            after = torch.cuda.Event()
            after.record(self.relay)
        return after

    def speed(self) -> float:
        """GB/s, when they are over."""
        self.over.synchronize()
        return self.count * self.piece / self.began.elapsed_time(self.over) / 1e6


def measure(ways: list[Way], pages: Pages, at_once: int) -> dict[str, object]:
    """The calls' times and the copies' speed."""
    taken: list[float] = []
    alone: list[list[float]] = []
    speeds: list[list[float]] = []

    def give(page: int) -> None:
        if ways[0].join == "gated":
            GATE[0] = 1
        pages.give_access(page, at_once)
        GATE[0] = 0

    for _ in range(ROUNDS):
        for way in ways:
            way.queue()
        alone.append([way.speed() for way in ways])
        torch.cuda.synchronize()
        for page in range(pages.count):
            pages.map(page)
        for way in ways:
            way.queue()
        for page in range(0, pages.count, at_once):
            one = micros(lambda page=page: give(page)) / at_once  # type: ignore[misc]
            if any(way.over.query() for way in ways):
                break
            taken.append(one)
        speeds.append([way.speed() for way in ways])
        torch.cuda.synchronize()
        pages.unmap(0, pages.count)

    def medians(of: list[list[float]]) -> list[float]:
        return [round(statistics.median(each), 1) for each in zip(*of, strict=True)]

    us = [statistics.median(taken), statistics.quantiles(taken, n=20)[-1]] if taken[1:] else []
    found: dict[str, object] = {"us": [round(each, 1) for each in us], "calls": len(taken)}
    return found | {"alone": medians(alone), "speed": medians(speeds)}


def main() -> None:
    """Each way with each piece and each number of lanes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ways", default="out,in,both")
    parser.add_argument("--pieces", default="256,16,8,4,2", help="MiB")
    parser.add_argument("--joins", default="none,lanes,relay,kernel,gate,gated")
    parser.add_argument("--at-once", type=int, default=1, help="pages in a call")
    options = parser.parse_args()
    torch.zeros(1, device="cuda")
    global GATE
    GATE = GATE.pin_memory()
    pages = Pages(512, 2 * MIB)
    for name in options.ways.split(","):
        for piece in options.pieces.split(","):
            for join in options.joins.split(","):
                sides = {"out": [True], "in": [False], "both": [True, False]}[name]
                ways = [Way(is_out, int(float(piece) * MIB), join) for is_out in sides]
                about = {"way": name, "piece_mib": float(piece), "join": join}
                about |= {"at_once": options.at_once}
                print(json.dumps(about | measure(ways, pages, options.at_once)), flush=True)
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
