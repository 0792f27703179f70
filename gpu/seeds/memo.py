"""Memo (Zhao et al., SIGMOD 2025): its figures and tables on one card, by way of `longctx.py`.

Its runs are of 8 to 64 cards of 80 GB. Here one card trains four layers of a Llama2-7B, or eight on
a part of a card where the longest sequence is looked for.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any

import longctx
from fit import smaller_card
from swap import agreement

from seeds.bench import LOSSES, OUT, Bench, Table, first_line, gib

COLUMNS = [
    *("tokens", "way", "allocated GiB", "reserved GiB", "step s", "time of the first's"),
    *("MFU", "losses"),
]
NAMES = {
    "plain": "plain",
    "recompute": "recomputation",
    "girih": "Girih, swapping",
    "split:0": "Girih, alpha 0",
    "split:products": "Girih, products",
    "both:1": "Girih, all swapped",
    "fill": "Girih, what fits",
}


class Launches(longctx.Table):
    """A table of `longctx.py` whose launches are kept as they come, and are rows where asked for.

    A row is beside the first launch at its length.
    """

    def __init__(
        self, bench: Bench, options: argparse.Namespace, layers: int | None, shown: Any
    ) -> None:
        self.bench = bench
        self.layers = layers
        self.first: dict[int, dict[str, Any]] = {}
        self.shown = shown
        super().__init__(options)

    def keep(self, run: dict[str, Any]) -> None:
        """Whatever ends this program, what was measured by then has its row."""
        super().keep(run)
        self.bench.keep({key: value for key, value in run.items() if key != "said"})
        if "error" in run and "OutOfMemory" not in run["error"]:
            self.bench.has_failed = True
        if self.layers is not None:
            # Its own print goes elsewhere meanwhile.
            with contextlib.redirect_stdout(self.shown):
                self.bench.row(*self.cells(run, self.layers))

    def cells(self, run: dict[str, Any], layers: int) -> list[Any]:
        """Of a row."""
        tokens, way = run["tokens"], NAMES.get(run["way"], run["way"])
        seen = run.get("seen")
        if seen is None:
            said = OUT if "OutOfMemory" in run["error"] else first_line(run["error"], 60)
            return [tokens, way, "-", "-", "-", "-", "-", said]
        base = self.first.setdefault(tokens, seen)
        flops = longctx.flops(layers, tokens) / seen["median_step_s"]
        return [
            tokens,
            way,
            gib(seen["allocated_peak"]),
            gib(seen["reserved_peak"]),
            f"{seen['median_step_s']:.3f}",
            f"{seen['median_step_s'] / base['median_step_s']:.3f}",
            f"{100 * flops / (self.options.peak * 1e12):.1f}",
            agreement(seen, base, self.options.exact),
        ]


def made(bench: Bench, words: list[str], layers: int | None = None) -> longctx.Table:
    """A table of `longctx.py`, whose own print goes to who watches. With layers each is a row."""
    options = longctx.parse([*words, "--timeout", str(int(bench.timeout))])
    bench.say(f"  longctx.py {' '.join(words)}")
    if layers is not None:
        bench.section(COLUMNS)
    shown = sys.stdout
    # Rows as they come are for a terminal; what is printed here is Markdown.
    with contextlib.redirect_stdout(sys.stderr if sys.stderr.isatty() else Silence()):
        table = Launches(bench, options, layers, shown)
        longctx.TABLES[options.table](table, options)
    return table


class Silence:
    """Takes all that is printed."""

    def write(self, text: str) -> int:
        """Forgets it."""
        return len(text)

    def flush(self) -> None:
        """There is nothing."""


def rows(bench: Bench, words: list[str], layers: int) -> None:
    """A row for each launch."""
    made(bench, words, layers)
    bench.note(LOSSES)


def lengths(*tokens: int) -> list[str]:
    """Options."""
    return [word for length in tokens for word in ("--length", str(length))]


def only(*ways: str) -> list[str]:
    """Options."""
    return [word for way in ways for word in ("--only", way)]


FEW_STEPS = ["--steps", "9"]


def fig1a(bench: Bench) -> None:
    """What PyTorch reserves and allocates at long contexts, and what Girih does."""
    tokens = (65536,) if bench.quick else (32768, 65536, 131072)
    ways = only("plain", "recompute", "split:0")
    rows(bench, ["mfu", *lengths(*tokens), *ways, *FEW_STEPS], 4)


def table4(bench: Bench) -> None:
    """Recomputation; with Girih's memory; all swapped; what Girih does in the same memory."""
    tokens = (32768,) if bench.quick else (32768, 65536, 131072)
    ways = only("recompute", "split:0", "split:products", "both:1", "girih")
    rows(bench, ["mfu", *lengths(*tokens), *ways, *FEW_STEPS], 4)


def table5(bench: Bench) -> None:
    """Alpha in nine steps, computed again and swapped, and what a budget finds."""
    words = ["sweep", *lengths(32768)] if bench.quick else ["sweep", *lengths(65536, 131072)]
    if bench.quick:
        words += [word for alpha in ("0", "0.5", "1") for word in ("--alpha", alpha)]
    rows(bench, [*words, "--budget", "30GiB", *FEW_STEPS], 4)


def table3(bench: Bench) -> None:
    """The longest sequence by way, of some layers of a 7B model on a part of a card.

    On a whole card attention over what fits would take minutes a step.
    """
    # The budget leaves 4 GiB to what is not counted: the context, and what a step has in hand.
    layers, room, unit = (4, 24, 16384) if bench.quick else (8, 48, 8192)
    words = ["longest", "--layers", str(layers), "--steps", "6", "--budget", f"{room - 4}GiB"]
    words += ["--unit", str(unit), *(only("recompute", "split:0") if bench.quick else [])]
    with smaller_card(room, 1) as left:
        table = made(bench, words, layers)
    bench.note(f"{layers} layers, {left}, to within {unit:,} tokens.")
    bench.section(["way", "longest that ran", "shortest that did not", "allocated GiB"])
    for way in dict.fromkeys(run["way"] for run in table.runs):
        own = [run for run in table.runs if run["way"] == way]
        ran = max((run for run in own if "seen" in run), key=lambda r: r["tokens"], default=None)
        failed = min((run["tokens"] for run in own if "error" in run), default=None)
        cells = [f"{ran['tokens']:,}", gib(ran["seen"]["allocated_peak"])] if ran else ["-", "-"]
        bench.row(NAMES.get(way, way), cells[0], f"{failed:,}" if failed else "-", cells[1])


HF = ("transformers",)
TABLES = [
    Table("memo", "fig1a", "what PyTorch holds", fig1a, 6, 2, modules=HF),
    Table("memo", "table3", "the longest sequence", table3, 25, 5, HF, fills_card=True),
    Table("memo", "table4", "recomputation, swapping", table4, 10, 4, modules=HF),
    Table("memo", "table5", "nine alphas", table5, 30, 5, modules=HF),
]
