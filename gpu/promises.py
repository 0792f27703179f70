"""Whether a step takes what its schedule says, on programs of many kinds: one table, one file.

    python gpu/promises.py -o promises.json
    python gpu/promises.py gpt2 gan --share 0.7 --steps 40
    python gpu/promises.py --cards 2

Each program runs twice: under `stitch`, where everything fits, and within a budget of `--share` of
what was in use at most then. A row for each kind of step that had a schedule: how many there were,
what one takes by the simulator (without swapping, as scheduled, and what no schedule beats) and
what the shortest measured one took under that schedule, its ratio to the schedule, and the
schedule's to the bound. Where sizes vary no step is like another, and the shortest says little. So
each step that followed its schedule was simulated once more, with its own sizes and with the times
that its operators took without waits: how many were, and what they took by the ratio to that. The
first row of a program also has what was in use, the budget, the median of its last steps in both
runs, GB out in one of them, and whether its losses are those without a budget, to the bit (which
some kernels are not from launch to launch).
"""

import argparse
import concurrent.futures
import datetime
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from kinds import take_card
from modes import MIB, card_names, printed, ran, shareable

WORKLOADS = Path(__file__).resolve().parent / "workloads"
# Programs whose steps save much of what they hold, at sizes that one card of 80 GB has room for.
# Not `video`: what it recomputes is in use at its peak, and nothing of that can go.
PROGRAMS = {
    "gpt2": ["hf.py", "gpt2"],
    "llama": ["hf.py", "llama-2b", "--batch", "8"],
    "varying": ["hf.py", "llama-2b", "--vary", "--batch", "8"],
    "lora": ["hf.py", "lora-13b"],
    "opt": ["hf.py", "opt-1.3b"],
    **{
        name: ["kinds.py", name, "--seed", "1"]
        for name in ("gan", "contrastive", "radiance", "translation", "experts")
    },
}
HEAD = (
    f"{'program':<12} {'in use MiB':>10} {'budget':>7} {'plain s':>8} {'step s':>8} {'GB out':>7}"
    f" {'losses':>7} {'of':>5} {'steps':>6} {'plain ms':>9} {'schedule':>9} {'bound':>9}"
    f" {'measured':>9} {'/sched':>7} {'/bound':>7} {'each':>5} {'/own':>6}"
)


