"""Chameleon: its figures and tables on one card, with `workloads/longer.py` by way of `swap.py`.

Its runs are of ZeRO-2 on 8 cards of 64 GB. Here one card trains the same shapes, and what a card of
the paper held is a budget: what PyTorch allocates at the base, batch 4, 5 layers, length and width
4096. Shapes are measured side by side where there are several cards, each on one.
"""

from __future__ import annotations

import statistics
from typing import Any

from fit import OUT_OF_MEMORY
from swap import agreement, launch

from seeds.bench import LOSSES, OUT, Bench, Table, first_line, gib

BASE = {"layers": 5, "hidden": 4096, "length": 4096, "batch": 4}
# The last step, of which gradients are kept, takes longer: it is one of six.
STEPS = {"steps": 10, "settled": 4}
# Where Girih swaps: schedules are tried until two in a row bring nothing. What comes to rest mostly
# has in 35 steps, eleven layers once in 66; not all shapes do (bench/results/lake.md).
RESTED = {"steps": 60, "settled": 50}
RESTED_QUICK = {"steps": 40, "settled": 34}
RESTED_LATE = {"steps": 80, "settled": 70}
MANY_LAYERS = 8
COLUMNS = [
    *("shape", "way", "allocated GiB", "step s", "of recomputation's", "losses"),
    *("GB out", "said"),
]
# The largest of each dimension in table 4, and those on the way there in figures 6 and 8a.
LARGEST = {"batch": 24, "layers": 11, "length": 24576, "hidden": 6016}
ON_THE_WAY = {
    "batch": (8, 16),
    "layers": (8,),
    "length": (12288,),
    "hidden": (5504,),
}
WAYS = {"recompute": "recompute", "girih": "girih", "both:products": "girih, products"}
"""Recomputation; Girih's swapping alone; and with what products gave kept or swapped and the rest
computed again by the token."""
HEAD = 128
"""Width of a head; that of a feed-forward layer is 43 / 16 of the model's, as in Llama2-7B."""


