"""Tables of bytes in two parts: what is recorded on a card, and what is replayed anywhere.

```text
 tables ─► recordings they want ─► so many at once, each with a share of a card ─► FOLDER
                                              │ compared as soon as they are there    │
                                              ▼                                       ▼
                                         the processors                      tables, without a GPU
```

All cards that the process may use are used, each for as many at once.

Of a recording sizes, order and streams count alone, so that several can be made on one card at the
same time: in the memory of `phantom`, in which only small tensors have bytes of their own where the
share is used up. What a program computes there is not what it would, and nobody reads it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from seeds.bench import (
    RECORDED_STEPS,
    Bench,
    Cards,
    Table,
    Wanted,
    commit,
    comparison,
    has_module,
    machine_here,
    recorded,
    trace_name,
    written,
)

INDEX = "index.json"
MODULES = ("megatron.core", "transformers", "peft", "deepspeed")
SOLID_PART = 0.6
"""Of a share, what tensors have: the rest is the context's, the kernels' and the libraries'."""


class Wish(Bench):
    """Finds out what a table wants to be recorded, and does nothing else."""

    def __init__(self, table: Table, options: argparse.Namespace) -> None:
        self.recordings: list[Wanted] = []
        super().__init__(table, options)

    def origin(self, known_commit: str) -> dict[str, str]:
        """Nothing is made."""
        return {}

    def announce(self) -> None:
        """Nothing is said."""

    def section(self, columns: list[str], heading: str = "") -> None:
        """Nothing is shown."""

    def row(self, *cells: Any) -> None:
        """Nothing is shown."""

    def note(self, text: str) -> None:
        """Nothing is said."""

    def record(self, words: str) -> Path | None:
        """Takes it down."""
        steps = [] if "--steps" in words else RECORDED_STEPS
        self.recordings.append(Wanted(" ".join([words, *steps]), trace_name(words)))
        return None

    def record_rank(
        self, world: int, rank: int, words: str, per_machine: int = 8
    ) -> tuple[Path | None, str]:
        """Takes it down."""
        file = trace_name(words, world, rank)
        self.recordings.append(Wanted(words, file, world, rank, min(per_machine, world)))
        return None, ""


class Again(Bench):
    """Makes a table of recordings that are there."""

    def __init__(
        self, table: Table, options: argparse.Namespace, folder: Path, index: dict[str, Any]
    ) -> None:
        self.index = index
        self.recorded = {one["file"]: one for one in index["recordings"]}
        super().__init__(table, options)
        self.traces = folder

    def origin(self, known_commit: str) -> dict[str, str]:
        """Of the recordings; replays are the same everywhere."""
        return {name: self.index[name] for name in ("commit", "date", "machine")}

    def has(self, module: str) -> bool:
        """Whether it was where the recordings were made."""
        return module in self.index["modules"]

    def record(self, words: str) -> Path | None:
        """The recording; None if it is not there, which is said."""
        found, said = self.found(trace_name(words))
        if said:
            self.note(f"`{words}`: {said}")
        return found

    def record_rank(
        self, world: int, rank: int, words: str, per_machine: int = 8
    ) -> tuple[Path | None, str]:
        """The recording, or why it is not there."""
        return self.found(trace_name(words, world, rank))

    def found(self, file: str) -> tuple[Path | None, str]:
        """A recording of the folder, or its comparison."""
        path = self.traces / file
        if compared_of(path).exists() or written(path):
            return path, ""
        self.has_failed = True
        return None, self.recorded.get(file, {}).get("error") or "not recorded"

    def compared(self, recording: Path) -> dict[str, Any] | None:
        """What was found when it was recorded, else what is found now."""
        kept = compared_of(recording)
        if not kept.exists():
            return super().compared(written(recording) or recording)
        found: dict[str, Any] = json.loads(kept.read_text())
        return found


def compared_of(trace: Path) -> Path:
    """The file of what `girih compare` said of a recording."""
    return trace.with_suffix(".compared.json")


def wishes(tables: Iterable[Table], options: argparse.Namespace) -> list[Wanted]:
    """What the tables want, each recording once, in their order."""
    found: dict[str, Wanted] = {}
    for table in tables:
        wish = Wish(table, options)
        table.make(wish)
        wish.close()
        found |= {one.file: one for one in wish.recordings if one.file not in found}
    return list(found.values())


