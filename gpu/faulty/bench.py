"""Starts the runs that faults happen to, and judges what they said.

```text
 a test ──┬─► native ──┐
          └─► Girih ───┴─► agree: exit status, losses, parameters, tensors nobody else wrote to
```

A run that several tests want is started once. Tests wait; runs go side by side, a few at a time.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).resolve().parent / "program.py"
MODES = ("auto", "plan", "expandable")
CHILD_SECONDS_MAX = 240
# What a process says that ends badly, whatever its exit status.
CRASH = re.compile(
    r"terminate called|segmentation|core dumped|aborted|fatal python error|panicked|double free|"
    r"corrupt|stack smashing|sigsegv|sigabrt|cuda error|cudaerror|internal assert|"
    r"exception ignored in atexit",
    re.IGNORECASE,
)


def equal(found: object, expected: object, what: str) -> None:
    """Fails with both values."""
    assert found == expected, f"{what} is {found}, not {expected}"


@dataclasses.dataclass(frozen=True)
class Child:
    """A launch of the program, and what it said."""

    mode: str
    words: tuple[str, ...]
    code: int
    stdout: str
    stderr: str
    folder: Path
    seconds: float

    @property
    def result(self) -> dict[str, Any]:
        """What it printed at its end."""
        lines = [line for line in self.stdout.splitlines() if line.startswith("RESULT ")]
        assert lines, f"it ended with status {self.code}: {self.last_words()}"
        found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
        return found

    @property
    def losses(self) -> dict[int, str]:
        """The losses, to the bit, by step. The last line may be cut off."""
        found = re.findall(r"^loss (\d+) (\S+)\n", self.stdout, re.MULTILINE)
        return {int(step): loss for step, loss in found}

    def last_words(self) -> str:
        """The last line of its errors."""
        return (self.stderr.strip().splitlines() or ["it said nothing"])[-1]

    def row(self, label: str) -> dict[str, Any]:
        """How well a plan was followed in an iteration."""
        rows = [row for row in self.result["rows"] if row["label"] == label]
        assert rows, f'there is no iteration "{label}"'
        found: dict[str, Any] = rows[-1]
        return found

    def plan(self) -> Path:
        """The plan that it has left."""
        plans = sorted((self.folder / "plans").glob("*.plan"))
        assert len(plans) == 1, f"{len(plans)} plans were left, not one"
        return plans[0]

    def report(self) -> dict[str, Any]:
        """What `--report` wrote."""
        path = self.folder / "report.json"
        assert path.is_file(), "no report was written at the end"
        found: dict[str, Any] = json.loads(path.read_text())
        return found


class Bench:
    """Starts children, a few at a time, each kind once."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self._folder = folder
        self._slots = threading.Semaphore(jobs)
        self._lock = threading.Lock()
        self._children: dict[tuple[str, ...], Future[Child]] = {}

    def run(self, mode: str, *words: str, plan: Path | None = None) -> Child:
        """A child in a folder of its own; the same one if it was run before.

        Modes: `native` and `torch-expandable` are torch's own, the others Girih's.
        """
        key = (mode, str(plan), *words)
        with self._lock:
            future = self._children.get(key)
            is_mine = future is None
            if future is None:
                future = self._children[key] = Future()
                number = len(self._children)
        if is_mine:
            try:
                folder = self._folder / f"{number:03}-{mode}-{words[0]}"
                future.set_result(self.launch(mode, *words, folder=folder, plan=plan))
            except BaseException as error:
                future.set_exception(error)
        return future.result()

    def launch(
        self,
        mode: str,
        *words: str,
        folder: Path,
        plan: Path | None = None,
        environ: dict[str, str] | None = None,
    ) -> Child:
        """A child, now."""
        folder.mkdir(exist_ok=True)
        command = [str(PROGRAM), *words, "--folder", str(folder)]
        known = {name: value for name, value in os.environ.items() if is_neutral(name)}
        if mode == "torch-expandable":
            known["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        elif mode != "native":
            girih = ["-m", "girih", "run", "--mode", mode, "--plan-dir", str(folder / "plans")]
            girih += ["--report", str(folder / "report.json")]
            girih += ["--plan", str(plan)] if plan else []
            command = girih + command
        with self._slots:
            start = time.perf_counter()
            try:
                done = subprocess.run(
                    [sys.executable, *command],
                    env=known | (environ or {}),
                    capture_output=True,
                    text=True,
                    timeout=CHILD_SECONDS_MAX,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise AssertionError(f"{mode}: not ended after {CHILD_SECONDS_MAX} s") from error
            seconds = time.perf_counter() - start
        return Child(mode, words, done.returncode, done.stdout, done.stderr, folder, seconds)

    def children(self) -> list[Child]:
        """All that have ended, in the order in which they were wanted."""
        done = [future for future in self._children.values() if future.done()]
        return [future.result() for future in done if future.exception() is None]

    def girih(self, mode: str, *words: str, plan_of: tuple[str, ...] = ("plain",)) -> Child:
        """A child under Girih. In the mode `plan` it follows the plan of another run in `auto`."""
        return self.run(mode, *words, plan=self.plan(*plan_of) if mode == "plan" else None)

    def plan(self, *words: str) -> Path:
        """The plan that `auto` leaves of a run."""
        child = self.run("auto", *words)
        assert child.code == 0, f"auto, from which the plan is: {child.last_words()}"
        return child.plan()

    def compare(
        self, mode: str, *words: str, plan_of: tuple[str, ...] = ("plain",)
    ) -> tuple[Child, Child]:
        """The same run under Girih and under torch's own allocator, which must agree."""
        native = self.run("native", *words)
        assert native.code == 0, f"torch's own allocator: {native.last_words()}"
        child = self.girih(mode, *words, plan_of=plan_of)
        agree(child, native)
        return child, native


def is_neutral(name: str) -> bool:
    """True for a variable of the environment that says nothing about allocators."""
    about = name.startswith("GIRIH_") and name != "GIRIH_CACHE"
    return not about and name not in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def sound(child: Child) -> None:
    """It ended well, said nothing bad, and ran on what it was to run on."""
    equal(child.code, 0, f"the exit status ({child.last_words()})")
    quiet(child)
    found = child.result
    if child.mode in (*MODES, "profile"):
        equal((found["mode"], found["door"]), (child.mode, "shim"), "Girih's mode and door")
    equal(found["broken"], 0, "the number of tensors that someone else wrote to")


def quiet(child: Child) -> None:
    """Nothing on its standard error looks like a crash."""
    for line in child.stderr.splitlines():
        assert not CRASH.search(line), f"it says: {line.strip()}"


def agree(child: Child, native: Child) -> None:
    """Both ended well, with the same losses and parameters."""
    sound(native)
    sound(child)
    same_losses(child.losses, native.losses)
    equal(child.result["checksum"], native.result["checksum"], "the checksum of the parameters")


def same_losses(found: dict[int, str], expected: dict[int, str]) -> None:
    """The same to the bit, in the same steps."""
    for step, loss in expected.items():
        equal(found.get(step), loss, f"the loss of step {step}")
    equal(len(found), len(expected), "the number of losses")


def found_in_plan(row: dict[str, Any], least: float = 0.99) -> None:
    """In this iteration nearly all bytes got the places that the plan has for them."""
    wanted = row["hit_bytes"] + row["miss_bytes"]
    part = row["hit_bytes"] / max(1, wanted)
    text = f"{row['misses']} requests, {row['miss_bytes']} bytes missed, stage {row['stage']}"
    assert wanted > 0, f"{row['label']}: no plan is followed, stage {row['stage']}"
    assert part >= least, f"{row['label']}: {100 * part:.2f} % of the bytes as planned ({text})"


def all_in_plan(row: dict[str, Any]) -> None:
    """In this iteration every request got its place."""
    found_in_plan(row)
    equal(row["misses"], 0, f"{row['label']}: misses (of {row['miss_bytes']} bytes)")
