"""What a figure or table of a paper is made with: launches, recordings, rows, a file.

A table is a function that takes a `Bench`. It launches workloads under allocators on the card
(`measured`), or records a workload once and replays the recording under every allocator there is,
the published ones too (`replayed`): the policy code is the same, and bytes come out as on the card.
Every row is printed as Markdown as soon as it is there, and the file is written anew with it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import ctypes
import dataclasses
import datetime
import importlib.util
import json
import os
import platform
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import modes
from fit import OUT_OF_MEMORY
from modes import shareable, step_ratio
from readme import machine

GPU = Path(__file__).resolve().parents[1]
ROOT = GPU.parent
RESULTS = ROOT / "bench" / "results" / "seeds"
GIB = 1 << 30
OUT = "out of memory"
LOSSES = (
    "Losses: the largest difference from the first row's, as a part of it. Kernels are as people"
    " run them, and their sums differ from launch to launch; to the bit: --exact of the workload."
)

ALLOCATORS = ("native", "expandable", "gmlake", "auto", "again")
REPLAYED = (
    *("native", "expandable", "gmlake", "gmlake-128", "gmlake-code", "stweaver"),
    *("stitch", "planned", "auto", "again"),
)
# `auto` plans after four steps, for the launch that comes next: three are left to be timed.
STEPS = ["--steps", "9", "--settled", "6"]
# `auto` plans after four steps, and is replayed on the same.
RECORDED_STEPS = ["--steps", "7", "--settled", "5"]


@dataclasses.dataclass(frozen=True)
class Table:
    """A figure or table of a paper, and what it needs here."""

    seed: str
    name: str
    what: str
    make: Callable[[Bench], None]
    minutes: float
    """On one H200, reckoned from the step times of bench/results/gpu.md, 20 seconds a launch."""
    quick: float
    """With `--quick`."""
    modules: tuple[str, ...] = ()
    """Python modules."""
    tools: tuple[str, ...] = ()
    """Programs."""
    gpus: int = 1
    parts: tuple[str, ...] = ("times",)
    """Of `bytes`, which are recorded and replayed, and `times`, which want a card to themselves."""
    fills_card: bool = False
    """True if it takes a part of the card away from all that run on it."""
    times_driver: bool = False
    """True if calls of the driver are what it times: beside other programs of the host they
    were seen to take two to twenty times as long."""

    @property
    def title(self) -> str:
        """As on the command line."""
        return f"{self.seed} {self.name}"

    def missing(self, cards: int) -> str | None:
        """Why it cannot be run on a machine with so many GPUs, beginning with what to do."""
        if cards < self.gpus:
            has = "no GPU" if cards == 0 else f"{cards} GPU" + ("s" if cards > 1 else "")
            return f"run on a machine with {self.gpus} NVIDIA GPU: there is {has} here"
        for module in self.modules:
            if not has_module(module):
                return f"install {module.replace('.', '-')}: {self.name} runs programs of it"
        for tool in self.tools:
            if shutil.which(tool) is None:
                return f"install {tool}: {self.name} needs it"
        return None


def has_module(name: str) -> bool:
    """Whether it can be imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def cards() -> int:
    """GPUs that this process may use."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def card_names() -> list[str]:
    """Of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(card) for card in range(cards())]


class Cards:
    """The GPUs of this process, each with places for so many that use it at once."""

    def __init__(self, places: int) -> None:
        names = card_names()
        self.count = len(names)
        self.places = places * len(names)
        self._free: queue.SimpleQueue[str] = queue.SimpleQueue()
        # In turns, so that each card has one before any has two.
        for name in names * places:
            self._free.put(name)

    @contextlib.contextmanager
    def one(self) -> Iterator[tuple[str, dict[str, str]]]:
        """A place on a card, once one is free: its name, and the environment of what runs there."""
        name = self._free.get()
        try:
            yield name, os.environ | {"CUDA_VISIBLE_DEVICES": name}
        finally:
            self._free.put(name)


def commit() -> str:
    """Of the working tree; nothing where it is none."""
    said = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.strip()


def gib(size: float) -> str:
    """Bytes, as a cell."""
    return f"{size / GIB:.2f}"


def percent(part: float) -> str:
    """A cell."""
    return f"{100 * part:.1f}"


def label_of(words: str) -> str:
    """A name for a file."""
    return "".join(letter if letter.isalnum() else "-" for letter in words)