def words_of(shape: dict[str, int], **more: int) -> list[str]:
    """The workload's options."""
    width = shape["hidden"]
    derived = {"heads": width // HEAD, "ffn": width * 43 // 16}
    options = {**shape, **derived, **STEPS, **more}
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def run(
    bench: Bench,
    way: str,
    budget: str,
    words: list[str],
    name: str = "",
) -> dict[str, Any]:
    """A launch: what it saw, as `seen`, or its error."""
    bench.say(f"  {way} {' '.join(words)}")
    found = launch(way, budget, "", words, int(bench.timeout), environ=bench.environ)
    bench.keep({"shape": name or " ".join(words), "budget": budget} | drop_said(found))
    if "error" in found and not OUT_OF_MEMORY.search(found["error"]):
        bench.has_failed = True
    return found


def said_of(found: dict[str, Any]) -> str:
    """Why a launch did not end, as a cell."""
    error: str = found["error"]
    return OUT if OUT_OF_MEMORY.search(error) else first_line(error, 60)


def drop_said(found: dict[str, Any]) -> dict[str, Any]:
    """Without what was said beside the result."""
    return {key: value for key, value in found.items() if key != "said"}


def sweep(bench: Bench, shapes: dict[str, dict[str, int]]) -> None:
    """Each way at each shape; Girih in what the base shape allocates. A shape has a card."""
    found: dict[str, Any] = {}
    words = words_of(BASE)
    bench.on_cards(["base"], lambda name: found.update(run(bench, "plain", "0", words, name)))
    base = found.get("seen")
    if base is None:
        raise SystemExit("the base shape does not run on this card; see the file of results")
    budget = f"{base['allocated_peak']}B"
    bench.section(COLUMNS)
    cells = [gib(base["allocated_peak"]), f"{base['median_step_s']:.3f}"]
    bench.row("base", "plain", *cells, "-", "-", "0.00", "")

    # Those that take the longest first.
    names = list(reversed(shapes))
    bench.on_cards(names, lambda name: ways(bench, name, shapes[name], budget))
    bench.in_order(["base", *shapes])
    bench.note(LOSSES)
    bench.note(f"Girih's budget is {int(base['allocated_peak']) / (1 << 30):.2f} GiB.")


def ways(bench: Bench, name: str, shape: dict[str, int], budget: str) -> None:
    """A row for each way at one shape."""
    first: dict[str, Any] | None = None
    recomputed = None
    for way, shown in WAYS.items():
        settling = RESTED_QUICK if bench.quick else RESTED
        settling = RESTED_LATE if shape["layers"] > MANY_LAYERS else settling
        more = {} if way == "recompute" else settling
        found = run(bench, way, budget, words_of(shape, **more), name)
        seen = found.get("seen")
        if seen is None:
            bench.row(name, shown, "-", "-", "-", "-", "-", said_of(found))
            continue
        first = first or seen
        if way == "recompute":
            recomputed = seen["median_step_s"]
        ratio = f"{seen['median_step_s'] / recomputed:.3f}" if recomputed else "-"
        same = agreement(seen, first, False)
        changed = seen.get("settled_changes", {})
        out = changed.get("swap.bytes_out", 0) / max(1, seen.get("settled_steps", 1))
        cells = [gib(seen["allocated_peak"]), f"{seen['median_step_s']:.3f}", ratio, same]
        bench.row(name, shown, *cells, f"{out / 1e9:.2f}", "")


def table4(bench: Bench) -> None:
    """The largest of each dimension."""
    names = ("batch",) if bench.quick else tuple(LARGEST)
    sweep(bench, {f"{name} {LARGEST[name]}": BASE | {name: LARGEST[name]} for name in names})


def fig6(bench: Bench) -> None:
    """Every dimension on the way to its largest, which is table 4's: time should grow in a line."""
    names = ("batch",) if bench.quick else tuple(ON_THE_WAY)
    values = [(name, value) for name in names for value in ON_THE_WAY[name]]
    sweep(bench, {f"{name} {value}": BASE | {name: value} for name, value in values})


SUFFICES = "64GiB"
"""A budget that the base shape stays below, and that is less than a card of 80 GB has."""


def table1(bench: Bench) -> None:
    """What observing costs: Girih with a budget that suffices, and PyTorch's profiler."""
    rounds = 2 if bench.quick else 5
    ways = {
        "plain": ("plain", []),
        "Girih, a budget that suffices": ("girih", []),
        "torch.profiler, shapes and stacks": ("plain", ["--profiler"]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        # In turns: a card that has warmed up takes longer for the same step.
        for name, (way, more) in ways.items():
            if more and number >= 2:
                continue
            found = run(bench, way, SUFFICES, [*words_of(BASE, steps=30), *more], name)
            if "seen" in found:
                seconds[name].append(found["seen"]["median_step_s"])
    bench.section(["way", "step ms", "of plain's", "launches"])
    plain = statistics.mean(seconds["plain"])
    for name, values in seconds.items():
        if not values:
            bench.row(name, "-", "-", "0")
            continue
        mean = statistics.mean(values)
        bench.row(name, f"{1000 * mean:.1f}", f"{mean / plain:.4f}", len(values))
    bench.note("The paper: light mode 1.009, detailed 1.346, the built-in profiler 3.197.")


# The small sizes that a line is drawn through, and the one that it is held against.
LINES = {
    "batch": ((2, 4), 8),
    "layers": ((3, 5), 10),
    "length": ((2048, 4096), 8192),
}


def table3(bench: Bench) -> None:
    """A line through two small shapes beside what the large one takes."""
    bench.section(["dimension", "from", "to", "by the line s", "measured s", "error %"])
    for name, (small, large) in list(LINES.items())[: 2 if bench.quick else None]:
        taken, said = {}, ""
        for value in (*small, large):
            found = run(bench, "plain", "0", words_of(BASE | {name: value}), f"{name} {value}")
            if "seen" in found:
                taken[value] = found["seen"]["median_step_s"]
            else:
                said = said_of(found)
        where = f"{small[0]}, {small[1]}"
        if len(taken) < 3:
            bench.row(name, where, large, "-", "-", said)
            continue
        slope = (taken[small[1]] - taken[small[0]]) / (small[1] - small[0])
        line = taken[small[1]] + slope * (large - small[1])
        error = 100 * (line / taken[large] - 1)
        bench.row(name, where, large, f"{line:.3f}", f"{taken[large]:.3f}", f"{error:+.2f}")
    bench.note("The paper: -2.32, -0.18 and -0.41 %.")


def fig7(bench: Bench) -> None:
    """Thousands of steps with skipped ones and validation: the losses must be the same."""
    steps = 600 if bench.quick else 5000
    small = {"layers": 4, "hidden": 1024, "length": 1024, "batch": 8}
    # Validation every 200 steps as there; a step in 97 is skipped, as loss scaling would.
    more = {"steps": steps, "settled": 100, "validate-every": 200, "skip-every": 97}
    words = [*words_of(small, **more), "--exact"]
    bench.section(["way", "steps", "allocated GiB", "step ms", "losses", "GB out a step"])
    plain: dict[str, Any] | None = None
    budget = "0"
    for way in ("plain", "recompute", "girih"):
        found = run(bench, way, budget, words, "long")
        seen = found.get("seen")
        if seen is None:
            bench.row(way, "-", "-", "-", said_of(found), "-")
            continue
        if plain is None:
            plain = seen
            # Seven tenths of what it allocates: most of a step's activations have to go.
            budget = f"{seen['allocated_peak'] * 7 // 10}B"
        same = seen["exact_losses"] == plain["exact_losses"]
        out = seen.get("settled_changes", {}).get("swap.bytes_out", 0) / (steps - 100)
        cells = [len(seen["losses"]), gib(seen["allocated_peak"])]
        cells += [f"{1000 * seen['median_step_s']:.2f}", "the same" if same else "differ"]
        bench.row(way, *cells, f"{out / 1e9:.3f}")
        bench.has_failed |= not same


HF = ("transformers",)
TABLES = [
    Table("chameleon", "table1", "cost of observing", table1, 5, 3, modules=HF),
    Table("chameleon", "table3", "linear extrapolation", table3, 4, 3, modules=HF),
    Table("chameleon", "table4", "the largest shapes", table4, 30, 5, modules=HF),
    Table("chameleon", "fig6", "shapes on the way there", fig6, 20, 5, modules=HF),
    Table("chameleon", "fig7", "5,000 steps with faults", fig7, 12, 3, modules=HF),
]
