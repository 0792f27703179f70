"""The programs of `gpu/workloads/kinds/` train on the CPU too, when they are tiny."""

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKLOADS = Path(__file__).resolve().parents[2] / "gpu/workloads"
PROGRAMS = sorted(p.stem for p in (WORKLOADS / "kinds").glob("[!_]*.py") if p.stem != "common")

# Each program with each seed, in one process: importing torch takes longer than all of them.
RUN = """
import runpy, sys, traceback
front, *words = sys.argv[1:]
sys.path.insert(0, front.rpartition("/")[0])
for word in words:
    name, seed = word.split(":")
    sys.argv = [front, name, "--seed", seed, "--device", "cpu", "--tiny"]
    sys.argv += ["--size", "0.02", "--steps", "2", "--settled", "1"]
    try:
        runpy.run_path(front, run_name="__main__")
    except Exception:
        print("FAILED " + repr(traceback.format_exc()), flush=True)
"""


def missing(name):
    needed = ["torch", "torchvision"] if name == "detector" else ["torch"]
    return [module for module in needed if importlib.util.find_spec(module) is None]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What each program printed: with seed 1, with seed 1 again, with seed 2."""
    able = [name for name in PROGRAMS if not missing(name)]
    words = [f"{name}:{seed}" for name in able for seed in (1, 1, 2)]
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(WORKLOADS / "kinds.py"), *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        # One thread sums in one order.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path_factory.mktemp("workloads"),
    )
    lines = [li for li in done.stdout.splitlines() if li.startswith(("RESULT ", "FAILED "))]
    assert len(lines) == len(words), done.stderr
    return {name: lines[3 * place : 3 * place + 3] for place, name in enumerate(able)}


def test_there_are_programs():
    assert len(PROGRAMS) >= 8


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_trains_as_its_seed_says(name, request):
    if absent := missing(name):
        pytest.skip(f"{absent[0]} is not installed")
    lines = request.getfixturevalue("printed")[name]
    results = []
    for line in lines:
        word, _, said = line.partition(" ")
        assert word == "RESULT", said
        results.append(json.loads(said))
    first, again, other = (result["exact_losses"] for result in results)
    assert len(first) == 2
    assert all(math.isfinite(float.fromhex(loss)) for loss in first + other)
    assert first == again
    assert first != other
    assert results[0]["name"] == name
    assert len(results[0]["step_s"]) == 2