def launch(program: list[str], steps: int, options: list[str], timeout: int) -> dict[str, Any]:
    """Runs a program once under Girih; what it printed, what each step did, or how it failed."""
    settled = ["--steps", str(steps), "--settled", str(steps - max(4, steps // 4)), "--each"]
    words = [str(WORKLOADS / program[0]), *program[1:], *settled]
    with tempfile.TemporaryDirectory() as folder:
        girih = ["-m", "girih", "run", "--plan-dir", folder, *options]
        done = ran([*girih, *words], timeout, "RESULT")
    return {"error": done} if isinstance(done, str) else {"seen": printed(done.stdout)[0]}


def scheduled(seen: dict[str, Any]) -> list[dict[str, Any]]:
    """The kinds of steps of which one was measured under a schedule that has stayed, or checked."""
    sequences = (seen.get("swap") or {}).get("sequences", [])
    return [one for one in sequences if one["checked"] or is_promised(one)]


def is_promised(one: dict[str, Any]) -> bool:
    """What it takes by its schedule is known, and what one took."""
    return bool(one["measured_us"] and one["step_us_swapped"])


def rows(name: str, share: float, plain: dict[str, Any], own: dict[str, Any]) -> list[str]:
    """The table's lines of a program."""
    for run in (plain, own):
        if "error" in run:
            return [f"{name:<12} FAILED {run['error'][-200:]}"]
    base, seen = plain["seen"], own["seen"]
    each = max(1, seen.get("settled_steps", 1))
    out = seen.get("settled_changes", {}).get("swap.bytes_out", 0) / each / 1e9
    same = "same" if seen["exact_losses"] == base["exact_losses"] else "differ"
    front = (
        f"{name:<12} {base['allocated_peak'] / MIB:>10.0f} {share:>7.2f}"
        f" {base['median_step_s']:>8.3f} {seen['median_step_s']:>8.3f} {out:>7.2f} {same:>7}"
    )
    lines = []
    sequences = scheduled(seen)
    for index, one in enumerate(sequences):
        names = ("step_us", "step_us_swapped", "step_us_bound", "measured_us")
        times = [one[name] or math.nan for name in names]
        _, swapped, bound, measured = times
        checked = one["checked"]
        own = one["checked_measured_us"] / one["checked_us"] if checked else math.nan
        lines.append(
            f"{front if index == 0 else ' ' * len(front)} {len(sequences):>5} {one['steps']:>6}"
            + "".join(f" {us / 1e3:>9.1f}" for us in times)
            + f" {measured / swapped:>7.3f} {swapped / bound:>7.3f} {checked:>5} {own:>6.3f}"
        )
    return lines or [f"{front} no step had a schedule"]


def ratios(runs: list[dict[str, Any]]) -> str:
    """The last line: of all kinds of steps, measured over scheduled."""
    sequences = [
        one for run in runs if "seen" in run["own"] for one in scheduled(run["own"]["seen"])
    ]
    found = {
        "measured over scheduled": [
            one["measured_us"] / one["step_us_swapped"] for one in sequences if is_promised(one)
        ],
        "measured over simulated with its own times": [
            one["checked_measured_us"] / one["checked_us"] for one in sequences if one["checked"]
        ],
    }
    lines = [
        f"{what}, of {len(these)}: {min(these):.3f} to {max(these):.3f},"
        f" median {statistics.median(these):.3f}"
        for what, these in found.items()
        if these
    ]
    return "\n".join(lines) or "no step had a schedule"


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Both launches of a program."""
    program = PROGRAMS[name]
    plain = launch(program, options.plain_steps, ["--mode", "stitch"], options.timeout)
    found: dict[str, Any] = {"program": name, "words": program, "share": options.share}
    found |= {"plain": plain, "own": {"error": "without a budget it did not run"}}
    if "seen" in plain:
        budget = int(plain["seen"]["allocated_peak"] * options.share)
        within = ["--gpu-budget", f"{budget}B"]
        found["own"] = launch(program, options.steps, within, options.timeout)
        found["budget"] = budget
    return found


def main() -> int:
    """Runs what the command line asks for. 1 if a launch failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("programs", nargs="*", metavar="program", help=", ".join(PROGRAMS))
    parser.add_argument("--share", type=float, default=0.8, help="of what is in use, as a budget")
    parser.add_argument("--steps", type=int, default=48, help="within the budget")
    parser.add_argument("--plain-steps", type=int, default=12, help="where everything fits")
    parser.add_argument("--cards", type=int, default=1, help="programs at once, one on each")
    parser.add_argument("--timeout", type=int, default=280, help="seconds, of one launch")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if unknown := set(options.programs) - set(PROGRAMS):
        parser.error(f"no program {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    context = multiprocessing.get_context("spawn")
    cards = context.Queue()
    for card in card_names(parser, options.cards):
        cards.put(card)
    runs: list[dict[str, Any]] = []
    print(HEAD, flush=True)
    with concurrent.futures.ProcessPoolExecutor(
        options.cards, mp_context=context, initializer=take_card, initargs=(cards,)
    ) as workers:
        names = options.programs or list(PROGRAMS)
        tasks = [workers.submit(measure, name, options) for name in names]
        for task in concurrent.futures.as_completed(tasks):
            run = task.result()
            runs.append(run)
            lines = rows(run["program"], options.share, run["plain"], run["own"])
            print("\n".join(lines), flush=True)
            # Whatever ends this program, what was measured by then is kept.
            if options.output:
                when = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
                found = {"when": when, "programs": runs}
                options.output.write_text(json.dumps(shareable(found), indent=1) + "\n")
    print(ratios(runs))
    return int(any("error" in run["own"] for run in runs))


if __name__ == "__main__":
    sys.exit(main())
