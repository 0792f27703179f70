"""Programs of other kinds than language models under every allocator: one table, one file.

    python gpu/kinds.py --seeds 1,2,3 --cards 4 -o kinds.json
    python gpu/kinds.py detector speech --only native,stitch --steps 30
    python gpu/kinds.py --seeds 2,3 --share 3             # bytes alone
    python gpu/kinds.py --script other.py segmentation    # programs of another script

The programs are those of `workloads/kinds/`, the allocators those of `modes.py`. Each program with
each seed goes through all its allocators, one after the other; `--cards` runs as many at once. With
`--turns` so many wait at each card, load their libraries meanwhile, and have it to themselves when
their turn comes. With `--share` so many programs have a card together: bytes are the same then,
times say nothing and are left out. With `--script` the programs are those of any script that takes
a name, `--seed`, `--steps` and `--size`, and of it bytes alone are said. Columns: peaks in MiB;
reserved memory relative to `stitch`; step times relative to native, of the steps after the tenth:
the median of the ratios step by step, the means, the slowest of each; retries; driver calls for
memory in those steps, by Girih's count or else by PyTorch's; and the share of those steps that the
driver took for them, in percent, as Girih times it.
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import modes
from modes import MIB, MODES

WORKLOADS = Path(__file__).resolve().parent / "workloads"
PROGRAMS = sorted(p.stem for p in (WORKLOADS / "kinds").glob("[!_]*.py") if p.stem != "common")
HEAD = (
    f"{'program':<14} {'seed':>4} {'allocator':<16} {'alloc MiB':>10} {'resv MiB':>10}"
    f" {'/stitch':>8} {'median':>8} {'mean':>8} {'slowest':>8} {'retr':>5} {'calls':>8}"
    f" {'driver':>7}"
)


def take_card(cards: Any, turns: str = "") -> None:
    """What this worker starts sees this card alone, in turns by a file of that folder."""
    card = os.environ["CUDA_VISIBLE_DEVICES"] = cards.get()
    if turns:
        os.environ["GIRIH_TURNS"] = str(Path(turns) / f"card-{card}")


def measure(arguments: argparse.Namespace, only: list[str]) -> list[dict[str, Any]]:
    """All launches of one program with one seed."""
    with tempfile.TemporaryDirectory() as cache:
        return [modes.launch(mode, arguments, cache) for mode in only]


def settled_steps(seen: dict[str, Any]) -> list[float]:
    """Seconds of each."""
    seconds: list[float] = seen["step_s"][seen["settled_from"] :]
    return seconds


def driver_calls(seen: dict[str, Any]) -> int:
    """For memory, in the settled steps."""
    if "settled_calls" not in seen:
        return int(seen["settled_device_calls"])
    calls = seen["settled_calls"]
    return sum(count for name, count in calls.items() if name not in modes.EVENTS)


def driver_share(seen: dict[str, Any]) -> str:
    """Of the time of the settled steps, in percent. Torch's own allocator tells of none."""
    changes = seen.get("settled_changes", {})
    if "driver_seconds" not in changes or "step_s" not in seen:
        return "-"
    return f"{100 * changes['driver_seconds'] / sum(settled_steps(seen)):.2f}"


def result(runs: list[dict[str, Any]], mode: str) -> dict[str, Any] | None:
    """What the first launch of this allocator that got through printed."""
    return next((run["ranks"]["0"] for run in runs if run["mode"] == mode and "ranks" in run), None)