def card_bytes() -> int:
    """Bytes that are free on the first GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    said = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return int(said.split()[0]) << 20


class Recorder:
    """Makes recordings, so many at once, until none is left or the time is over."""

    def __init__(
        self, folder: Path, tables: list[Table], options: argparse.Namespace, free: int
    ) -> None:
        self.folder = folder
        self.options = options
        self.cards = Cards(options.at_once)
        self.solid = f"{int(SOLID_PART * free / options.at_once)}B"
        self.end = time.monotonic() + options.seconds
        self.lock = threading.Lock()
        self.index: dict[str, Any] = {
            "commit": options.commit or commit(),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "machine": machine_here(),
            "tables": [[table.seed, table.name] for table in tables],
            "quick": options.quick,
            "at_once": options.at_once,
            "cards": self.cards.count,
            "modules": [name for name in MODULES if has_module(name)],
            "recordings": [],
        }

    def left(self) -> float:
        """Seconds."""
        return float(self.end - time.monotonic())

    def keep(self, one: Wanted, seconds: float, error: str) -> None:
        """Whatever ends this program, what is recorded by then is known."""
        made = dataclasses.asdict(one) | {"seconds": round(seconds, 1)}
        with self.lock:
            self.index["recordings"].append(made | ({"error": error} if error else {}))
            text = json.dumps(self.index, indent=1)
            (self.folder / INDEX).write_text(text + "\n")
            print(f"{seconds:6.1f} s  {one.file}  {error}", flush=True)

    def record(self, one: Wanted) -> Path | None:
        """One recording; None if there is none."""
        with self.cards.one() as (_, environment):
            return self.record_on(one, environment)

    def record_on(self, one: Wanted, environment: dict[str, str]) -> Path | None:
        """One recording, on the card of an environment; None if there is none."""
        if self.left() <= 0:
            self.keep(one, 0.0, "the time was over before it began")
            return None
        trace = self.folder / one.file
        start = time.monotonic()
        most = min(self.options.timeout, self.left())
        error = recorded(one.command(self.folder, self.solid), trace, most, environment)
        self.keep(one, time.monotonic() - start, error)
        return None if error else trace

    def compare(self, trace: Path) -> None:
        """What it says of a recording, kept beside it; nothing if it fails: it is tried again."""
        if self.left() > 0:
            found = comparison(written(trace) or trace, self.left())
            if not isinstance(found, str):
                compared_of(trace).write_text(json.dumps(found))

    def all(self, recordings: list[Wanted]) -> bool:
        """Whether each of them is there at the end."""
        processors = max(1, (os.cpu_count() or 2) - self.cards.places)
        with (
            concurrent.futures.ThreadPoolExecutor(self.cards.places) as card,
            concurrent.futures.ThreadPoolExecutor(processors) as replays,
        ):
            tasks = [card.submit(self.record, one) for one in recordings]
            for task in concurrent.futures.as_completed(tasks):
                if (trace := task.result()) is not None:
                    replays.submit(self.compare, trace)
        return not any("error" in one for one in self.index["recordings"])


def record(folder: Path, tables: list[Table], options: argparse.Namespace) -> int:
    """Records all that the tables want. 1 if something could not be."""
    folder.mkdir(parents=True, exist_ok=True)
    recordings = wishes(tables, options)
    recorder = Recorder(folder, tables, options, card_bytes())
    print(
        f"{len(recordings)} recordings, {recorder.cards.places} at once on {recorder.cards.count}"
        f" GPUs, {recorder.solid} of a card for each",
        flush=True,
    )
    return int(not recorder.all(recordings))


def file_name(table: Table, options: argparse.Namespace) -> str:
    """Of the results of a table. Where a part alone of two is made, it is named."""
    part = f"-{options.part}" if options.part and len(table.parts) > 1 else ""
    return f"{table.seed}-{table.name}{part}{'-quick' * options.quick}.json"


def replay(folder: Path, tables: list[Table], options: argparse.Namespace, results: Path) -> int:
    """Makes the tables of a folder's recordings, each a file. 1 if a recording is missing."""
    index = json.loads((folder / INDEX).read_text())
    options.quick = index["quick"]
    failed = False
    for table in tables:
        if [table.seed, table.name] in index["tables"]:
            options.output = results / file_name(table, options)
            bench = Again(table, options, folder, index)
            table.make(bench)
            bench.finish()
            bench.close()
            print()
            failed |= bench.has_failed
    return int(failed)


# ---- tables of times ----


def together(script: Path, tables: list[Table], options: argparse.Namespace) -> int:
    """Makes tables side by side, each in a process: their launches have a GPU in turns.

    Libraries are loaded meanwhile, which is half of what a short launch takes. Those that take a
    part of the card away come after the others, one on each; those that time calls of the driver
    come first, one at a time. What is not done in time is ended, and has in its file what was
    measured by then. 1 if a table failed or was ended.
    """
    end = time.monotonic() + options.seconds
    alone = [table for table in tables if table.times_driver]
    a_card = [table for table in tables if table.fills_card and not table.times_driver]
    beside = [table for table in tables if table not in alone + a_card]
    with tempfile.TemporaryDirectory(prefix="girih-turns-") as folder:
        turns = Path(folder)

        def make(table: Table, cards: Cards) -> bool:
            words = [sys.executable, str(script), table.seed, table.name]
            words += ["--quick"] if options.quick else []
            words += ["--part", "times"] if len(table.parts) > 1 else []
            words += ["--commit", options.commit] if options.commit else []
            # A launch waits for its turn, and that is a part of its time.
            words += ["--timeout", str(options.timeout * options.at_once)]
            with cards.one() as (name, environment):
                return run_until(words, end, environment | {"GIRIH_TURNS": str(turns / name)})

        made = []
        for some, places in ((alone, 1), (beside, options.at_once), (a_card, 1)):
            cards = Cards(places)
            at_once = 1 if some is alone else cards.places
            with concurrent.futures.ThreadPoolExecutor(at_once) as workers:
                made += workers.map(make, some, itertools.repeat(cards))
    return int(not all(made))


def run_until(words: list[str], end: float, environment: dict[str, str]) -> bool:
    """Runs a table, and prints it when it is done; at the end of the time it is ended with all of
    its launches. Whether it went well."""
    left = end - time.monotonic()
    if left <= 0:
        print(f"{' '.join(words[2:4])}: the time was over before it began\n", flush=True)
        return False
    process = subprocess.Popen(
        words,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=left)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        said += f"\n{' '.join(words[2:4])}: ended when the time was over\n"
    print(said, flush=True)
    return process.returncode == 0
