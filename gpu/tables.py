"""The figures and tables of the papers, one command each; and tables of results that were kept.

    python gpu/tables.py                              # lists them, with what each needs
    python gpu/tables.py gmlake table1
    python gpu/tables.py stweaver fig8 --quick
    python gpu/tables.py kept bench/results/gpu/*.json
    python gpu/tables.py record --keep FOLDER stweaver/fig8 gmlake/fig11
    python gpu/tables.py replay --keep FOLDER
    python gpu/tables.py together --quick chameleon/table3 memo/table5

What a paper's figure or table compares is run at the size that one card allows (`seeds/`), printed
as Markdown, and written as JSON to bench/results/seeds/. What the machine cannot run is said in one
line, with exit status 1. `kept` prints files of results again, and those of `modes.py -o`.
`record`, `replay` and `together` make several tables in the time of few (`seeds/apart.py`): where
bytes alone are asked, recordings are made side by side, each with a share of a card, and replayed
on a machine without one; what is timed has a card in turns. All cards that are there are used.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from modes import step_ratio
from seeds import apart, chameleon, gmlake, memo, stweaver
from seeds.bench import RESULTS, Bench, Table, cards

TABLES: list[Table] = [*gmlake.TABLES, *stweaver.TABLES, *chameleon.TABLES, *memo.TABLES]
MIB = 1 << 20
HEAD = (
    "allocator | rank | allocated | reserved | efficiency | settled | device | first step"
    " | median step | of native | losses"
)


def row(mode: str, rank: str, seen: dict[str, Any], base: dict[str, Any]) -> str:
    """A line for one rank of one launch. Sizes in MiB."""
    # Files from before losses were kept to the bit have six digits of them.
    kind = "exact_losses" if "exact_losses" in seen else "losses"
    losses = "the same" if seen[kind] == base[kind] else "differ"
    cells = [
        mode,
        rank,
        f"{seen['allocated_peak'] / MIB:,.0f}",
        f"{seen['reserved_peak'] / MIB:,.0f}",
        f"{seen['efficiency']:.4f}",
        f"{seen['settled_efficiency']:.4f}",
        f"{seen['device_used'] / MIB:,.0f}",
        f"{seen['first_step_s']:.2f} s",
        f"{seen['median_step_s']:.4f} s",
        f"{step_ratio(seen, base):.4f}",
        losses if seen[kind] else "-",
    ]
    return f"| {' | '.join(cells)} |"


def calls(mode: str, rank: str, seen: dict[str, Any]) -> str | None:
    """What the settled steps asked of the driver, as a sentence."""
    if "settled_calls" not in seen:
        return None
    events = sum(n for name, n in seen["settled_calls"].items() if "event" in name)
    others = sum(seen["settled_calls"].values()) - events
    change = seen["settled_changes"]
    asked = change["hits"] + change["misses"]
    return (
        f"- {mode}, rank {rank}: {others} driver calls and {events} on events in"
        f" {seen['settled_steps']} settled steps; {change['misses']:,} of {asked:,} requests off"
        " the plan."
    )


def table(summary: dict[str, Any]) -> list[str]:
    """The lines of one file."""
    lines = [f"| {HEAD} |", f"|:--|{'--:|' * 9}:--|"]
    notes = []
    base: dict[str, dict[str, Any]] = {}
    for run in summary["runs"]:
        for rank, seen in run.get("ranks", {}).items():
            lines.append(row(run["mode"], rank, seen, base.setdefault(rank, seen)))
            if note := calls(run["mode"], rank, seen):
                notes.append(note)
    return [*lines, "", *notes]


def made(summary: dict[str, Any]) -> list[str]:
    """The lines of one file that a table of a paper has left."""
    known = [summary["commit"] or "no commit", summary["date"], summary["machine"]]
    lines = [f"### {summary['table']}: {summary['what']}\n"]
    lines.append(f"`{summary['command']}`, {', '.join(known)}\n")
    for section in summary["sections"]:
        lines += [f"{section['heading']}\n"] if section["heading"] else []
        lines.append(f"| {' | '.join(section['columns'])} |")
        lines.append(f"|:--|{'--:|' * (len(section['columns']) - 1)}")
        lines += [f"| {' | '.join(row)} |" for row in section["rows"]]
        lines.append("")
    if not summary.get("finished", True):
        lines.append("The program was ended before this table was whole.\n")
    return [*lines, *(f"{note}\n" for note in summary["notes"])]


def kept(names: list[str]) -> int:
    """Prints the tables of each file that is one of `modes.py`, or one of these."""
    for name in names:
        summary = json.loads(Path(name).read_text())
        if "sections" in summary:
            print("\n".join(made(summary)))
            continue
        if "gpus" not in summary:
            continue
        gpus = f" --gpus {summary['gpus']}" if summary["gpus"] > 1 else ""
        print(f"### {Path(name).stem}\n")
        print(f"`python gpu/modes.py{gpus} {' '.join(summary['workload'])}`\n")
        print("\n".join(table(summary)) + "\n")
    return 0


def listed() -> list[str]:
    """What there is: a line for each table, with its minutes on one H200."""
    lines = [f"{'table':<17} {'min':>3} {'quick':>5} {'GPUs':>4}  what is compared (needs)"]
    for one in TABLES:
        needs = ", ".join((*one.modules, *one.tools))
        begin = f"{one.seed} {one.name}"
        lines.append(
            f"{begin:<17} {one.minutes:>3.0f} {one.quick:>5.0f} {one.gpus:>4}  {one.what}"
            f"{f' ({needs})' if needs else ''}"
        )
    return lines


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    seeds = sorted({one.seed for one in TABLES})
    words_of = ["kept", "record", "replay", "together", *seeds]
    add = parser.add_argument
    add("seed", nargs="?", choices=words_of, help="the paper, or what is done with several tables")
    add("names", nargs="*", help="the table; of `kept` files, of others tables: gmlake/fig3 ...")
    add("--quick", action="store_true", help="less of it, within five minutes")
    add("--part", choices=["bytes", "times"], help="what is replayed alone, or what is timed")
    add("--commit", default="", help="of the build that is measured")
    add("--timeout", type=float, default=280, help="seconds for one launch")
    add("--keep", type=Path, metavar="FOLDER", help="keeps the recordings there")
    add("--at-once", type=int, default=6, help="recordings, or tables, on a card (6)")
    add("--seconds", type=float, default=540, help="of `record` and `together`, in all (540)")
    add("-o", "--output", type=Path, help="the file (bench/results/seeds/...)")
    # Options may stand before the names too.
    options = parser.parse_intermixed_args(words)
    options.tables = []
    if options.seed in (None, "kept"):
        return options
    if options.seed in ("record", "replay", "together"):
        several(parser, options)
        return options
    of_seed = {one.name: one for one in TABLES if one.seed == options.seed}
    if len(options.names) != 1 or options.names[0] not in of_seed:
        parser.error(f"of {options.seed} name one of {', '.join(of_seed)}")
    options.table = of_seed[options.names[0]]
    if options.output is None:
        options.output = RESULTS / apart.file_name(options.table, options)
    return options


def several(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """The tables that are asked for: all that can be, if none is named."""
    part = "times" if options.seed == "together" else "bytes"
    if part == "bytes":
        options.part = part
        if options.keep is None:
            parser.error(f"{options.seed} needs --keep FOLDER, where the recordings are")
    able = {f"{one.seed}/{one.name}": one for one in TABLES if part in one.parts}
    if unknown := [name for name in options.names if name not in able]:
        parser.error(f"{unknown[0]}: {options.seed} makes {', '.join(able)}")
    options.tables = [able[name] for name in options.names or able]


def lacking(tables: list[Table]) -> bool:
    """Says in a line for each what this machine cannot run."""
    said = {one.title: one.missing(cards()) for one in tables}
    for title, missing in said.items():
        if missing:
            print(f"{title}: {missing}", file=sys.stderr)
    return any(said.values())


def make(options: argparse.Namespace) -> int:
    """One table. 1 if a launch of it failed."""
    bench = Bench(options.table, options)
    try:
        options.table.make(bench)
        bench.finish()
    finally:
        bench.close()
    return int(bench.has_failed)


def main() -> int:
    """Does what the command line says. 1 if something could not be run, or failed."""
    options = parse(sys.argv[1:])
    if options.seed is None:
        print("\n".join(listed()))
        return 0
    if options.seed == "kept":
        return kept(options.names)
    if options.seed == "replay":
        return apart.replay(options.keep, options.tables, options, options.output or RESULTS)
    if lacking(options.tables or [options.table]):
        return 1
    several_at_once = {
        "record": lambda: apart.record(options.keep, options.tables, options),
        "together": lambda: apart.together(Path(__file__), options.tables, options),
    }
    return several_at_once.get(options.seed, lambda: make(options))()


if __name__ == "__main__":
    sys.exit(main())
