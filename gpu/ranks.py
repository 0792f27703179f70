"""What two ranks of FSDP2 can train within so much of each card, and how fast: way by way.

    python gpu/ranks.py -o ranks.json                        # two cards, 24 GiB of each
    python gpu/ranks.py --cap 32 --only recompute,girih --batches 8,16,32,64

Each row is a launch of `workloads/fsdp.py`, whose ranks may use `--cap` GiB each: FSDP2 as it is,
recomputation of every layer, FSDP2's own `CPUOffloadPolicy` with and without recomputation, and
Girih within that many bytes, with and without, and split by tokens (long-contexts.md). Batches
grow until one is out of memory. Columns: sequences a rank and step; the most that was allocated
and reserved by the first rank, MiB; the median of the settled steps and tokens a second of all
ranks; GB that the first rank copied out in a settled step. Below, for each way, the largest batch
and the most tokens a second. Exit status 1 if a launch ended otherwise than by out of memory.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fit import OUT_OF_MEMORY
from modes import MIB, printed, shareable, waited

WORKLOAD = str(Path(__file__).resolve().parent / "workloads" / "fsdp.py")
OFFLOAD, RECOMPUTE = "--offload", "--recompute"
# What the program does, and the options with which Girih runs it; none if it does not.
WAYS: dict[str, tuple[list[str], list[str] | None]] = {
    "plain": ([], None),
    "recompute": ([RECOMPUTE], None),
    "offload": ([OFFLOAD], None),
    "offload+recompute": ([OFFLOAD, RECOMPUTE], None),
    "girih": ([], []),
    "girih+recompute": ([RECOMPUTE], []),
    "girih+split": ([], ["--long-context=products"]),
}
HEAD = (
    f"{'way':<18} {'batch':>5} {'alloc MiB':>10} {'resv MiB':>10} {'step s':>8} {'tokens/s':>9}"
    f" {'GB out':>7}"
)


def launch(way: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the workload once; what the first rank saw, or how it failed."""
    words, ours = WAYS[way]
    program = [WORKLOAD, "--meta", *words, "--batch", str(batch), "--length", str(options.length)]
    steps = options.steps_of_others if ours is None else options.steps
    program += ["--steps", str(steps), "--settled", str(steps - 3), *options.rest]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", str(options.ranks)]
    with tempfile.TemporaryDirectory() as folder:
        if ours is not None:
            budget = ["--gpu-budget", f"{options.cap}GiB"]
            girih = ["-m", "girih", "run", "--plan-dir", folder, *budget, *ours]
            launcher += ["--no-python", sys.executable, *girih]
        else:
            program += ["--cap", str(options.cap)]
        try:
            environ = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
            done = waited([*launcher, *program], options.timeout, environ)
        except subprocess.TimeoutExpired:
            return {"way": way, "batch": batch, "error": f"ran past {options.timeout} s"}
    found: dict[str, Any] = {"way": way, "batch": batch}
    results = printed(done.stdout)
    if done.returncode == 0 and results:
        return found | {"seen": results[0]}
    said = [line for line in done.stderr.splitlines() if "Error" in line]
    memory = [line for line in said if OUT_OF_MEMORY.search(line)]
    return found | {"error": (memory or said or [done.stderr[-1500:]])[0]}


def tokens(run: dict[str, Any], options: argparse.Namespace) -> float:
    """Tokens a second of all ranks."""
    return float(run["batch"] * options.ranks * options.length / run["seen"]["median_step_s"])


def line(run: dict[str, Any], options: argparse.Namespace) -> str:
    """One line of the table."""
    front = f"{run['way']:<18} {run['batch']:>5}"
    if "error" in run:
        return f"{front} FAILED {run['error'][:150]}"
    seen = run["seen"]
    out = seen.get("settled_changes", {}).get("swap.bytes_out", 0)
    return (
        f"{front} {seen['allocated_peak'] / MIB:>10.0f} {seen['reserved_peak'] / MIB:>10.0f}"
        f" {seen['median_step_s']:>8.3f} {tokens(run, options):>9.0f}"
        f" {out / max(1, seen.get('settled_steps', 1)) / 1e9:>7.2f}"
    )


def best(way: str, runs: list[dict[str, Any]], options: argparse.Namespace) -> str:
    """The largest batch of a way, and its most tokens a second."""
    ran = [run for run in runs if run["way"] == way and "seen" in run]
    if not ran:
        return f"{way:<18} runs with none of the batches"
    fast = max(ran, key=lambda run: tokens(run, options))
    return (
        f"{way:<18} largest batch {max(run['batch'] for run in ran)}, at most"
        f" {tokens(fast, options):.0f} tokens/s, with {fast['batch']}"
    )


def main() -> int:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default=",".join(WAYS), help=f"these ways: {','.join(WAYS)}")
    parser.add_argument("--batches", default="4,8,16,32", help="in order, until one does not fit")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--cap", type=int, default=24, help="GiB of each card")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=8, help="of the host, for each rank")
    parser.add_argument("--steps", type=int, default=24, help="of girih, which tries plans")
    parser.add_argument("--steps-of-others", type=int, default=6)
    parser.add_argument("--timeout", type=int, default=200, help="seconds, of one launch")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("rest", nargs="*", help="further options of the workload, after --")
    options = parser.parse_args()
    ways = options.only.split(",")
    if unknown := set(ways) - set(WAYS):
        raise SystemExit(f"use ways of {','.join(WAYS)}: {','.join(sorted(unknown))} is none")
    print(f"{options.cap} GiB of each of {options.ranks} cards\n{HEAD}", flush=True)
    runs: list[dict[str, Any]] = []
    has_failed = False
    for way in ways:
        for batch in (int(batch) for batch in options.batches.split(",")):
            run = launch(way, batch, options)
            runs.append(run)
            print(line(run, options), flush=True)
            if options.output:
                stamp = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
                known = {"when": stamp, "cap": options.cap, "length": options.length}
                options.output.write_text(
                    json.dumps(known | {"runs": shareable(runs)}, indent=1) + "\n"
                )
            if "error" in run:
                has_failed |= not OUT_OF_MEMORY.search(run["error"])
                break
    for way in ways:
        print(best(way, runs, options))
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
