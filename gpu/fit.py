r"""The largest batch that fits, under every allocator, and what it is worth.

    python gpu/fit.py --limit 40 --from 40 --to 56 \
        gpu/workloads/hf.py gpt2 --recompute --batch {batch}
    python gpu/fit.py --gpus 2 --limit 30 --from 6 --to 24 \
        gpu/workloads/fsdp.py --recompute --batch {batch}

For each row the batch is bisected; each try is a process of its own. A batch fits if every step ran
and no request ran out of memory. Rows are native, expandable segments, and Girih: `auto`, a launch
that knows nothing, and `again`, one that follows the plan of an earlier launch at the same batch.
Where no launch of `auto` gets through at a batch, the earlier launch is one that records without a
cache (mode `profile`); `from` says which.

With `--limit GiB` another process holds the rest of each card, so that the device has only so much
free, for every row alike: large batches on a full card take long.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import datetime
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from modes import launch, shareable

ROWS = ("native", "expandable", "auto", "again")
GIB = 1 << 30
# Plans are made and pages mapped in the first four: two steps are left to be timed.
STEPS = ["--steps", "7", "--settled", "5"]
# How programs say that memory ran out, besides torch's own error.
OUT_OF_MEMORY = re.compile(r"out of ?memory|ALLOC_FAILED", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Try:
    """What came of a batch."""

    batch: int
    runs: bool
    samples_per_s: float = 0.0
    retries: int = 0
    reserved: int = 0
    device_used: int = 0
    plan_from: str = ""
    said: str = ""

    def line(self, row: str) -> str:
        """For who watches."""
        if not self.runs:
            return f"  {row:<11} batch {self.batch:>4}: does not fit  {self.said[:150]}".rstrip()
        return (
            f"  {row:<11} batch {self.batch:>4}: {self.samples_per_s:.2f} samples/s, "
            f"{self.reserved / GIB:.2f} GiB reserved, {self.retries} retries"
            + (f", plan from {self.plan_from}" if self.plan_from else "")
        )


class Fit:
    """Tries batches, each once for each row."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments = arguments
        self._folder = folder
        self._tries: dict[tuple[str, int], Try] = {}
        self.log: list[dict[str, Any]] = []

    def attempt(self, row: str, batch: int) -> Try:
        """Whether a batch fits."""
        if (row, batch) not in self._tries:
            found = self._again(batch) if row == "again" else self._run(row, batch)
            self._tries[row, batch] = found
            print(found.line(row), flush=True)
        return self._tries[row, batch]

    def largest(self, row: str, start: int | None) -> Try | None:
        """The largest batch that fits between `--from` and `--to`; None if none does."""

        def fits(batch: int) -> bool:
            return self.attempt(row, batch).runs

        batch = search(fits, self._arguments.low, self._arguments.high, start)
        return None if batch is None else self.attempt(row, batch)

    def _cache(self, batch: int) -> Path:
        """The folder of the plans of a batch."""
        folder = self._folder / str(batch)
        folder.mkdir(exist_ok=True)
        return folder

    def _again(self, batch: int) -> Try:
        """A launch that follows the plan of an earlier one at this batch."""
        cache = self._cache(batch)
        self.attempt("auto", batch)
        if any(kept_by_auto(cache)):
            return dataclasses.replace(self._run("again", batch), plan_from="auto")
        recorded = self._run("profile", batch)
        if not any(cache.glob("recorded.*.plan")):
            said = f"no earlier launch gets through: auto does not, profile: {recorded.said}"
            return Try(batch, runs=False, said=said)
        return dataclasses.replace(self._run("plan", batch), plan_from="profile")

    def _run(self, mode: str, batch: int) -> Try:
        """A launch."""
        rest = [word.replace("{batch}", str(batch)) for word in self._arguments.rest]
        given = argparse.Namespace(**vars(self._arguments) | {"rest": [*rest, *STEPS]})
        run = launch(mode, given, str(self._cache(batch)))
        said = run["stderr"]
        # What was said beside the result names paths of the machine, and is no result.
        kept = {key: run[key] for key in run if key != "stderr"}
        self.log.append({"batch": batch, **kept})
        if "error" in run:
            if not OUT_OF_MEMORY.search(run["error"] + said):
                # Else a mistake in the command line would pass for a full card.
                raise SystemExit(f"{mode}, batch {batch}, failed otherwise: {run['error'][-1500:]}")
            return Try(batch, runs=False, said=run["error"].splitlines()[0])
        ranks = list(run["ranks"].values())
        if any(rank["ooms"] for rank in ranks):
            return Try(batch, runs=False, said="a request ran out of memory, and was caught")
        # The slowest rank; of its two last steps the faster, for in the first a plan may be made.
        slowest = max(min(rank["step_s"][-2:]) for rank in ranks)
        return Try(
            batch,
            runs=True,
            samples_per_s=ranks[0]["samples"] / slowest,
            retries=sum(rank["retries"] for rank in ranks),
            reserved=max(rank["reserved_peak"] for rank in ranks),
            device_used=max(rank["device_used"] for rank in ranks),
        )


