"""Markdown tables of results that `modes.py -o` has kept.

python gpu/tables.py bench/results/gpu/*.json
"""

import json
import sys
from pathlib import Path
from typing import Any

from modes import step_ratio

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


def main() -> int:
    """Prints a table for each file that is one of `modes.py`."""
    for name in sys.argv[1:]:
        summary = json.loads(Path(name).read_text())
        if "gpus" not in summary:
            continue
        gpus = f" --gpus {summary['gpus']}" if summary["gpus"] > 1 else ""
        print(f"### {Path(name).stem}\n")
        print(f"`python gpu/modes.py{gpus} {' '.join(summary['workload'])}`\n")
        print("\n".join(table(summary)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
