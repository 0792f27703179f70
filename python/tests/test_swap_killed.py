"""A process that is told to end, or killed, while it swaps, on a simulated GPU."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytest.importorskip("girih._native", reason="the extension is not built")

# A step is 48 layers of 64 MiB on a GPU that has room for 16. A signal comes at a moment of it, or
# from outside. As with a real program, what Python does of it comes between two operators.
PROGRAM = """
import gc, json, os, signal, sys, time
from simulated import *
from girih import _saved

# What runs in the background of a script ignores Ctrl-C, and so would this.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Program(Gpu):
    pending, moment, seen = None, None, 0

    def between(self):
        self.seen += 1
        if self.moment is not None and self.seen == self.moment[0]:
            swap = self.stats()["swap"]
            print("moment", json.dumps(swap), flush=True)
            signal.raise_signal(self.moment[1])
        if self.pending:
            kind, self.pending = self.pending, None
            # Not one that a frame has: it would hold the graph until the collector comes.
            raise kind

    def save(self, tensor):
        kept = super().save(tensor)
        self.between()
        return kept

    def use(self, saved):
        tensor = super().use(saved)
        self.between()
        return tensor

    def step(self):
        self.seen = 0
        self.backward(self.forward(48, 64))
        self.mark("step")


gpu = Program(8192, gpu_budget=1024 * MIB, host_budget=8192 * MIB)
hooks = _saved.install(gpu.torch)


def interrupt(number, _frame):
    gpu.pending = SystemExit if number == signal.SIGTERM else KeyboardInterrupt


def counters():
    found = gpu.stats()
    swap = found["swap"]
    keys = "records", "host_used", "going", "away", "coming"
    return {key: swap[key] for key in keys} | {"allocated": found["allocated"]}
"""
NOTHING = dict.fromkeys(("records", "host_used", "going", "away", "coming", "allocated"), 0)
# In the forward pass what comes first has to go; in the backward pass it comes back.
MOMENTS = {"nothing yet": 2, "going": 20, "end of forward": 48, "coming": 60, "nearly done": 95}


class Place:
    """Where a process may leave something: all that it is told to use is below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = {"TMPDIR": "tmp", "XDG_RUNTIME_DIR": "run", "GIRIH_CACHE": "cache"}
        for name in names.values():
            (folder / name).mkdir(mode=0o700)
        paths = {key: str(folder / name) for key, name in names.items()}
        here = os.pathsep.join(
            filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
        )
        self.environ = os.environ | paths | {"PYTHONPATH": here}

    def start(self, text: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM + textwrap.dedent(text)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environ,
        )

    def left(self) -> set[str]:
        """Files here, and what this user has in the shared memory of the machine."""
        files = {str(path) for path in self.folder.rglob("*") if not path.is_dir()}
        shared = Path("/dev/shm")
        if shared.is_dir():
            for path in shared.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_uid == os.getuid() and "girih" in path.name.lower():
                        files.add(str(path))
        return files


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def finish(process):
    out, error = process.communicate(timeout=120)
    assert "panicked" not in error, error
    return out.splitlines(), error


FINE = """
for _ in range(3):
    gpu.step()
print(json.dumps(counters()))
"""


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS.keys())
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_step_that_is_ended_by_a_signal_leaves_nothing_and_the_next_runs(place, name, moment):
    code = f"""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    gpu.step()
    gpu.moment = ({moment}, signal.{name})
    try:
        gpu.step()
        print("nothing has ended it")
    except (KeyboardInterrupt, SystemExit):
        pass
    # The exception is gone, and with it the frames that had the graph.
    print(json.dumps(counters()))
    gpu.moment = None
    gpu.step()
    gpu.step()
    print(json.dumps(counters()))
    """
    process = place.start(code)
    lines, error = finish(process)
    assert process.returncode == 0, error
    at, after, later = lines
    swap = json.loads(at.removeprefix("moment "))
    assert swap["records"] > 0, "tensors are saved then"
    if moment in (MOMENTS["going"], MOMENTS["end of forward"], MOMENTS["coming"]):
        assert swap["going"] + swap["away"] + swap["coming"] > 0, "it swaps then"
    assert json.loads(after) == json.loads(later) == NOTHING
    assert place.left() == set()


def test_signals_from_outside_at_any_time_lose_nothing(place):
    code = """
    signal.signal(signal.SIGINT, interrupt)
    print("ready", flush=True)
    for _ in range(12):
        try:
            while True:
                gpu.step()
        except KeyboardInterrupt:
            pass
        print(json.dumps(counters()), flush=True)
        sys.stdin.readline()
    """
    process = place.start(code)
    assert process.stdout.readline() == "ready\n"
    for round_ in range(12):
        time.sleep(0.013 * (round_ % 5) + 0.05)
        process.send_signal(signal.SIGINT)
        assert json.loads(process.stdout.readline()) == NOTHING
        process.stdin.write("\n")
        process.stdin.flush()
    _, error = finish(process)
    assert process.returncode == 0, error
    assert place.left() == set()


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS.keys())
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_a_process_that_dies_while_it_swaps_is_in_nobodys_way(place, name, moment):
    """SIGTERM is left to the system here, and SIGINT ends the program as it does any other."""
    number = getattr(signal, name)
    begun = time.monotonic()
    process = place.start(f"gpu.step()\ngpu.moment = ({moment}, signal.{name})\ngpu.step()\n")
    lines, error = finish(process)
    assert len(lines) == 1, "it has died in the middle"
    assert lines[0].startswith("moment "), lines
    assert process.returncode == -number, error
    assert time.monotonic() - begun < 60, "nobody waits for copies at the end"
    assert place.left() == set()
    # In the same place, with whatever was left.
    process = place.start(FINE)
    lines, error = finish(process)
    assert process.returncode == 0, error
    assert json.loads(lines[-1]) == NOTHING
    assert place.left() == set()


def test_one_of_two_ranks_is_killed_and_the_other_goes_on(place):
    """Each has its share of the host; no memory, file or lock is common to them."""
    one = """
    print("ready", flush=True)
    while True:
        gpu.step()
    """
    other = """
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(3):
        gpu.step()
    print(json.dumps(counters()))
    """
    killed, lives = place.start(one), place.start(other)
    for process in (killed, lives):
        assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    killed.kill()
    finish(killed)
    assert killed.returncode == -signal.SIGKILL
    lives.stdin.write("\n")
    lives.stdin.flush()
    lines, error = finish(lives)
    assert lives.returncode == 0, error
    assert json.loads(lines[-1]) == NOTHING
    assert place.left() == set()
