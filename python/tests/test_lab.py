"""`gpu/lab.py`: it reads every step of `girih lab`, and runs it as the laboratory does."""

import contextlib
import importlib.util
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "gpu/lab.py"
MIB = 1 << 20


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("lab", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cases():
    words = [sys.executable, "-m", "girih", "lab", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("the command girih is not built into this package")
    return json.loads(done.stdout)["cases"]


class Torch:
    """As much of torch as the script touches: a pool that holds what is alive at most."""

    uint8 = "uint8"

    def __init__(self):
        self.said = []
        self.sizes = []
        self.scopes = 0
        graph = types.SimpleNamespace(
            capture_begin=lambda pool: self.said.append("begin"),
            capture_end=lambda: self.said.append("end"),
        )
        self.cuda = types.SimpleNamespace(
            MemPool=lambda: types.SimpleNamespace(id=(0, 1)),
            Stream=lambda: None,
            CUDAGraph=lambda: graph,
            synchronize=lambda: None,
            use_mem_pool=self.scope,
            memory_snapshot=lambda pool: [{"total_size": sum(self.sizes)}],
        )

    @contextlib.contextmanager
    def scope(self, pool):
        self.scopes += 1
        yield

    def empty(self, size, dtype, device):
        self.sizes.append(size)
        return object()


def test_texts_of_steps_are_read(script):
    assert script.parsed("allocate 8 x 16 MiB") == ("allocate", [16 * MIB] * 8)
    assert script.parsed("allocate 0.5 MiB") == ("allocate", [MIB // 2])
    assert script.parsed("allocate 3 KiB") == ("allocate", [3 << 10])
    assert script.parsed("free #0, #2 and #5") == ("free", [0, 2, 5])
    assert script.parsed("free everything") == ("free all", [])
    with pytest.raises(KeyError):
        script.parsed("split everything")


def test_every_step_of_the_laboratory_is_run(script, cases):
    for case in cases:
        torch = Torch()
        pool = script.Pool(torch)
        for step in case["steps"]:
            pool.run(step["operation"])
        captures = [step["operation"] for step in case["steps"]].count("capture a graph")
        assert torch.said == ["begin", "end"] * captures, case["name"]
        # Within a capture its own pool serves.
        assert (torch.scopes == 0) == (captures > 0), case["name"]
        assert len(torch.sizes) == len(pool.blocks)
