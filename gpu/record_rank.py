"""Ranks recorded alone, held against the same ranks recorded in their job, request by request.

On a machine with as many GPUs as the job has ranks:

    python gpu/record_rank.py --world 4 --rank 0,3 gpu/workloads/fsdp.py --recompute --batch 12

The job runs under torchrun in the mode `stitch`, and every rank leaves a recording; then each rank
runs alone by `python -m girih record`, all at once, each on a card. Sizes, lifetimes and order of
requests are compared, with what differs first. `--compare A B` compares two recordings that are
there already, and needs no GPU.
"""

from __future__ import annotations

import argparse
import bisect
import concurrent.futures
import csv
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from modes import shareable
from seeds.bench import Cards, commit, machine_here

# Requests in a row that are shown from the first difference on.
SHOWN = 5
# How far ahead the walk looks for where both agree again, and how many in a row must.
AHEAD, IN_STEP = 256, 8


class Request(NamedTuple):
    """What is compared of a request."""

    size: int
    life: int
    """Requests born until it died; -1 if it lived on."""


def requests(recording: Path) -> list[Request]:
    """The requests of a recording, in order."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "run.csv"
        words = ["convert", str(recording), str(rows), "--part", "run", "-q"]
        subprocess.run([sys.executable, "-m", "girih", *words], check=True, capture_output=True)
        with rows.open(newline="") as file:
            read = [
                (int(r["lower"]), int(r["upper"]), int(r["size"])) for r in csv.DictReader(file)
            ]
    read.sort()
    births = [lower for lower, _, _ in read]
    end = max((upper for _, upper, _ in read), default=0)
    found = []
    for index, (_, upper, size) in enumerate(read):
        born = bisect.bisect_left(births, upper) - index - 1
        found.append(Request(size, -1 if upper >= end else born))
    return found


def paired(job: list[int], alone: list[int]) -> list[tuple[int, int]]:
    """The places at which two lists have the same, in order.

    The walk looks for the nearest places from which several agree again.
    """
    pairs = []
    a = b = 0
    while a < len(job) and b < len(alone):
        if job[a] == alone[b]:
            pairs.append((a, b))
            a, b = a + 1, b + 1
            continue
        steps = ((skip, far - skip) for far in range(1, 2 * AHEAD) for skip in range(far + 1))
        for skip, insert in steps:
            ours = job[a + skip : a + skip + IN_STEP]
            if ours and ours == alone[b + insert : b + insert + IN_STEP]:
                a, b = a + skip, b + insert
                break
        else:
            break
    return pairs


def compared(job: list[Request], alone: list[Request]) -> dict[str, object]:
    """How two lists of requests differ."""
    sizes = [[request.size for request in it] for it in (job, alone)]
    pairs = paired(*sizes)
    lives = sum(1 for a, b in pairs if job[a].life == alone[b].life)
    first = next((k for k, (a, b) in enumerate(zip(*sizes, strict=False)) if a != b), None)
    if first is None and len(job) != len(alone):
        first = min(len(job), len(alone))
    return {
        "requests_in_job": len(job),
        "requests_alone": len(alone),
        "same_size_in_order": len(pairs),
        "same_life": lives,
        "first_difference": first,
        "in_job_there": [] if first is None else sizes[0][first : first + SHOWN],
        "alone_there": [] if first is None else sizes[1][first : first + SHOWN],
    }


def run(words: list[str], environment: dict[str, str] | None = None) -> None:
    """Runs a command, and shows it."""
    print("+", " ".join(words), file=sys.stderr)
    subprocess.run(words, check=True, env=environment)


def record(
    world: int, ranks: list[int], program: list[str], folder: Path
) -> dict[int, tuple[Path, Path]]:
    """The recordings of each rank in its job and alone."""
    python = [sys.executable, "-m"]
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={world}", "-m", "girih"]
    job = str(folder / "job.girih")
    run([*python, *launcher, "run", "--mode", "stitch", "--trace", job, *program])
    cards = Cards(1)

    def alone(rank: int) -> Path:
        file = folder / f"alone.rank{rank}.girih"
        words = ["girih", "record", "--world", str(world), "--rank", str(rank), "-o", str(file)]
        with cards.one() as (_, environment):
            run([*python, *words, "--per-machine", str(world), "--", *program], environment)
        return file

    with concurrent.futures.ThreadPoolExecutor(cards.count) as workers:
        recorded = dict(zip(ranks, workers.map(alone, ranks), strict=True))
    return {rank: (in_job(folder, rank), file) for rank, file in recorded.items()}


def in_job(folder: Path, rank: int) -> Path:
    """What a rank of the job left: one of several GPUs is on the GPU of its own number."""
    named = sorted(folder.glob(f"job.rank{rank}*.girih"))
    if not named:
        raise SystemExit(f"rank {rank} of the job left no recording in {folder}")
    return named[0]


def rank_list(text: str) -> list[int]:
    """Of the command line."""
    return [int(part) for part in text.split(",")]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", type=int, default=4, help="ranks of the job, and GPUs")
    ranks = "which of them are recorded alone, with commas between"
    parser.add_argument("--rank", type=rank_list, default=[0], help=ranks)
    parser.add_argument("--compare", nargs=2, type=Path, metavar="FILE", help="only compares")
    parser.add_argument("-o", "--output", type=Path, help="keeps what was found, as JSON")
    parser.add_argument("--commit", default="", help="of the build that is measured")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if not arguments.program and arguments.compare is None:
        parser.error("no program")
    if beyond := [rank for rank in arguments.rank if not 0 <= rank < arguments.world]:
        parser.error(f"a job of {arguments.world} ranks has no rank {beyond[0]}")
    return arguments


def main() -> int:
    """Does what the command line says."""
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="girih-rank-") as folder:
        if arguments.compare is not None:
            recordings = {arguments.rank[0]: tuple(arguments.compare)}
        else:
            of_all = (arguments.world, arguments.rank, arguments.program, Path(folder))
            recordings = record(*of_all)
        found = {
            rank: compared(requests(job), requests(alone))
            for rank, (job, alone) in recordings.items()
        }
    for rank, of_rank in found.items():
        print(f"{'rank':<20} {rank}")
        for name, value in of_rank.items():
            print(f"{name:<20} {value}")
    if arguments.output:
        of = {"world": arguments.world, "program": arguments.program}
        made = {"commit": arguments.commit or commit(), "date": str(datetime.date.today())}
        ranks = [{"rank": rank, **of_rank} for rank, of_rank in found.items()]
        kept = shareable({**made, "machine": machine_here(), **of, "ranks": ranks})
        arguments.output.write_text(json.dumps(kept, indent=1) + "\n")
    return int(any(of_rank["first_difference"] is not None for of_rank in found.values()))


if __name__ == "__main__":
    sys.exit(main())
