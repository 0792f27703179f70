"""A step of 131,072 tokens on a simulated GPU: tensors larger than what is pinned at once."""

import textwrap

import pytest

pytest.importorskip("girih._native", reason="the extension is not built")

BEGIN = """
import contextlib, gc, json, time
from simulated import *
from long_step import Step
from girih import _saved

def run(tokens, layers, steps=6, **options):
    gpu = Gpu(143 * 1024, **options)
    hooks = _saved.install(gpu.torch)
    step, error = Step(gpu, tokens, layers), None
    try:
        for _ in range(steps):
            step.run()
            time.sleep(0.2)
    except OutOfMemoryError as raised:
        error = str(raised)
        hooks = step = None
    print(json.dumps(gpu.stats() | {"error": error}))
"""


@pytest.fixture
def run(beside):
    """Runs a program; gives what it prints as JSON in its last line."""
    return lambda text: beside("-c", BEGIN + textwrap.dedent(text))[0]


@pytest.mark.parametrize("host", [64, 92])
def test_a_step_of_131072_tokens_fits_a_third_of_its_memory_and_what_the_host_has(run, host):
    """Tensors of the MLP have 2.69 GiB, more than what is pinned at once."""
    found = run(f"run(131072, 4, gpu_budget=40535 * MIB, host_budget={host * 1024} * MIB)")
    assert found["error"] is None
    swap = found["swap"]
    if host == 92:
        assert swap["host_full"] == 0, "as long as the budget has the bytes there is a place"
    assert swap["host_peak"] > 60 << 30
    # Matrices, gradients and states, and what an operator needs beside what it saves.
    assert swap["without_record_peak"] > 8 << 30
    assert found["reserved_peak"] <= 40535 << 20
    assert swap["records"] == swap["host_used"] == swap["away"] == 0


def test_a_host_that_is_too_small_for_the_step_is_what_the_error_names(run):
    found = run(f"run(131072, 4, gpu_budget=40535 * MIB, host_budget={40 * 1024} * MIB)")
    assert "saved tensors that could go, if the host had room" in found["error"]
    assert "give the host more: host_budget" in found["error"]
