"""Programs of many kinds learn the same, to the bit, with less memory than they need.

Their tensors are in Girih's heap and do go: see `cpu_heap.py`.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("girih._native", reason="the extension is not built")
if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from girih import GirihError, _toolchain

HERE = Path(__file__).resolve().parent
GPU = HERE.parent.parent / "gpu"
if not (GPU / "checks").is_dir():
    pytest.skip("the checks on a GPU are not here", allow_module_level=True)

MODELS = """packed_recurrent state_space translator diffusion penalized hypernetwork second_order
queued routed sparse fourier volumes masked_images actors numerics"""
WAYS = """accumulated scaled averaged closures checkpoints own_hooks parametrized adapted in_place
overlapping functions hooked twice interrupted generating careful loaded in_turns resumed held"""
# `compiled` takes as long as ten others: test_saved_torch.py has such a program.
NAMES = [*MODELS.split(), *WAYS.split()]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What became of each program, in one process: importing torch takes longer than most."""
    try:
        _toolchain.find_compiler()
    except GirihError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("heap")
    done = subprocess.run(
        [sys.executable, str(HERE / "cpu_heap.py"), str(folder), str(GPU), "auto", *NAMES],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(lines) == len(NAMES), done.stderr[-3000:]
    return {name: rest for name, *rest in lines}


@pytest.mark.parametrize("name", NAMES)
def test_with_three_fifths_of_the_memory_it_learns_the_same(found, name):
    plain, swapped, swap = found[name]
    assert plain["error"] is None, plain["error"]
    assert swapped["error"] is None, swapped["error"]
    assert plain["digests"]
    assert swapped["digests"] == plain["digests"]
    assert swapped["taken"] > 0, "nothing went"
    assert swapped["left"] == plain["left"]
    assert [swap[it] for it in ("records", "host_used", "going", "away", "coming")] == [0] * 5
