"""What `gpu/reuse.py` reads in a history of memory, and what `gpu/losses.py` says of runs."""

import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parents[2] / "gpu"


@pytest.fixture
def reused(monkeypatch):
    monkeypatch.syspath_prepend(str(GPU / "workloads"))
    return importlib.import_module("reused")


def history(*events):
    """Events as PyTorch has them, a us apart."""
    names = {"a": "alloc", "f": "free_requested", "c": "free_completed"}
    return [
        {"action": names[kind], "addr": address, "size": size, "time_us": time}
        for time, (kind, address, size) in enumerate(events)
    ]


def test_a_block_is_followed_from_its_free_to_the_request_that_is_given_a_part_of_it(reused):
    events = history(
        ("a", 1000, 100),
        ("a", 5000, 10),
        ("f", 1000, 100),
        ("a", 6000, 10),
        ("a", 7000, 10),
        ("c", 1000, 100),
        ("a", 900, 50),
        ("a", 1090, 50),
    )
    # A view, whose tensor begins within the block.
    saved = [reused.Saved(1040, 0.5)]
    assert reused.follow(saved, events) == [reused.Reuse(100, 3, 5, 3)]


def test_what_is_reused_at_once_has_waited_for_no_request(reused):
    events = history(("a", 8, 8), ("f", 8, 8), ("c", 8, 8), ("a", 8, 4))
    assert reused.follow([reused.Saved(8, 0.5)], events) == [reused.Reuse(8, 1, 2, 0)]


def test_what_never_went_is_left_out_and_what_never_serves_again_has_no_time(reused):
    events = history(
        ("a", 8, 8), ("a", 16, 8), ("f", 8, 8), ("c", 8, 8), ("f", 16, 8), ("c", 16, 8)
    )
    saved = [reused.Saved(8, 1.5, used_us=1.8), reused.Saved(16, 1.5)]
    assert reused.follow(saved, events) == [reused.Reuse(8, 1, None, None)]


def test_two_tensors_over_one_block_are_one_and_its_next_owner_is_another(reused):
    events = history(("a", 8, 8), ("f", 8, 8), ("c", 8, 8), ("a", 8, 8), ("f", 8, 8), ("c", 8, 8))
    saved = [reused.Saved(8, 0.5), reused.Saved(12, 0.6), reused.Saved(8, 3.5)]
    assert reused.follow(saved, events) == [
        reused.Reuse(8, 1, 2, 0),
        reused.Reuse(8, 1, None, None),
    ]


STEPS = """
import ctypes, json, time
from simulated import *
from girih import _saved
import reused

class Event(ctypes.Structure):
    _fields_ = [("addr", ctypes.c_uint64), ("size", ctypes.c_uint64), ("stream", ctypes.c_uint64),
                ("pool", ctypes.c_uint64 * 2), ("device", ctypes.c_int32),
                ("action", ctypes.c_int32)]

NAMES = ("alloc", "free_requested", "free_completed")
events, saved = [], []

@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Event))
def note(_user, event):
    found = event[0]
    if found.action < len(NAMES):
        events.append({"action": NAMES[found.action], "addr": found.addr, "size": found.size,
                       "time_us": reused.now_us()})

gpu = Gpu(1024, gpu_budget=200 << 20)
_saved.install(gpu.torch)
for step in range(4):
    gpu.mark("step")
    if step == 2:
        gpu.symbols.girih_set_sink(note, None)
    layers, before = [], None
    for _ in range(60):
        output = Tensor(gpu, 4)
        layers.append(gpu.save(output))
        if step == 2:
            saved.append(reused.Saved(gpu.storages[output.storage][1], reused.now_us()))
        before = output
    del before, output
    used = iter(reversed(saved))
    while layers:
        if step == 2:
            next(used).used_us = reused.now_us()
        tensor = gpu.use(layers[-1])
        del tensor
        with gpu.working():
            layers.pop()
gpu.symbols.girih_set_sink(None, None)
found = reused.follow(saved, events)
print(json.dumps([[it.size, it.pending_us, it.us, it.requests] for it in found]))
"""


def test_on_a_simulated_gpu_what_went_serves_the_request_that_it_went_for(python):
    """The heap lets go of the bytes for a request, so that is given them, or one soon after."""
    pytest.importorskip("girih._native", reason="the extension is not built")
    path = os.pathsep.join([str(Path(__file__).parent), str(GPU / "workloads")])
    done = python("-c", STEPS, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) > 5
    assert all(size == 4 << 20 for size, *_ in found)
    seen = [requests for *_, requests in found if requests is not None]
    assert len(seen) > len(found) / 2
    assert statistics.median(seen) <= 2


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_losses_are_equal_and_capuchins_identity_ends_where_the_sequence_changes(tmp_path):
    path = tmp_path / "losses.json"
    command = [GPU / "losses.py", "--device", "cpu", "--tiny", "--steps", "9", "-o", path]
    command += ["--only", "recompute,plain,capuchin,capuchin-told"]
    command += ["--", "--validate-every", "5", "--skip-every", "3", "--layers", "1"]
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    runs = {run["way"]: run for run in json.loads(path.read_text())["runs"]}
    losses = runs["recompute"]["exact_losses"]
    assert len(set(losses)) == 9
    for way in ("plain", "capuchin-told"):
        assert runs[way]["exact_losses"] == losses
        assert runs[way]["parameters"] == runs["recompute"]["parameters"]
    ended = runs["capuchin"]
    # The third step is skipped; the fourth looks for tensors under numbers of others.
    assert ended["steps"] == 3
    assert "has saved no tensor" in ended["ended"]
    assert ended["exact_losses"] == losses[:3]
    assert "equal to the bit" in done.stdout
