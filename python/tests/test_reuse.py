"""What `gpu/reuse.py` reads in a history of memory, and what `gpu/losses.py` says of runs."""

import importlib
import importlib.util
import json
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
