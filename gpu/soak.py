"""Random work on GPU memory for minutes, in which every byte is checked.

    python -m girih run --mode stitch gpu/soak.py --minutes 10
    python -m girih run --mode auto gpu/soak.py --minutes 2 --threads 4

Threads take tensors of random sizes on streams of their own, write a tag of their own to each, read
them now and then on another stream, and before they let go of one look whether every element still
has its tag. Memory that two tensors share, that a stream uses too early, or that is unmapped too
soon shows as a wrong tag or as a crash. The card is kept nearly full; running out is a part of it.
At the end everything is freed, and every counter must be back to zero.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from dataclasses import dataclass, field

import torch

MIB = 1 << 20


@dataclass
class Worker:
    """A thread with its streams, its tensors and what it has seen."""

    seed: int
    share: int
    """Bytes that it holds at most."""
    until: float
    steps: int
    operations: int = 0
    failed: int = 0
    held: int = 0
    error: str | None = None
    live: list[tuple[torch.Tensor, int, torch.cuda.Stream]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Its own numbers, its own streams, and a count of wrong elements on the card."""
        self.chance = random.Random(self.seed)
        self.streams = [torch.cuda.Stream() for _ in range(2)]
        # One for each stream: they are in no order.
        self.wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in self.streams]
        torch.cuda.synchronize()

    def size(self) -> int:
        """Bytes: of all magnitudes, and often one that came before."""
        if self.chance.random() < 0.5:
            return self.chance.choice((3, 7, 24, 40, 129, 400, 1000)) * MIB
        return int(2 ** self.chance.uniform(9, 31))

    def take(self) -> None:
        """A new tensor, full of its tag."""
        size = self.size()
        while self.live and self.held + size > self.share:
            self.give()
        stream, tag = self.chance.choice(self.streams), self.chance.randrange(1 << 30)
        try:
            with torch.cuda.stream(stream):
                tensor = torch.empty(max(size // 4, 1), dtype=torch.int32, device="cuda")
                tensor.fill_(tag)
        except torch.OutOfMemoryError:
            self.failed += 1
            return
        self.live.append((tensor, tag, stream))
        self.held += tensor.nbytes

    def look(self, at: int, stream: torch.cuda.Stream) -> None:
        """Counts the elements that have lost their tag, on a stream, in pieces."""
        tensor, tag, own = self.live[at]
        if stream != own:
            stream.wait_stream(own)
            tensor.record_stream(stream)
        try:
            with torch.cuda.stream(stream):
                for piece in tensor.split(8 * MIB):
                    self.wrong[self.streams.index(stream)] += torch.count_nonzero(piece != tag)
        except torch.OutOfMemoryError:
            self.failed += 1

    def give(self) -> None:
        """Lets go of a tensor, after a last look at it."""
        at = self.chance.randrange(len(self.live))
        self.look(at, self.live[at][2])
        tensor, _, _ = self.live.pop(at)
        self.held -= tensor.nbytes

    def run(self) -> None:
        """Works until the time is over."""
        try:
            while time.monotonic() < self.until and self.operations < self.steps:
                self.operations += 1
                kind = self.chance.random()
                if kind < 0.5 or not self.live:
                    self.take()
                elif kind < 0.9:
                    self.give()
                elif kind < 0.998:
                    at, stream = (
                        self.chance.randrange(len(self.live)),
                        self.chance.choice(self.streams),
                    )
                    self.look(at, stream)
                else:
                    torch.cuda.empty_cache()
                if self.operations % 200 == 0:
                    # The host must not run ahead for ever.
                    torch.cuda.synchronize()
            while self.live:
                self.give()
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        self.live.clear()


def girih_stats() -> dict[str, object] | None:
    """What Girih says that it did; None without it."""
    if "girih" not in sys.modules:
        return None
    import girih

    found = girih.stats(torch.cuda.current_device())
    return {name: found[name] for name in ("mode", "stitches", "retries", "calls")}


def main() -> int:
    """Runs the threads, and says what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--operations", type=int, default=1 << 60, help="of each thread at most")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gib", type=float, default=0.0, help="of all threads; 0: all of the card")
    arguments = parser.parse_args()
    free, _ = torch.cuda.mem_get_info()
    # A little more than there is, so that memory runs out now and then.
    bytes_of_all = int(arguments.gib * (1 << 30)) or int(1.02 * free)
    share = bytes_of_all // arguments.threads
    until = time.monotonic() + 60 * arguments.minutes
    seeds = range(arguments.seed, arguments.seed + arguments.threads)
    workers = [Worker(seed, share, until, arguments.operations) for seed in seeds]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    wrong = sum(int(count.item()) for worker in workers for count in worker.wrong)
    errors = [worker.error for worker in workers if worker.error]
    peak = torch.cuda.max_memory_reserved()
    for worker in workers:
        worker.wrong.clear()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    statistics = torch.cuda.memory_stats()
    left = {
        name: statistics[f"{name}.all.current"]
        for name in ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")
    }
    result = {
        "operations": sum(worker.operations for worker in workers),
        "out_of_memory": sum(worker.failed for worker in workers),
        "wrong_elements": wrong,
        "errors": errors,
        "reserved_peak": peak,
        "left": left,
        "girih": girih_stats(),
        "seconds": round(time.monotonic() - begun, 1),
    }
    print("RESULT " + json.dumps(result))
    return int(bool(wrong or errors or any(left.values())))


if __name__ == "__main__":
    sys.exit(main())
