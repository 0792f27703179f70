"""Long contexts: one table for each question, one command for each table.

    python gpu/longctx.py mfu                  # 4 layers of a 7B Llama at 32K, 64K, 128K tokens
    python gpu/longctx.py sweep --length 65536 # alpha in nine steps, and what is found
    python gpu/longctx.py longest --layers 32  # the longest sequence of each way
    python gpu/longctx.py loss                 # the loss of all tokens, in tiles, fused, and not
    python gpu/longctx.py predict              # what `girih alpha` says of a recording, and what is
    python gpu/longctx.py parallel             # Ulysses, rings, PyTorch's own: over all cards

Each row is a launch of `workloads/longer.py` on the first card, as in `gpu/swap.py`, which says
what the ways are. `mfu`: girih's budget is what recomputation allocates at most, measured just
before; flops are those of the model (6 for each weight and token, 6 n h s^2 of causal attention),
by the peak of the card that `--peak` gives. Losses: the largest difference from those of the first
row, as a part; with `--exact`, whether they and the gradients of the first step are the same to the
bit. `longest` doubles the tokens until a way runs out of memory, then halves the step between the
last two; of several lengths it tries those. The optimizer's states are there from the beginning, so
that `--steps 1 --settling 0` is enough to see whether a length fits. `predict`: few layers are
recorded, each kernel waited for so that passes have their own times, and run once more as they are;
`girih alpha` says of all layers what a step takes and the most that is allocated.

With `--minutes` nothing is begun that would end later, and what was left out is said. What was
measured is written to the output after every launch. `--device cpu --tiny` tries every table on a
model of no size: nothing is swapped there, no bytes are counted, and `predict` has the recording of
another model.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from modes import MIB, in_a_line, printed, ran, shareable
from swap import WORKLOAD, agreement, launch

HIDDEN, FFN, VOCABULARY = 4096, 11008, 32000
MFU_WAYS = (
    *("plain", "recompute", "save_on_cpu", "streams", "split:0", "split:products"),
    *("girih", "both:0", "both:products", "fill", "tiles:0"),
)
ALPHAS = ("0", "0.125", "0.25", "0.375", "0.5", "0.625", "0.75", "0.875", "1")
LONGEST_WAYS = (
    *("plain", "recompute", "split:0", "tiles:0"),
    *("girih", "both:0", "both_tiles:0", "girih:recompute"),
)
PREDICTED = {"plain": "plain", "recompute": "recompute"}
"""Ways whose step and peak are foretold, and the methods of `girih alpha` that are these."""
STEP_WITHIN, PEAK_WITHIN = 0.05, 0.01
"""How far a prediction may be off, as a part of what was measured."""
RECORDING = Path(__file__).resolve().parents[1] / "corpus" / "llama2b_vary.girih"
"""Of another model, where there is no GPU to record on: to try it, and nothing is held to it."""
KINDS = ("ulysses", "ring", "context", "context-ring")
"""Of `workloads/parallel.py`."""
PARALLEL = str(Path(__file__).with_name("workloads") / "parallel.py")
SETTLING_STEPS = 24
"""That plans of swapping are tried in, about."""
TRIED_STEPS = 60
"""The same, and the ways of `fill`."""
WARM = 8192
"""Tokens of a pass before all others, in which layers that are split are looked at."""
UNIT = 4096
"""Tokens: lengths are found to within so many, if nothing else is said."""
LEAST_S = 20
"""Seconds: what has less left is not begun, for to start takes as long."""
ALPHA_HELP = "of `sweep`, in place of nine, and of `parallel`, where `recompute` is one; repeated"
TINY_LENGTHS, TINY_MOST = [192, 256], 1024


def shape(options: argparse.Namespace, length: int) -> list[str]:
    """The options of one card's workload."""
    return ["--batch", "1", *shared_shape(options, length)]


