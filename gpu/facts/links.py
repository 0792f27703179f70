"""What the links between this GPU and the host's memory carry: alone, together, beside kernels.

    python gpu/facts/links.py                  # copies of 64 MiB
    python gpu/facts/links.py --mib 8 --seconds 0.5

Pinned memory is copied out, in, and both ways at once, while the GPU is idle, while it multiplies
matrices and while it reads and writes its own memory. Prints one JSON object a line: GB/s each way,
and by how much the kernels took longer than without copies. Time is the device's, by events before
the first and after the last copy of a stream, over the part in which both streams were busy.
"""

import argparse
import json
from collections.abc import Callable

import torch

MIB = 1 << 20


class Lane:
    """A stream that copies the same bytes again and again."""

    def __init__(self, mib: int, out: bool) -> None:
        here = torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
        there = torch.empty(mib * MIB, dtype=torch.uint8, pin_memory=True)
        self.source, self.target = (here, there) if out else (there, here)
        self.stream = torch.cuda.Stream()
        self.first, self.last = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def copy(self, times: int, start: torch.cuda.Event) -> None:
        """Queues so many, behind that event."""
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(start)
            self.first.record()
            for _ in range(times):
                self.target.copy_(self.source, non_blocking=True)
            self.last.record()

    def rate(self, times: int) -> float:
        """GB/s of what was queued."""
        moved = times * self.source.numel()
        rate: float = moved / self.first.elapsed_time(self.last) / 1e6
        return rate


def kernels(kind: str) -> Callable[[], None]:
    """One of what the GPU does meanwhile, some milliseconds of it."""
    if kind == "products":
        left, right = (
            torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2)
        )
        into = torch.empty_like(left)

        def product() -> None:
            torch.mm(left, right, out=into)

        return product
    if kind == "memory":
        some = torch.zeros(1 << 30, device="cuda", dtype=torch.uint8)

        def read_and_write() -> None:
            some.add_(1)

        return read_and_write
    return lambda: None


def timed(run: Callable[[], None], times: int, start: torch.cuda.Event) -> float:
    """Milliseconds that so many kernels took behind that event."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.current_stream().wait_event(start)
    begin.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    took: float = begin.elapsed_time(end)
    return took


def held_back() -> torch.cuda.Event:
    """An event that comes after all that follows has been queued."""
    torch.cuda._sleep(20_000_000)
    return torch.cuda.current_stream().record_event()


def main() -> None:
    """Prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=64, help="of one copy")
    parser.add_argument("--seconds", type=float, default=0.5, help="of copies, about")
    arguments = parser.parse_args()
    lanes = {"out": Lane(arguments.mib, True), "in": Lane(arguments.mib, False)}
    times = max(1, int(arguments.seconds * 50e9 / (arguments.mib * MIB)))
    for kind in ("idle", "products", "memory"):
        run = kernels(kind)
        count = 1
        if kind != "idle":
            each = timed(run, 20, held_back()) / 20
            # As long as the copies take both ways at once, and a half more.
            count = max(1, int(1.5 * 1000 * arguments.seconds / each))
            timed(run, count, held_back())
            alone = timed(run, count, held_back())
        for ways in (["out"], ["in"], ["out", "in"]):
            torch.cuda.synchronize()
            start = held_back()
            for way in ways:
                lanes[way].copy(times, start)
            took = timed(run, count, start)
            torch.cuda.synchronize()
            said: dict[str, object] = {"gpu": kind, "mib": arguments.mib}
            said.update({f"{way}_GB_s": round(lanes[way].rate(times), 2) for way in ways})
            if kind != "idle":
                said["kernels_longer"] = round(took / alone, 4)
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
