"""What does not fit, in several ways side by side: one table, one file.

    python gpu/swap.py --rows shape                      # 5 layers of width 4096, batch by batch
    python gpu/swap.py --rows long --cards 2 -o long.json
    python gpu/swap.py --rows skips                      # 500 steps that are not alike
    python gpu/swap.py --budget 40GiB -- --layers 5 --batch 16 --length 4096

Each row is a launch of `workloads/longer.py`: `plain` under PyTorch's allocator, recomputation of
every layer, PyTorch's `save_on_cpu`, offloading on streams of its own, selective checkpointing;
Girih with a budget of bytes for the GPU (`girih`); and its split by tokens (long-contexts.md):
`fill` keeps of each layer what the budget holds, `split:A` the part A (`split:0/0.5/1`: of each
layer another), and computes the rest again; `both:A` swaps what is kept; `tiles:A` and
`both_tiles:A` are these with perceptrons in tiles. Columns: what is allocated
and reserved at most, MiB; the median of the settled steps and its ratio to `plain` where that fits,
else to `recompute`; the first step; whether all gradients of the first step and of the last are
those of the first row that ran, to the bit; GB copied out and back in a settled step; tensors that
went because a request needed their bytes at that moment, and that came only when they were wanted,
in the settled steps; what a step takes by its schedule, and the measured one's ratio to that.
"""

import argparse
import concurrent.futures
import datetime
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinds import take_card
from modes import MIB, card_names, printed, ran, shareable

WORKLOAD = str(Path(__file__).resolve().parent / "workloads" / "longer.py")
WAYS = ("plain", "recompute", "selective", "save_on_cpu", "streams", "girih", "fill", "split:0")
# Name, the ways that are tried, Girih's budget, the shape.
ROWS: dict[str, list[tuple[str, str, str, list[str]]]] = {
    "quick": [
        ("b4", "plain,recompute,girih", "28GiB", ["--layers", "5", "--batch", "4"]),
        ("b8", "plain,recompute,girih", "28GiB", ["--layers", "5", "--batch", "8"]),
    ],
    "shape": [
        (f"batch {batch}", ",".join(WAYS), "24GiB", ["--layers", "5", "--batch", str(batch)])
        for batch in (4, 8, 16, 24)
    ],
    "long": [
        (
            f"{length // 1024}K",
            ",".join(WAYS),
            budget,
            ["--layers", "4", "--batch", "1", "--length", str(length), "--steps", "8"],
        )
        for length, budget in ((32768, "20GiB"), (65536, "30GiB"))
    ],
    # Steps that are not alike, for some minutes: with 500 of them a shift would show.
    "skips": [
        (
            "skips",
            "recompute,girih",
            "9GiB",
            [
                *("--layers", "2", "--batch", "4", "--steps", "500", "--settled", "100"),
                *("--skip-every", "50", "--validate-every", "20", "--exact"),
            ],
        )
    ],
}
HEAD = (
    f"{'row':<10} {'way':<12} {'alloc MiB':>10} {'resv MiB':>10} {'step s':>8} {'ratio':>7}"
    f" {'first s':>8} {'grads':>6} {'GB out':>7} {'GB in':>7} {'victims':>7} {'late':>5}"
    f" {'sched s':>8} {'ratio':>7}"
)


