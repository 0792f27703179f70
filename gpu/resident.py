"""A program that never repeats: does the process take more and more of the host?

    python -m girih run --mode auto gpu/resident.py --minutes 10
    python gpu/resident.py --minutes 10        # PyTorch's own allocator, to be held against it

Each step has a part that is the same, sizes and counts that never come again, a mark, and now and
then a private pool (`MemPool`) that comes and goes and an empty cache. Resident memory is read
after 1,000 steps and then once a second: it may not grow by more than 64 MiB. The median of the
first steps is said beside that of the last. Exit status 1 if the process has grown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

MIB = 1 << 20
GROWTH_MAX = 64 * MIB
EARLY = 1000
# Step times that are kept of each end.
TIMES = 10_000


def resident() -> int:
    """Bytes of this process that lie in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Program:
    """What runs: its numbers, its weights, and how far it is."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.chance, self.device, self.step = random.Random(seed), device, 0
        self.weights = [self.take((k % 7 + 1) * MIB) for k in range(20)]

    def take(self, size: int) -> torch.Tensor:
        """A tensor of so many bytes."""
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def run(self) -> None:
        """One step, which no other step is like."""
        self.step += 1
        note(f"step {self.step}")
        held = [self.take((k * 7 % 5 + 1) * MIB) for k in range(10)]
        for _ in range(self.chance.randrange(12)):
            held.append(self.take(1 + self.chance.randrange(24 * MIB)))
            if self.chance.random() < 1 / 3:
                held.pop(self.chance.randrange(len(held)))
        if self.step % 10 == 0:
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                inside = [self.take(size * MIB) for size in (3, 30)]
            del inside, pool
        del held
        if self.step % 50 == 0:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def note(name: str) -> None:
    """Marks a point of the program under a name of its own, if Girih is there to hear it."""
    if "girih" in sys.modules:
        import girih

        girih.mark(name)


def iteration() -> AbstractContextManager[None]:
    """Says that a step begins, if Girih is there to hear it."""
    if "girih" not in sys.modules:
        return nullcontext()
    import girih

    return girih.step()


def main() -> int:
    """Runs the program, and says by how much the process has grown."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=1 << 60, help="at most")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    program = Program(options.seed, torch.device("cuda"))
    first: list[float] = []
    last: list[float] = []
    early = peak = looked = 0.0
    begun = before = time.monotonic()
    while before - begun < 60 * options.minutes and program.step < options.steps:
        with iteration():
            program.run()
        now = time.monotonic()
        times = first if len(first) < TIMES else last
        times.append(now - before)
        del last[:-TIMES]
        before = now
        if program.step == EARLY:
            early = peak = resident()
        elif program.step > EARLY and now - looked > 1:
            looked, peak = now, max(peak, resident())
    if program.step <= EARLY:
        print(f"{program.step} steps are too few: more than {EARLY} are needed", file=sys.stderr)
        return 2
    grown = max(peak, resident()) - early
    found = {
        "girih": "girih" in sys.modules,
        "steps": program.step,
        "resident_early": early,
        "grown": grown,
        "step_us_first": round(1e6 * statistics.median(first), 1),
        "step_us_last": round(1e6 * statistics.median(last or first), 1),
        "seconds": round(before - begun, 1),
    }
    print("RESULT " + json.dumps(found), flush=True)
    return int(grown > GROWTH_MAX)


if __name__ == "__main__":
    sys.exit(main())
