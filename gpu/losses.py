"""Thousands of steps of a small GPT, with what goes to the host and without: are the losses equal?

    python gpu/losses.py -o losses.json                          # 5000 steps, all ways
    python gpu/losses.py --only recompute,girih --steps 1000
    python gpu/losses.py --device cpu --tiny --steps 60          # without a GPU: girih is left out

Each way is a launch of `workloads/gpt.py`: recomputation of every layer, PyTorch as it is, Girih
within a budget, and swapping by Capuchin's identity (operator number, i-th tensor) within the same
budget, once as PyTorch has it and once told where each step begins. The budget is what three steps
of `plain` hold besides their activations, and `--part` of these. Every 50th step is skipped, and
every 20th is followed by a validation. Columns: steps that were done, ms a step, the most that was
allocated, MiB, GB that went to the host, the first and the last loss, and whether all losses, the
validations and the parameters at the end are those of the first way to the bit; else the step from
which they are not, or what ended the run. Exit status 1 if Girih's are not.
"""

import argparse
import datetime
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from modes import MIB, printed, ran, shareable

WORKLOAD = str(Path(__file__).resolve().parent / "workloads" / "gpt.py")
WAYS = ("recompute", "plain", "girih", "capuchin", "capuchin-told")
HEAD = (
    f"{'way':<14} {'steps':>6} {'ms':>7} {'alloc MiB':>9} {'GB out':>7} {'first':>8} {'last':>8}"
    "  losses"
)


def launch(way: str, shape: list[str], budget: int, timeout: int) -> dict[str, Any]:
    """Runs the workload once."""
    command = [WORKLOAD, "--way", "plain" if way == "girih" else way, *shape]
    with tempfile.TemporaryDirectory() as folder:
        if way == "girih":
            girih = ["-m", "girih", "run", "--plan-dir", folder, "--gpu-budget", f"{budget}B"]
            command = [*girih, *command]
        elif way.startswith("capuchin"):
            # Where bytes are not counted, as many go as would be of half of the activations.
            command += ["--budget", str(budget)] if budget else ["--excess", str(8 * MIB)]
        done = ran(command, timeout, "RESULT")
    if isinstance(done, str):
        return {"way": way, "error": done}
    results = printed(done.stdout)
    return results[0] | {"way": way, "said": done.stderr[-1500:]}


def budget_of(shape: list[str], part: float, timeout: int) -> int:
    """What three steps hold besides activations, and a part of these. 0 if nothing is counted."""
    seen = launch("plain", [*shape, "--steps", "3"], 0, timeout)
    if "error" in seen:
        raise SystemExit(f"make three steps of `plain` run first: {seen['error']}")
    rest, peak = seen["allocated"], seen["allocated_peak"]
    return int(rest + part * (peak - rest))


def verdict(run: dict[str, Any], base: dict[str, Any]) -> str:
    """How the losses of a run stand to those of the first way."""
    if run["ended"]:
        return f"ended in step {run['steps']}: {run['ended']}"
    for name, word in (("exact_losses", "step"), ("exact_validations", "validation")):
        pairs = zip(run[name], base[name], strict=False)
        differ = [place for place, (own, other) in enumerate(pairs) if own != other]
        if differ:
            return f"differ from {word} {differ[0]} on"
    if run["steps"] == base["steps"] and run["parameters"] != base["parameters"]:
        return "equal, parameters are not"
    return "equal to the bit"


def line(run: dict[str, Any], base: dict[str, Any] | None) -> str:
    """One line of the table."""
    if "error" in run:
        return f"{run['way']:<14} FAILED {run['error'][:150]}"
    losses = [float.fromhex(loss) for loss in run["exact_losses"]]
    first, last = (f"{losses[place]:.4f}" if losses else "" for place in (0, -1))
    out = (run["swap"] or {}).get("bytes_out", 0)
    return (
        f"{run['way']:<14} {run['steps']:>6} {run['step_ms']:>7.2f}"
        f" {run['allocated_peak'] / MIB:>9.0f} {out / 1e9:>7.1f} {first:>8} {last:>8}"
        f"  {verdict(run, base or run)}"
    )


def main() -> int:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", help=f"these ways: {','.join(WAYS)}")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--part", type=float, default=0.6, help="of the activations, on the GPU")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--timeout", type=int, default=550, help="seconds, of one launch")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("rest", nargs="*", help="further options of the workload, after --")
    options = parser.parse_args()
    ways = options.only.split(",") if options.only else list(WAYS)
    if unknown := set(ways) - set(WAYS):
        raise SystemExit(f"use ways of {','.join(WAYS)}: {','.join(sorted(unknown))} is none")
    shape = ["--device", options.device, *(["--tiny"] if options.tiny else []), *options.rest]
    if options.device == "cpu":
        ways = [way for way in ways if way != "girih"]
    budget = budget_of(shape, options.part, options.timeout)
    print(f"budget {budget / MIB:.0f} MiB\n{HEAD}", flush=True)
    runs: list[dict[str, Any]] = []
    base = None
    for way in ways:
        run = launch(way, [*shape, "--steps", str(options.steps)], budget, options.timeout)
        runs.append(run)
        base = base or (None if "error" in run else run)
        print(line(run, base), flush=True)
        if options.output:
            stamp = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            known = {"when": stamp, "budget": budget, "runs": shareable(runs)}
            options.output.write_text(json.dumps(known, indent=1) + "\n")
    ours = [run for run in runs if run["way"] == "girih"]
    return int(
        any("error" in run or verdict(run, base or run) != "equal to the bit" for run in ours)
    )


if __name__ == "__main__":
    sys.exit(main())