def launch(
    way: str,
    budget: str,
    host: str,
    shape: list[str],
    timeout: int,
    *,
    environ: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Runs the workload once, in another environment if one is given."""
    kind, _, part = way.replace("/", ",").partition(":")
    is_in_tiles = kind.endswith("tiles")
    kind = {"tiles": "split", "both_tiles": "both"}.get(kind, kind)
    is_ours = kind in ("girih", "fill", "split", "both")
    on_cpu = "cpu" in shape
    # What the program does itself under Girih, which swaps the rest.
    own = part if kind == "girih" and part else "plain"
    command = [WORKLOAD, "--way", own if is_ours else way, *shape]
    with tempfile.TemporaryDirectory() as folder:
        if is_ours and on_cpu:
            # Nothing goes anywhere there: what is left is the split, so that it can be tried.
            command += [] if kind == "girih" else ["--split", part or "products"]
            # Tiny sequences are shorter than a tile.
            command += ["--tile", "64"] if is_in_tiles else []
        elif is_ours:
            is_split = kind != "girih" and part
            options = ["--plan-dir", folder, *([f"--long-context={part}"] if is_split else [])]
            if kind != "split":
                options += ["--gpu-budget", budget, *(["--host-budget", host] if host else [])]
            if kind == "fill":
                options += ["--long-context"]
            if is_in_tiles:
                options += ["--mlp-in-tiles"]
            command = ["-m", "girih", "run", *options, *command]
        done = ran(command, timeout, "RESULT", environ)
    if isinstance(done, str):
        return {"way": way, "error": done}
    results = printed(done.stdout)
    decode = json.JSONDecoder().raw_decode
    seen = decode(done.stdout.split("SEEN ")[1])[0]
    found = {"way": way, "seen": seen | results[0], "said": done.stderr[-1500:]}
    if "WHERE " in done.stdout:
        found["where"] = decode(done.stdout.split("WHERE ")[1])[0]
    return found


def changes(seen: dict[str, Any]) -> dict[str, float]:
    """What swapping did in the settled steps, for each of them."""
    found, steps = seen.get("settled_changes", {}), seen.get("settled_steps", 1)
    numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
    return {name: value / max(1, steps) for name, value in numbers.items()}


def scheduled(seen: dict[str, Any]) -> float | None:
    """Seconds of a step by its schedule: that of the steps of which there were most."""
    sequences = (seen.get("swap") or {}).get("sequences") or [{}]
    us: float | None = sequences[0].get("step_us_swapped")
    return us / 1e6 if us and sequences[0]["has_policy"] else None


def agreement(seen: dict[str, Any], base: dict[str, Any], is_exact: bool) -> str:
    """How far the steps that two launches have in common agree, as a cell.

    With deterministic kernels to the bit, gradients too: each loss comes of all gradients before
    it. Without these the largest difference of two losses, as a part of them.
    """
    mine, others = seen["exact_losses"], base["exact_losses"]
    # The last gradients are those of the same step only where there were as many.
    pairs = list(zip(mine, others, strict=False))
    many = 2 if len(mine) == len(others) else 1
    if is_exact:
        same = seen["digests"][:many] == base["digests"][:many]
        return "the same" if same and all(a == b for a, b in pairs) else "DIFFER"
    values = [(float.fromhex(a), float.fromhex(b)) for a, b in pairs]
    most = max(abs(a - b) / abs(b) for a, b in values)
    return "the same" if most == 0 else f"{most:.1e}"


def line(row: str, run: dict[str, Any], base: dict[str, Any] | None, digests: Any) -> str:
    """One line of the table."""
    if "error" in run:
        return f"{row:<10} {run['way']:<12} FAILED {run['error'][:150]}"
    seen = run["seen"]
    ratio = f"{seen['median_step_s'] / base['median_step_s']:.3f}" if base else ""
    same = "same" if seen["digests"] == digests else "DIFFER"
    each = changes(seen)
    swap = [each.get(name, 0.0) for name in ("swap.bytes_out", "swap.bytes_in")]
    late = [each.get(name, 0.0) for name in ("swap.victims", "swap.demanded")]
    promised = scheduled(seen)
    return (
        f"{row:<10} {run['way']:<12} {seen['allocated_peak'] / MIB:>10.0f}"
        f" {seen['reserved_peak'] / MIB:>10.0f} {seen['median_step_s']:>8.3f} {ratio:>7}"
        f" {seen['first_step_s']:>8.2f} {same:>6} {swap[0] / 1e9:>7.2f} {swap[1] / 1e9:>7.2f}"
        f" {late[0]:>7.1f} {late[1]:>5.1f}"
    ) + (f" {promised:>8.3f} {seen['median_step_s'] / promised:>7.3f}" if promised else "")


def first_difference(runs: list[dict[str, Any]]) -> list[str]:
    """For each run but the first, the step from which its losses are others; for long rows."""
    lines = []
    base = runs[0]["seen"]["exact_losses"] if runs else []
    for run in runs[1:]:
        losses = run["seen"]["exact_losses"]
        differ = [
            step for step, pair in enumerate(zip(losses, base, strict=True)) if len({*pair}) > 1
        ]
        said = f"differ from step {differ[0]} on" if differ else f"equal to the bit in {len(base)}"
        lines.append(f"{'':<10} {run['way']:<12} losses of {runs[0]['way']}: {said}")
    return lines


def measure(
    row: tuple[str, str, str, list[str]],
    options: argparse.Namespace,
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Every way of one row, one after the other; a line for each when it ends.

    `keep` is given what there is of the row each time.
    """
    name, ways, budget, shape = row
    # Asked for by name, a way need not be of the row: `split:0.25`.
    wanted = (options.only or ways).split(",")
    budget = options.budget or budget
    shape = [*shape, *options.rest]
    runs: list[dict[str, Any]] = []
    lines: list[str] = []
    base: dict[str, Any] | None = None
    found = {"row": name, "budget": budget, "shape": shape, "runs": runs, "lines": lines}
    for way in wanted:
        run = launch(way, budget, options.host_budget, shape, options.timeout)
        runs.append(run)
        base = base or run.get("seen")
        lines.append(line(name, run, base, base and base["digests"]))
        print(lines[-1], flush=True)
        keep(found)
    if options.rows == "skips":
        lines += first_difference([run for run in runs if "seen" in run])
        print("\n".join(lines[len(runs) :]), flush=True)
    return found


def main() -> int:
    """Runs what the command line asks for. 1 if a launch failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", choices=ROWS, help="what is measured; else one row, of `--`")
    parser.add_argument("--only", help=f"these ways: {','.join(WAYS)}, both:0.5 ...")
    parser.add_argument("--budget", help="of Girih, for every row")
    parser.add_argument("--host-budget", default="")
    parser.add_argument("--cards", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=500, help="seconds, of one launch")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("rest", nargs="*", help="further options of the workload, after --")
    options = parser.parse_args()
    rows = ROWS[options.rows] if options.rows else [("own", ",".join(WAYS), "30GiB", [])]
    context = multiprocessing.get_context("spawn")
    cards = context.Queue()
    for card in card_names(parser, options.cards):
        cards.put(card)
    print(HEAD, flush=True)
    table: list[dict[str, Any]] = []

    def keep(unfinished: dict[str, Any] | None = None) -> None:
        if options.output:
            stamp = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            rows = [*table, unfinished] if unfinished else table
            known = {"when": stamp, "rows": shareable(rows)}
            options.output.write_text(json.dumps(known, indent=1) + "\n")

    if options.cards == 1:
        take_card(cards)
        for row in rows:
            table.append(measure(row, options, keep))
        keep()
    else:
        with concurrent.futures.ProcessPoolExecutor(
            options.cards, mp_context=context, initializer=take_card, initargs=(cards,)
        ) as pool:
            for result in pool.map(measure, rows, [options] * len(rows)):
                table.append(result)
                keep()
    return int(any("error" in run for result in table for run in result["runs"]))


if __name__ == "__main__":
    sys.exit(main())