def search(fits: Callable[[int], bool], low: int, high: int, start: int | None) -> int | None:
    """The largest number from `low` to `high` that fits, if all below one that fits do.

    With `start`, where it may well be, it is looked for above that first, in growing steps.
    """
    good, bad = low - 1, high + 1
    if start is not None:
        good, stride = start, max(1, start // 12)
        while good + stride < bad:
            if fits(good + stride):
                good, stride = good + stride, 2 * stride
            else:
                bad = good + stride
    good = bisect(fits, good, bad)
    if start is not None and good == start and not fits(start):
        good = bisect(fits, low - 1, start)
    return good if good >= low else None


def bisect(fits: Callable[[int], bool], good: int, bad: int) -> int:
    """The largest number from `good` on that fits, below `bad`."""
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good


def kept_by_auto(cache: Path) -> Iterator[Path]:
    """The plans that `auto` has kept."""
    return (path for path in cache.glob("*.plan") if not path.name.startswith("recorded."))


# ---- the rest of the card ----


def hold(gibibytes: float, gpus: int) -> None:
    """Takes all of each card but so much, says so, and keeps it until its input is closed."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        code = getattr(driver, name)(*arguments)
        if code != 0:
            raise SystemExit(f"{name} returned {code}")

    call("cuInit", 0)
    left = []
    for ordinal in range(gpus):
        device, context = ctypes.c_int(), ctypes.c_void_p()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        call("cuDeviceGet", ctypes.byref(device), ordinal)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call("cuCtxSetCurrent", context)
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        size = free.value - int(gibibytes * GIB)
        if size <= 0:
            raise SystemExit(f"GPU {ordinal} has {free.value / GIB:.1f} GiB free, no more to hold")
        address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        left.append(f"{free.value / GIB:.2f}")
    print(f"free on each card: {', '.join(left)} GiB", flush=True)
    sys.stdin.read()


@contextlib.contextmanager
def smaller_card(gibibytes: float | None, gpus: int) -> Iterator[str]:
    """Has another process hold the rest of each card. Gives what is left, in words."""
    if gibibytes is None:
        yield "whole cards"
        return
    command = [sys.executable, __file__, "--hold", str(gibibytes), "--gpus", str(gpus), "-"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        said = holder.stdout.readline().strip()
        if not said:
            raise SystemExit("the rest of the card cannot be held; see above")
        try:
            yield said
        finally:
            holder.stdin.close()


# ---- the table ----


def table(found: dict[str, Try | None]) -> list[str]:
    """A line for each row."""
    native = found.get("native")
    lines = [
        f"{'allocator':<12}{'largest':>8}{'samples/s':>11}{'/native':>9}"
        f"{'resv GiB':>10}{'device GiB':>12}{'retries':>9}  plan from"
    ]
    for row, best in found.items():
        if best is None:
            lines.append(f"{row:<12}{'none':>8}")
            continue
        ratio = f"{best.samples_per_s / native.samples_per_s:.4f}" if native else ""
        lines.append(
            f"{row:<12}{best.batch:>8}{best.samples_per_s:>11.3f}{ratio:>9}"
            f"{best.reserved / GIB:>10.2f}{best.device_used / GIB:>12.2f}{best.retries:>9}"
            f"  {best.plan_from}".rstrip()
        )
    return lines


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--from", dest="low", type=int, default=1, help="the smallest batch")
    parser.add_argument("--to", dest="high", type=int, default=64, help="the largest")
    parser.add_argument("--limit", type=float, help="GiB that each card is to have free")
    parser.add_argument("--only", default=",".join(ROWS), help=f"of {','.join(ROWS)}")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--torchrun", action="store_true", help="also for one GPU")
    parser.add_argument("--timeout", type=float, default=200, help="seconds of one try")
    parser.add_argument("--hold", type=float, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("workload")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.hold is None and "{batch}" not in " ".join(arguments.rest):
        parser.error("the workload's arguments say nowhere {batch}")
    if unknown := [row for row in arguments.only.split(",") if row not in ROWS]:
        parser.error(f"no row is called {', '.join(unknown)}; there are {', '.join(ROWS)}")
    return arguments


def main() -> int:
    """Does what the command line says."""
    arguments = parse()
    if arguments.hold is not None:
        hold(arguments.hold, arguments.gpus)
        return 0
    found: dict[str, Try | None] = {}
    with (
        tempfile.TemporaryDirectory(prefix="girih-fit-") as folder,
        smaller_card(arguments.limit, arguments.gpus) as left,
    ):
        print(f"{arguments.workload} {' '.join(arguments.rest)}  ({datetime.date.today()})")
        print(left, flush=True)
        fit = Fit(arguments, Path(folder))
        start: int | None = None
        for row in arguments.only.split(","):
            found[row] = best = fit.largest(row, start)
            # What fits under one fits, or nearly, under the next.
            start = best.batch if best else start
        print("\n".join(table(found)), flush=True)
    if arguments.output:
        summary = {
            "workload": [arguments.workload, *arguments.rest],
            "left": left,
            "largest": {row: best and dataclasses.asdict(best) for row, best in found.items()},
            "runs": fit.log,
        }
        arguments.output.write_text(json.dumps(shareable(summary), indent=1) + "\n")
    return int(any(best is None for best in found.values()))


if __name__ == "__main__":
    sys.exit(main())
