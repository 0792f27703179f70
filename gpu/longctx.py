"""Long contexts: one table for each question, one command for each table.

    python gpu/longctx.py mfu                  # 4 layers of a 7B Llama at 32K, 64K, 128K tokens
    python gpu/longctx.py sweep --length 65536 # alpha in nine steps, and what is found
    python gpu/longctx.py longest --layers 32  # the longest sequence of each way
    python gpu/longctx.py loss                 # the loss of all tokens, in tiles, fused, and not
    python gpu/longctx.py parallel             # Ulysses and a ring over all cards of this machine

Each row is a launch of `workloads/longer.py` on the first card, as in `gpu/swap.py`, which says
what the ways are. `mfu`: girih's budget is what recomputation allocates at most, measured just
before; flops are those of the model (6 for each weight and token, 6 n h s^2 of causal attention),
by the peak of the card that `--peak` gives. Losses: the largest difference from those of the first
row, as a part; with `--exact`, whether they and the gradients of the first step are the same to the
bit. `longest` doubles the tokens until a way runs out of memory, then halves the step between the
last two.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from modes import MIB, printed, ran
from swap import agreement, launch

HIDDEN, FFN, VOCABULARY = 4096, 11008, 32000
MFU_WAYS = (
    *("plain", "recompute", "save_on_cpu", "streams", "split:0", "split:products"),
    *("girih", "both:0", "both:products", "fill"),
)
ALPHAS = ("0", "0.125", "0.25", "0.375", "0.5", "0.625", "0.75", "0.875", "1")
LONGEST_WAYS = ("plain", "recompute", "split:0", "girih", "both:0")
PARALLEL = str(Path(__file__).with_name("workloads") / "parallel.py")
SETTLING_STEPS = 24
"""That plans of swapping are tried in, about."""
TRIED_STEPS = 60
"""The same, and the ways of `fill`."""
UNIT = 4096
"""Tokens: lengths are found to within so many, if nothing else is said."""


def shape(options: argparse.Namespace, length: int) -> list[str]:
    """The workload's options."""
    steps = ["--steps", str(options.steps), "--settled", str(options.steps - 4)]
    more = ["--exact"] if options.exact else []
    return ["--layers", str(options.layers), "--batch", "1", "--length", str(length), *steps, *more]


def flops(layers: int, tokens: int) -> float:
    """Of a step of the model, nothing that is computed again among them."""
    weights = layers * (4 * HIDDEN**2 + 3 * HIDDEN * FFN)
    return 6.0 * weights * tokens + 6.0 * layers * HIDDEN * tokens**2


class Table:
    """Rows that are printed as they come, and kept."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.runs: list[dict[str, Any]] = []
        print(
            f"{'tokens':>8} {'way':<16} {'alloc MiB':>10} {'resv MiB':>10} {'step s':>8}"
            f" {'ratio':>7} {'MFU':>6} {'losses':>8}"
        )

    def run(
        self, way: str, length: int, budget: str, base: dict[str, Any] | None, more: list[str]
    ) -> dict[str, Any] | None:
        """One launch. What it saw; None if it failed."""
        options = self.options
        words = [*shape(options, length), *more]
        if way in {"fill", "girih"} or way.startswith("both"):
            # Where Girih swaps, the first steps make plans, and those after them try ways.
            more_steps = options.steps + (TRIED_STEPS if way == "fill" else SETTLING_STEPS)
            words += ["--steps", str(more_steps), "--settled", str(more_steps - 8)]
        run = launch(way, budget, options.host_budget, words, options.timeout)
        self.runs.append({"tokens": length, "budget": budget} | run)
        seen = run.get("seen")
        if seen is None:
            print(f"{length:>8} {way:<16} FAILED {run['error'][:90]}", flush=True)
            return None
        ratio = f"{seen['median_step_s'] / base['median_step_s']:.3f}" if base else ""
        mfu = flops(options.layers, length) / seen["median_step_s"] / (options.peak * 1e12)
        same = "" if base is None else agreement(seen, base, options.exact)
        print(
            f"{length:>8} {way:<16} {seen['allocated_peak'] / MIB:>10.0f}"
            f" {seen['reserved_peak'] / MIB:>10.0f} {seen['median_step_s']:>8.3f} {ratio:>7}"
            f" {mfu:>6.3f} {same:>8}",
            flush=True,
        )
        return seen


def mfu(table: Table, options: argparse.Namespace) -> None:
    """Every way at three lengths; Girih in what recomputation allocates."""
    for length in options.length or (32768, 65536, 131072):
        # That of the command line serves where recomputation is not among the ways.
        base, budget = None, options.budget
        for way in options.only or MFU_WAYS:
            seen = table.run(way, length, budget, base, [])
            base = base or seen
            if way == "recompute" and seen:
                budget = f"{seen['allocated_peak']}B"


def sweep(table: Table, options: argparse.Namespace) -> None:
    """Alpha in nine steps, products, and what a budget finds."""
    for length in options.length or (65536,):
        base = table.run("plain", length, "0", None, [])
        alphas = options.alpha or ALPHAS
        for alpha in (*alphas, "products"):
            table.run(f"split:{alpha}", length, "0", base, [])
        for alpha in alphas:
            table.run(f"both:{alpha}", length, options.budget, base, [])
        table.run("fill", length, options.budget, base, [])


def longest(table: Table, options: argparse.Namespace) -> None:
    """The longest sequence of each way."""
    for way in options.only or LONGEST_WAYS:
        fits, beyond, tokens = 0, 0, (options.length or [32768])[0]
        while beyond == 0 or beyond - fits > options.unit:
            if table.run(way, tokens, options.budget, None, []):
                fits = tokens
            else:
                beyond = tokens
            middle = (fits + beyond) // 2 // options.unit * options.unit
            tokens = 2 * fits if beyond == 0 else middle
            if tokens <= fits:
                break
        print(f"{way}: {fits} tokens", flush=True)


def loss(table: Table, options: argparse.Namespace) -> None:
    """Hugging Face's loss over all tokens: as it is, recomputed, in tiles; without logits."""
    for length in options.length or (32768, 65536):
        base = None
        for way in ("plain", "recompute", "split:0", "split:products"):
            base = table.run(way, length, "0", base, ["--whole-loss"]) or base
        for way in ("plain", "split:0"):
            table.run(way, length, "0", base, ["--fused-loss"])