def rows(name: str, seed: int, runs: list[dict[str, Any]], is_alone: bool) -> list[str]:
    """The table's lines of one program with one seed, with times if it had its card alone."""
    native, stitch = result(runs, "native"), result(runs, "stitch")
    lines = []
    for run in runs:
        begin = f"{name:<14} {seed:>4} {run['mode']:<16}"
        if "error" in run:
            lines.append(f"{begin} FAILED {run['error'][-300:]}")
            continue
        seen = run["ranks"]["0"]
        space = f"{seen['reserved_peak'] / stitch['reserved_peak']:8.4f}" if stitch else f"{'-':>8}"
        times = [f"{'-':>8}"] * 3
        if native and is_alone and "step_s" in seen:
            mine, base = settled_steps(seen), settled_steps(native)
            ratios = [
                modes.step_ratio(seen, native),
                statistics.mean(mine) / statistics.mean(base),
                max(mine) / max(base),
            ]
            times = [f"{ratio:8.4f}" for ratio in ratios]
        peaks = f"{seen['allocated_peak'] / MIB:10.0f} {seen['reserved_peak'] / MIB:10.0f}"
        share = driver_share(seen) if is_alone else "-"
        counts = f"{seen['retries']:>5} {driver_calls(seen):>8} {share:>7}"
        lines.append(f"{begin} {peaks} {space} {' '.join(times)} {counts}")
    return lines


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("programs", nargs="*", metavar="program", help=", ".join(PROGRAMS))
    parser.add_argument("--seeds", default="1", help="separated by commas")
    parser.add_argument("--only", default="native,expandable,stitch,auto,again")
    parser.add_argument("--cards", type=int, default=1, help="programs at once, one on each")
    parser.add_argument("--turns", type=int, default=1, help="programs that wait at each card")
    parser.add_argument("--share", type=int, default=1, help="programs at once on each card")
    parser.add_argument("--script", type=Path, help="has the programs, by its first argument")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--size", type=float, default=1.0)
    parser.add_argument("--timeout", type=float, default=280, help="seconds for one launch")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    if arguments.share > 1 and arguments.turns > 1:
        parser.error("programs share a card, or have it in turns")
    if arguments.script and not arguments.programs:
        parser.error(f"which programs of {arguments.script}?")
    if not arguments.script and (unknown := set(arguments.programs) - set(PROGRAMS)):
        parser.error(f"no program {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    if unknown := {m.partition(":")[0] for m in arguments.only.split(",")} - set(MODES):
        parser.error(f"no allocator {', '.join(sorted(unknown))}; there are {', '.join(MODES)}")
    arguments.card_names = modes.card_names(parser, arguments.cards)
    return arguments


def main() -> int:
    """Runs what the command line asks for. 1 if a launch failed."""
    arguments = parse()
    context = multiprocessing.get_context("spawn")
    cards = context.Queue()
    at_once = max(arguments.share, arguments.turns)
    for card in arguments.card_names * at_once:
        cards.put(card)
    only = arguments.only.split(",")
    kept: list[dict[str, Any]] = []
    failed = False
    print(HEAD, flush=True)
    with (
        tempfile.TemporaryDirectory() as turns,
        concurrent.futures.ProcessPoolExecutor(
            arguments.cards * at_once,
            mp_context=context,
            initializer=take_card,
            initargs=(cards, turns if arguments.turns > 1 else ""),
        ) as workers,
    ):
        tasks = {}
        for seed in map(int, arguments.seeds.split(",")):
            for name in arguments.programs or PROGRAMS:
                rest = [name, "--seed", str(seed), "--steps", str(arguments.steps)]
                rest += ["--size", str(arguments.size)]
                script = [str(arguments.script)] if arguments.script else []
                workload = "peaks.py" if script else "kinds.py"
                launch = argparse.Namespace(
                    workload=str(WORKLOADS / workload),
                    rest=[*script, *rest],
                    gpus=1,
                    torchrun=False,
                    timeout=arguments.timeout,
                )
                tasks[workers.submit(measure, launch, only)] = (name, seed, launch)
        for task in concurrent.futures.as_completed(tasks):
            name, seed, launch = tasks[task]
            runs = task.result()
            failed |= any("error" in run for run in runs)
            is_alone = arguments.share == 1
            print("\n".join(rows(name, seed, runs, is_alone)), flush=True)
            # Whatever ends this program, what was measured by then is kept.
            measured = {"program": name, "seed": seed, "share": arguments.share}
            kept.append({**measured, **modes.summary(runs, launch)})
            if arguments.output:
                arguments.output.write_text(json.dumps({"programs": kept}, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