class Bench:
    """One table in the making."""

    def __init__(self, table: Table, options: argparse.Namespace) -> None:
        self.table = table
        self.quick: bool = options.quick
        self.timeout: float = options.timeout
        self.output: Path | None = options.output
        self.part: str | None = options.part
        self.has_failed = False
        self.is_finished = False
        self.sections: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.runs: list[dict[str, Any]] = []
        # Launches on several cards are kept as they come.
        self._lock = threading.RLock()
        self._card = threading.local()
        self._folder = tempfile.TemporaryDirectory(prefix="girih-seeds-")
        self.folder = Path(self._folder.name)
        self.keeps = options.keep is not None
        # Where recordings lie, which are kept if somebody wants them.
        self.traces: Path = options.keep or self.folder / "traces"
        self.traces.mkdir(parents=True, exist_ok=True)
        more = f"{' --quick' * options.quick}{f' --part {self.part}' if self.part else ''}"
        self.head = {
            "table": table.title,
            "what": table.what,
            "command": f"gpu/tables.py {table.title}{more}",
            "quick": options.quick,
            **self.origin(options.commit),
        }
        self.announce()

    def origin(self, known_commit: str) -> dict[str, str]:
        """Of what, when and where it is made."""
        return {
            "commit": known_commit or commit(),
            "date": str(datetime.date.today()),
            "machine": machine_here(),
        }

    def announce(self) -> None:
        """Prints what it is."""
        known = [self.head["commit"] or "no commit", self.head["date"], self.head["machine"]]
        print(f"### {self.head['table']}: {self.table.what}\n")
        print(f"`{self.head['command']}`, {', '.join(known)}", flush=True)

    def close(self) -> None:
        """Prints the notes. Nothing is left in the folder for temporary files."""
        for text in self.notes:
            print(f"\n{text}", flush=True)
        self._folder.cleanup()

    def finish(self) -> None:
        """The table is whole: what ends before it has a file that says so."""
        self.is_finished = True
        self.write()

    def has(self, module: str) -> bool:
        """Whether a Python module is there for programs that need it."""
        return has_module(module)

    def wants(self, part: str) -> bool:
        """Whether a part of the table is asked for: all are, where none is named."""
        return self.part in (None, part)

    # ---- what is shown and kept ----

    def section(self, columns: list[str], heading: str = "") -> None:
        """Begins a table. The first column is to the left."""
        self.sections.append({"heading": heading, "columns": columns, "rows": []})
        print(f"\n{heading}\n" if heading else "")
        print(f"| {' | '.join(columns)} |\n|:--|{'--:|' * (len(columns) - 1)}", flush=True)

    def row(self, *cells: Any) -> None:
        """A row of the table that was begun last, a cell for each column."""
        assert len(cells) == len(self.sections[-1]["columns"]), cells
        with self._lock:
            self.sections[-1]["rows"].append([str(cell) for cell in cells])
            print(f"| {' | '.join(str(cell) for cell in cells)} |", flush=True)
            self.write()

    def in_order(self, labels: list[str]) -> None:
        """Puts the rows of the table that was begun last in the order of their first cells."""
        self.sections[-1]["rows"].sort(key=lambda row: labels.index(row[0]))

    def note(self, text: str) -> None:
        """A sentence below all rows: among them it would end their table."""
        self.notes.append(text)
        self.say(f"  {text}")
        self.write()

    def say(self, text: str) -> None:
        """For who watches."""
        if sys.stderr.isatty():
            print(text, file=sys.stderr, flush=True)

    def keep(self, run: dict[str, Any]) -> None:
        """What was measured, raw."""
        with self._lock:
            self.runs.append({key: run[key] for key in run if key != "stderr"})
            # Some tables have their rows only when all is measured.
            self.write()

    def write(self) -> None:
        """Whatever ends this program, what was measured by then is kept."""
        if self.output is not None:
            made = {"sections": self.sections, "notes": self.notes, "runs": self.runs}
            made |= {"finished": self.is_finished}
            text = json.dumps(shareable({**self.head, **made}), indent=1)
            self.output.parent.mkdir(parents=True, exist_ok=True)
            self.output.write_text(text + "\n")

    # ---- launches on the card ----

    @property
    def environ(self) -> dict[str, str] | None:
        """Of what this thread launches, with its card; None if all are this process's."""
        found: dict[str, str] | None = getattr(self._card, "environ", None)
        return found

    def on_cards(self, labels: list[str], make: Callable[[str], None]) -> None:
        """Makes the rows of each label with a card to itself, as many at once as there are cards.

        They are begun in this order; rows come as they are there, and `in_order` sorts them. Where
        launches have turns (GIRIH_TURNS, the path of a file), each card has turns of its own, so
        that several tables can be made beside each other on all of them.
        """
        cards = Cards(1)

        def one(label: str) -> None:
            with cards.one() as (card, environ):
                if turns := environ.get("GIRIH_TURNS"):
                    environ["GIRIH_TURNS"] = f"{turns}.{card}"
                self._card.environ = environ
                make(label)

        with concurrent.futures.ThreadPoolExecutor(cards.count) as workers:
            try:
                for task in [workers.submit(one, label) for label in labels]:
                    task.result()
            finally:
                # If it was ended, what has not begun is not.
                workers.shutdown(wait=False, cancel_futures=True)

    def launch(
        self, mode: str, words: str, cache: Path | None = None, trace: Path | None = None
    ) -> dict[str, Any]:
        """One launch of a workload under an allocator: what `modes.launch` gives."""
        name, *rest = words.split()
        if "--steps" not in rest:
            rest += STEPS
        arguments = argparse.Namespace(
            workload=str(GPU / "workloads" / name),
            rest=rest,
            gpus=1,
            torchrun=False,
            timeout=self.timeout,
            trace=trace,
        )
        self.say(f"  {mode}: {name} {' '.join(rest)}")
        own = cache or self.folder / label_of(f"cache {words}")
        own.mkdir(exist_ok=True)
        run = modes.launch(mode, arguments, str(own), self.environ)
        self.keep({"words": words, **run})
        if "error" in run and not ran_out(run):
            self.has_failed = True
        return run

    def measured(
        self, label: str, words: str, allocators: tuple[str, ...]
    ) -> list[dict[str, Any] | None]:
        """A row of the columns `MEASURED` for each allocator. Gives what rank 0 saw of each."""
        found: list[dict[str, Any] | None] = []
        base = None
        for mode in allocators:
            run = self.launch(mode, words)
            seen = rank0(run)
            found.append(seen)
            if seen is None:
                said = OUT if ran_out(run) else first_line(run["error"], 60)
                self.row(label, mode, *["-"] * (len(MEASURED) - 3), said)
                continue
            base = base or (seen if mode == "native" else None)
            ratio = f"{step_ratio(seen, base):.4f}" if base else "-"
            self.row(
                label,
                mode,
                gib(seen["allocated_peak"]),
                gib(seen["reserved_peak"]),
                percent(seen["efficiency"]),
                f"{seen['median_step_s']:.4f}",
                f"{seen['samples'] / seen['median_step_s']:.2f}",
                ratio,
                f"{seen['retries']} retries" if seen["retries"] else "",
            )
        return found

    # ---- recordings, and their replays ----

    def record(self, words: str) -> Path | None:
        """Records a workload under `stitch`. None if the launch failed, which is said."""
        trace = self.traces / trace_name(words)
        if "--steps" not in words:
            words = f"{words} {' '.join(RECORDED_STEPS)}"
        run = self.launch("stitch", words, trace=trace)
        if "error" in run:
            self.has_failed = True
            self.note(f"`{words}` failed: {first_line(run['error'], 200)}")
            return None
        return written(trace)

    def record_rank(
        self, world: int, rank: int, words: str, per_machine: int = 8
    ) -> tuple[Path | None, str]:
        """Records one rank of a job alone, and says what went wrong where it did."""
        self.say(f"  rank {rank} of {world}: {words}")
        file = trace_name(words, world, rank)
        trace = self.traces / file
        command = Wanted(words, file, world, rank, min(per_machine, world)).command(self.traces)
        said = recorded(command, trace, self.timeout)
        if said:
            self.has_failed = True
            self.keep({"words": words, "world": world, "rank": rank, "error": said})
            return None, said
        return written(trace), ""

    def compared(self, recording: Path) -> dict[str, Any] | None:
        """What `girih compare` says of a recording; None if it fails, which is noted."""
        found = comparison(recording)
        if isinstance(found, str):
            self.has_failed = True
            self.note(f"girih compare failed on {recording.name}: {found}")
            return None
        return found

    def replayed(self, label: str, recording: Path) -> None:
        """A row of the columns `replayed_columns` of a recording."""
        found = self.compared(recording)
        if found is None:
            return
        rows = {row["allocator"]: row for row in found["rows"]}
        few = ("allocator", "requests", "allocated_peak", "reserved_peak", "efficiency")
        kept = [
            {name: row[name] for name in (*few, "device_calls", "device_microseconds")}
            for row in found["rows"]
        ]
        self.keep({"replayed": label, "lower_bound": found["lower_bound"], "rows": kept})
        cells = [percent(rows[name]["efficiency"]) for name in REPLAYED]
        self.row(label, gib(found["lower_bound"]), gib(rows["native"]["reserved_peak"]), *cells)