def parallel(table: Table, options: argparse.Namespace) -> None:
    """Sequences that all cards of this machine share: `workloads/parallel.py`, by `torchrun`."""
    import torch

    cards = torch.cuda.device_count()
    if cards < 2:
        print(f"run parallel on a machine with 2 GPUs or more: here are {cards}")
        return
    for kind in options.only or ("ulysses", "ring"):
        for length in options.length or (65536, 131072):
            base: dict[str, Any] = {}
            for alpha in options.alpha or ("", "0", "products", "0.5"):
                way = f"{kind}:{alpha}" if alpha else kind
                words = ["--kind", kind, *(["--alpha", alpha] if alpha else [])]
                words += [it for it in shape(options, length) if it not in ("--batch", "1")]
                start = ["-m", "torch.distributed.run", f"--nproc-per-node={cards}"]
                done = ran([*start, PARALLEL, *words], options.timeout, "RESULT")
                if isinstance(done, str):
                    table.runs.append({"tokens": length, "way": way, "error": done})
                    print(f"{length:>8} {way:<16} FAILED {done[:90]}", flush=True)
                    continue
                sums = json.JSONDecoder().raw_decode(done.stdout.split("SEEN ")[1])[0]
                seen = printed(done.stdout)[0] | sums
                base = base or seen
                table.runs.append({"tokens": length, "way": way, "gpus": cards, "seen": seen})
                same = "same" if seen["sums"] == base["sums"] else "differ"
                print(
                    f"{length:>8} {way:<16} {seen['allocated_peak'] / MIB:>10.0f}"
                    f" {seen['reserved_peak'] / MIB:>10.0f} {seen['median_step_s']:>8.3f}"
                    f" {seen['median_step_s'] / base['median_step_s']:>7.3f} {'':>6} {same:>7}",
                    flush=True,
                )


TABLES = {"mfu": mfu, "sweep": sweep, "longest": longest, "loss": loss, "parallel": parallel}


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--length", type=int, action="append", help="tokens; may be repeated")
    parser.add_argument("--alpha", action="append", help="of `sweep`, in place of nine; repeated")
    parser.add_argument("--only", action="append", help="of `mfu`, `longest`: this way; repeated")
    parser.add_argument("--unit", type=int, default=UNIT, help="tokens: `longest` to within these")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--budget", default="40GiB", help="of Girih, where none is measured")
    parser.add_argument("--host-budget", default="")
    parser.add_argument("--peak", type=float, default=989.0, help="TFLOP/s of the card, bf16 dense")
    parser.add_argument("--exact", action="store_true", help="deterministic kernels")
    parser.add_argument("--timeout", type=int, default=500, help="seconds, of one launch")
    parser.add_argument("-o", "--output", type=Path)
    return parser.parse_args(words)


def main() -> int:
    """Makes the table that is asked for. 1 if a launch failed, but for want of memory."""
    options = parse()
    table = Table(options)
    TABLES[options.table](table, options)
    if options.output:
        options.output.write_text(json.dumps(table.runs, indent=1))
    errors = [run["error"] for run in table.runs if "error" in run]
    return 1 if any("OutOfMemory" not in error for error in errors) else 0


if __name__ == "__main__":
    raise SystemExit(main())