def shared_shape(options: argparse.Namespace, length: int) -> list[str]:
    """Those of both workloads."""
    settled = min(max(1, options.steps - 4), options.steps - 1)
    return [
        *("--layers", str(options.layers), "--length", str(length)),
        *("--steps", str(options.steps), "--settled", str(settled)),
        *(["--exact"] if options.exact else []),
        *on_cpu(options),
    ]


def on_cpu(options: argparse.Namespace) -> list[str]:
    """Where it is only tried."""
    tiny = ["--tiny"] if options.tiny else []
    return [*(["--device", "cpu"] if options.device == "cpu" else []), *tiny]


def flops(layers: int, tokens: int) -> float:
    """Of a step of the model, nothing that is computed again among them."""
    weights = layers * (4 * HIDDEN**2 + 3 * HIDDEN * FFN)
    return 6.0 * weights * tokens + 6.0 * layers * HIDDEN * tokens**2


class Table:
    """Rows that are printed as they come, and kept."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.runs: list[dict[str, Any]] = []
        self.has_missed = False
        """A prediction was further off than it may be."""
        self.end = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
        print(
            f"{'tokens':>8} {'way':<16} {'alloc MiB':>10} {'resv MiB':>10} {'step s':>8}"
            f" {'ratio':>7} {'MFU':>6} {'losses':>8}"
        )

    def timeout(self, tokens: int, way: str) -> int | None:
        """Seconds that a launch has; None, and said so, if that is too little."""
        left = self.end - time.monotonic()
        if left >= LEAST_S:
            return int(min(self.options.timeout, left))
        self.keep({"tokens": tokens, "way": way, "left_out": True})
        print(f"{tokens:>8} {way:<16} LEFT OUT: no time is left", flush=True)
        return None

    def keep(self, run: dict[str, Any]) -> None:
        """Whatever ends this program, what was measured by then is in the file."""
        self.runs.append(run)
        if self.options.output:
            kept = json.dumps(shareable(self.runs), indent=1) + "\n"
            self.options.output.write_text(kept)

    def run(
        self, way: str, length: int, budget: str, base: dict[str, Any] | None, more: list[str]
    ) -> dict[str, Any] | None:
        """One launch. What it saw; None if it failed, or there is no time for it."""
        options = self.options
        words = [*shape(options, length), *more]
        timeout = self.timeout(length, way)
        if timeout is None:
            return None
        is_swapped = way == "fill" or way.startswith(("girih", "both"))
        if is_swapped and options.device == "cuda":
            # Where Girih swaps, the first steps make plans, and those after them try ways.
            settling = options.settling
            if settling is None:
                settling = TRIED_STEPS if way == "fill" else SETTLING_STEPS
            if settling:
                more_steps = options.steps + settling
                words += ["--steps", str(more_steps), "--settled", str(max(1, more_steps - 8))]
        run = launch(way, budget, options.host_budget, words, timeout)
        self.keep({"tokens": length, "budget": budget} | run)
        seen = run.get("seen")
        if seen is None:
            print(f"{length:>8} {way:<16} FAILED {in_a_line(run['error'])}", flush=True)
            return None
        self.row(length, way, seen, base)
        found: dict[str, Any] = seen
        return found

    def row(self, tokens: int, way: str, seen: dict[str, Any], base: dict[str, Any] | None) -> None:
        """Prints what a launch saw."""
        ratio = f"{seen['median_step_s'] / base['median_step_s']:.3f}" if base else ""
        mfu = flops(self.options.layers, tokens) / seen["median_step_s"]
        mfu /= self.options.peak * 1e12
        same = "" if base is None else agreement(seen, base, self.options.exact)
        print(
            f"{tokens:>8} {way:<16} {seen['allocated_peak'] / MIB:>10.0f}"
            f" {seen['reserved_peak'] / MIB:>10.0f} {seen['median_step_s']:>8.3f} {ratio:>7}"
            f" {mfu:>6.3f} {same:>8}",
            flush=True,
        )


def ways(options: argparse.Namespace, default: tuple[str, ...]) -> tuple[str, ...]:
    """Those that are asked for; without a GPU none that needs streams."""
    chosen = tuple(options.only or default)
    return tuple(it for it in chosen if options.device == "cuda" or it != "streams")


def mfu(table: Table, options: argparse.Namespace) -> None:
    """Every way at three lengths; Girih in what recomputation allocates."""
    for length in options.length or (32768, 65536, 131072):
        # That of the command line serves where recomputation is not among the ways.
        base, budget = None, options.budget
        for way in ways(options, MFU_WAYS):
            seen = table.run(way, length, budget, base, [])
            base = base or seen
            if way == "recompute" and seen:
                budget = f"{seen['allocated_peak']}B"


def sweep(table: Table, options: argparse.Namespace) -> None:
    """Alpha in nine steps, products, and what a budget finds."""
    for length in options.length or (65536,):
        base = None
        if not options.no_plain:
            base = table.run("plain", length, "0", None, [])
        alphas = options.alpha or ALPHAS
        kinds = options.only or ("split", "both", "fill")
        if "split" in kinds:
            for alpha in (*alphas, "products"):
                seen = table.run(f"split:{alpha}", length, "0", base, [])
                base = base or seen
        if "both" in kinds:
            for alpha in alphas:
                seen = table.run(f"both:{alpha}", length, options.budget, base, [])
                base = base or seen
        if "fill" in kinds:
            table.run("fill", length, options.budget, base, [])


def warm(tokens: int) -> list[str]:
    """A short pass before all others, which makes the optimizer's states, so that one step has all
    of a run's peak; and layers that are split are looked at in it."""
    return ["--warm", str(min(WARM, tokens // 2)), "--ready"]


def is_out_of_memory(error: str) -> bool:
    """Whether a launch ended for want of memory, and not of time or by a defect."""
    return "OutOfMemory" in error


def longest(table: Table, options: argparse.Namespace) -> None:
    """The longest sequence of each way."""
    given = options.length or [32768]
    for way in ways(options, LONGEST_WAYS):
        fits, beyond, tokens = 0, 0, given[0]
        while beyond == 0 or beyond - fits > options.unit:
            if table.run(way, tokens, options.budget, None, warm(tokens)):
                fits = tokens
            elif not is_out_of_memory(table.runs[-1].get("error", "")):
                print(f"{way}: {tokens} tokens have not shown whether they fit", flush=True)
                break
            else:
                beyond = tokens
            if len(given) > 1:
                longer = [it for it in given if it > tokens]
                if beyond or not longer:
                    break
                tokens = longer[0]
                continue
            middle = (fits + beyond) // 2 // options.unit * options.unit
            tokens = 2 * fits if beyond == 0 else middle
            if tokens <= fits or (options.most and tokens > options.most):
                break
        print(f"{way}: {fits} tokens, {beyond or 'none'} did not fit", flush=True)


def loss(table: Table, options: argparse.Namespace) -> None:
    """Hugging Face's loss over all tokens: as it is, recomputed, in tiles; without logits."""
    for length in options.length or (32768, 65536):
        base = None
        for way in ("plain", "recompute", "split:0", "split:products"):
            seen = table.run(way, length, "0", base, ["--whole-loss"])
            base = base or seen
        for way in ("plain", "split:0"):
            table.run(way, length, "0", base, ["--fused-loss"])


def recorded(
    table: Table, options: argparse.Namespace, length: int, path: Path
) -> tuple[float, str | None]:
    """Records some steps of a few layers. The seconds that one takes by itself, and the error if it
    failed."""
    timeout = table.timeout(length, "recording")
    if timeout is None:
        return 0.0, "no time is left"
    few = argparse.Namespace(**(vars(options) | {"layers": options.recorded_layers, "steps": 5}))
    trace = ["-m", "girih", "run", "--mode", "native", "--modules", "--trace", str(path)]
    # The events' clock is the host's: it is the device's too if each kernel is waited for.
    environ = os.environ | {"CUDA_LAUNCH_BLOCKING": "1"}
    done = ran([*trace, WORKLOAD, *shape(few, length)], timeout, "RESULT", environ)
    # To be waited for takes each kernel some time more.
    alone = (
        done if isinstance(done, str) else ran([WORKLOAD, *shape(few, length)], timeout, "RESULT")
    )
    if isinstance(alone, str):
        return 0.0, alone
    return float(printed(alone.stdout)[0]["median_step_s"]), None


def foretold(
    options: argparse.Namespace,
    method: str,
    length: int,
    path: Path,
    *,
    recorded_tokens: int,
    step_s: float,
) -> dict[str, Any]:
    """What `girih alpha` says of all layers; a recorded step takes so long, or what its events
    say."""
    command = [
        *(sys.executable, "-m", "girih", "alpha", str(path), "--json", "-q"),
        *("--gpu-budget", "1000GiB", "--method", method, "--layers", str(options.layers)),
        *("--tokens", str(length), "--recorded-tokens", str(recorded_tokens)),
        *(["--step-time", f"{step_s * 1e3:.3f}ms"] if step_s else []),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"girih alpha failed: {done.stderr.strip()[-500:]}")
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def predict(table: Table, options: argparse.Namespace) -> None:
    """Step and peak as `girih alpha` foretells them from a recording of few layers."""
    for length in options.length or (32768,):
        with tempfile.TemporaryDirectory() as folder:
            recording = options.recording or (RECORDING if options.device == "cpu" else None)
            path = Path(recording or Path(folder) / "few.girih")
            step_s, error = (0.0, None) if recording else recorded(table, options, length, path)
            if error is not None:
                table.keep({"tokens": length, "way": "recording", "error": error})
                print(f"{length:>8} recording FAILED {error[:200]}", flush=True)
                continue
            for way, method in PREDICTED.items():
                if options.only and way not in options.only:
                    continue
                tokens = options.recorded_tokens or length
                said = foretold(
                    options, method, length, path, recorded_tokens=tokens, step_s=step_s
                )
                print(f"{length:>8} {way:<16} {prediction(said)} are foretold", flush=True)
                seen = table.run(way, length, "0", None, [])
                if seen is None:
                    continue
                step = said["step_us"] / 1e6 / seen["median_step_s"] - 1
                peak = said["gpu_peak"] / max(1, seen["allocated_peak"]) - 1
                table.keep({"tokens": length, "way": way, "foretold": said, "off": [step, peak]})
                is_right = abs(step) <= STEP_WITHIN and abs(peak) <= PEAK_WITHIN
                table.has_missed |= not is_right and options.device == "cuda"
                print(
                    f"{length:>8} {way:<16} step {100 * step:+.1f} %, peak {100 * peak:+.1f} %"
                    f" off: {'within' if is_right else 'BEYOND'} {100 * STEP_WITHIN:.0f} and"
                    f" {100 * PEAK_WITHIN:.0f} %",
                    flush=True,
                )


def prediction(said: dict[str, Any]) -> str:
    """What `girih alpha` says, as a cell."""
    return f"{said['step_us'] / 1e6:.3f} s and {said['gpu_peak'] / MIB:.0f} MiB"


def parallel(table: Table, options: argparse.Namespace) -> None:
    """Sequences that all cards of this machine share: `workloads/parallel.py`, by `torchrun`."""
    import torch

    cards = 2 if options.device == "cpu" else torch.cuda.device_count()
    if cards < 2:
        print(f"run parallel on a machine with 2 GPUs or more: here are {cards}")
        return
    for kind in options.only or KINDS:
        for length in options.length or (65536, 131072):
            base: dict[str, Any] = {}
            for alpha in options.alpha or ("", "recompute", "0", "products", "0.5"):
                way = f"{kind}:{alpha}" if alpha else kind
                own = ["--recompute"] if alpha == "recompute" else ["--alpha", alpha]
                words = ["--kind", kind, *(own if alpha else [])]
                words += shared_shape(options, length)
                start = ["-m", "torch.distributed.run", f"--nproc-per-node={cards}"]
                timeout = table.timeout(length, way)
                if timeout is None:
                    continue
                done = ran([*start, PARALLEL, *words], timeout, "RESULT")
                if isinstance(done, str):
                    table.keep({"tokens": length, "way": way, "error": done})
                    print(f"{length:>8} {way:<16} FAILED {in_a_line(done)}", flush=True)
                    continue
                sums = json.JSONDecoder().raw_decode(done.stdout.split("SEEN ")[1])[0]
                seen = printed(done.stdout)[0] | sums
                base = base or seen
                table.keep({"tokens": length, "way": way, "gpus": cards, "seen": seen})
                same = "same" if seen["sums"] == base["sums"] else "differ"
                # Each card computes its part.
                mfu = flops(options.layers, length) / cards / seen["median_step_s"]
                print(
                    f"{length:>8} {way:<16} {seen['allocated_peak'] / MIB:>10.0f}"
                    f" {seen['reserved_peak'] / MIB:>10.0f} {seen['median_step_s']:>8.3f}"
                    f" {seen['median_step_s'] / base['median_step_s']:>7.3f}"
                    f" {mfu / (options.peak * 1e12):>6.3f} {same:>8}",
                    flush=True,
                )


TABLES = {
    "mfu": mfu,
    "sweep": sweep,
    "longest": longest,
    "loss": loss,
    "predict": predict,
    "parallel": parallel,
}


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--length", type=int, action="append", help="tokens; may be repeated")
    parser.add_argument("--alpha", action="append", help=ALPHA_HELP)
    parser.add_argument(
        "--only",
        action="append",
        help="this way, of `sweep` split, both or fill, of `parallel` a kind; repeated",
    )
    parser.add_argument("--no-plain", action="store_true", help="of `sweep`: it would not fit")
    parser.add_argument("--unit", type=int, default=UNIT, help="tokens: `longest` to within these")
    parser.add_argument("--most", type=int, default=0, help="tokens: `longest` tries no more")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument(
        "--recorded-layers", type=int, default=3, help="of `predict`: in the recording, at least 2"
    )
    parser.add_argument("--recording", help="of `predict`: one that is there")
    parser.add_argument(
        "--recorded-tokens", type=int, help="of `--recording`, where it has not --length of them"
    )
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--settling", type=int, help="steps more where Girih swaps: 24, `fill` 60")
    parser.add_argument("--budget", default="40GiB", help="of Girih, where none is measured")
    parser.add_argument("--host-budget", default="")
    parser.add_argument("--peak", type=float, default=989.0, help="TFLOP/s of the card, bf16 dense")
    parser.add_argument("--exact", action="store_true", help="deterministic kernels")
    parser.add_argument("--timeout", type=int, default=500, help="seconds, of one launch")
    parser.add_argument("--minutes", type=float, default=0, help="of all of it; 0: no limit")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="to try it: a model of no size")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args(words)
    known = {"predict": tuple(PREDICTED), "parallel": KINDS}.get(options.table)
    for way in options.only or () if known else ():
        if way not in known:
            parser.error(f"--only of {options.table} is one of {', '.join(known)}: not {way}")
    steps = 1 if options.table == "longest" else 2
    for name, least in (("layers", 1), ("steps", steps), ("recorded_layers", 2)):
        if getattr(options, name) < least:
            parser.error(f"give --{name.replace('_', '-')} {least} or more")
    if options.recorded_tokens is not None and options.recording is None:
        parser.error("--recorded-tokens is of --recording: what is recorded here has --length")
    if options.tiny:
        options.length = options.length or list(TINY_LENGTHS)
        options.most = options.most or TINY_MOST
    return options


def main() -> int:
    """Makes the table that is asked for. 1 if a launch failed, but for want of memory."""
    options = parse()
    table = Table(options)
    TABLES[options.table](table, options)
    errors = [run["error"] for run in table.runs if "error" in run]
    return int(table.has_missed or not all(map(is_out_of_memory, errors)))


if __name__ == "__main__":
    raise SystemExit(main())