MEASURED = [
    *("run", "allocator", "allocated GiB", "reserved GiB", "efficiency %"),
    *("step s", "samples/s", "time of native's", "said"),
]


def replayed_columns() -> list[str]:
    """Of the rows of `Bench.replayed`: efficiency by allocator, in percent."""
    return ["run", "bound GiB", "native GiB", *REPLAYED]


def rank0(run: dict[str, Any]) -> dict[str, Any] | None:
    """What the first rank of a launch printed; None if it failed."""
    if "error" in run:
        return None
    seen: dict[str, Any] = next(iter(run["ranks"].values()))
    return seen


def first_line(error: str, most: int) -> str:
    """Of an error, as a cell. A program that was killed may have said nothing."""
    lines = error.strip().splitlines() or ["it ended without a word"]
    return lines[0].replace("|", "/")[:most]


def ran_out(run: dict[str, Any]) -> bool:
    """Whether a launch failed for want of memory."""
    return bool(OUT_OF_MEMORY.search(run["error"] + run.get("stderr", "")))


def trace_name(words: str, world: int = 1, rank: int = 0) -> str:
    """The name of the file of a recording."""
    return f"{label_of(words)}{f'-{rank}of{world}' if world > 1 else ''}.girih"


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A recording that a table is made of: one rank of a workload, alone."""

    words: str
    """The workload, with its steps."""
    file: str
    world: int = 1
    rank: int = 0
    per_machine: int = 1

    def command(self, folder: Path, solid: str = "") -> list[str]:
        """The command line that leaves it in a folder, with a share of the card if one is given."""
        name, *rest = self.words.split()
        command = [sys.executable, "-m", "girih", "record", "--world", str(self.world)]
        command += ["--rank", str(self.rank), "--per-machine", str(self.per_machine)]
        command += ["--solid", solid] if solid else []
        command += ["-o", str(folder / self.file), "--", str(GPU / "workloads" / name)]
        return [*command, *rest]


def recorded(
    command: list[str], trace: Path, timeout: float, environment: dict[str, str] | None = None
) -> str:
    """Runs it. What went wrong, in a line; nothing if the recording is there."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"ran past {timeout:.0f} s"
    if done.returncode == 0 and written(trace):
        return ""
    if done.returncode < 0:
        return f"ended by {signal.Signals(-done.returncode).name}"
    errors = [line for line in done.stderr.splitlines() if "Error" in line]
    return (errors or done.stderr.splitlines() or ["it said nothing"])[-1]


def comparison(recording: Path, timeout: float | None = None) -> dict[str, Any] | str:
    """What `girih compare` says of a recording; its error if it fails."""
    words = [
        sys.executable,
        "-m",
        "girih",
        "compare",
        str(recording),
        "--baselines",
        "--json",
        "-q",
    ]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return f"ran past {timeout:.0f} s"
    if done.returncode != 0:
        return done.stderr.strip()[-300:] or "it said nothing"
    found: dict[str, Any] = json.loads(done.stdout)["recordings"][0]
    return found


def written(trace: Path) -> Path | None:
    """The file of a recording, whose name may have the device in it; None if there is none."""
    found = [trace] if trace.exists() else sorted(trace.parent.glob(f"{trace.stem}*.girih"))
    return found[0] if found else None


def machine_here() -> str:
    """The GPU and its driver; the processor where there is none."""
    try:
        return machine()
    except (OSError, subprocess.CalledProcessError):
        return f"{platform.machine()} without a GPU"
