"""The programs of `gpu/workloads/kinds/` and `hf.py` train on the CPU too, when they are tiny."""

import importlib
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
    assert len(PROGRAMS) >= 18


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


# ---- models of Hugging Face ----

HF = """
import runpy, sys, traceback
front, *lines = sys.argv[1:]
sys.path.insert(0, front.rpartition("/")[0])
for line in lines:
    sys.argv = [front, *line.split(), "--device", "cpu", "--tiny", "--batch", "2"]
    sys.argv += ["--steps", "3", "--settled", "1"]
    try:
        runpy.run_path(front, run_name="__main__")
    except Exception:
        print("FAILED " + repr(traceback.format_exc()), flush=True)
"""
# With and without `--offload`: weights on the host must train as they do on the device.
MODELS = ("gpt2 --recompute", "opt-1.3b", "llama-13b --lora --recompute", "neox-20b --lora")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The losses of each model, by its line."""
    for module in ("torch", "transformers", "peft"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    lines = [f"{model}{offload}" for model in MODELS for offload in ("", " --offload")]
    done = subprocess.run(
        [sys.executable, "-c", HF, str(WORKLOADS / "hf.py"), *lines],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path_factory.mktemp("hf"),
    )
    said = [li for li in done.stdout.splitlines() if li.startswith(("RESULT ", "FAILED "))]
    assert len(said) == len(lines), done.stderr
    return dict(zip(lines, said, strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_weights_on_the_host_train_as_on_the_device(model, trained):
    losses = []
    for line in (model, f"{model} --offload"):
        word, _, said = trained[line].partition(" ")
        assert word == "RESULT", said
        losses.append(json.loads(said)["exact_losses"])
    # Every step's update is in the next step's loss.
    assert len(set(losses[0])) == 3
    assert losses[0] == losses[1]


def test_passes_of_experts_are_marked_by_layer_and_nothing_else():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    spec = importlib.util.spec_from_file_location("marked", WORKLOADS / "marked.py")
    marked = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(marked)

    class TinyExperts(torch.nn.Linear):
        pass

    seen = []
    hooks = torch.nn.modules.module
    before = [dict(hooks._global_forward_pre_hooks), dict(hooks._global_forward_hooks)]
    try:
        marked.install(torch, lambda kind, name: seen.append(f"{kind} {name}"))
        parts = [torch.nn.Linear(2, 2), TinyExperts(2, 2), torch.nn.ReLU(), TinyExperts(2, 2)]
        model = torch.nn.Sequential(*parts)
        model(torch.zeros(1, 2))
        model(torch.zeros(1, 2))
    finally:
        for now, then in zip(
            (hooks._global_forward_pre_hooks, hooks._global_forward_hooks), before, strict=True
        ):
            now.clear()
            now.update(then)
    once = [f"{kind} layers.{n}.experts" for n in (0, 1) for kind in ("fwd_in", "fwd_out")]
    assert seen == once * 2


def measured():
    """The module that workloads measure with."""
    pytest.importorskip("torch", reason="torch is not installed")
    sys.path.insert(0, str(WORKLOADS))
    try:
        return importlib.import_module("measure")
    finally:
        sys.path.remove(str(WORKLOADS))


def test_a_step_that_ends_in_an_error_says_how_far_the_run_was(capsys):
    measure = measured().Measure("a run", 1, 1, device="cpu")
    with measure.step():
        pass
    with pytest.raises(MemoryError), measure.step():
        raise MemoryError
    first, last = capsys.readouterr().out.splitlines()
    assert float(first.removeprefix("STEP ")) >= 0
    word, _, said = last.partition(" ")
    assert word == "STOPPED"
    assert len(json.loads(said)["step_s"]) == 1


def test_of_kernels_side_by_side_the_time_counts_once_and_each_by_its_name():
    kernel_times = measured().kernel_times
    events = [("b", 10, 20), ("a", 0, 15), ("a", 100, 5), ("c", 12, 2)]
    found = kernel_times(events)
    assert (found["kernels"], found["busy_s"], found["sum_s"]) == (4, 35e-9, 42e-9)
    assert found["longest"] == {"b": [20e-9, 1], "a": [20e-9, 2], "c": [2e-9, 1]}
    nothing = {"kernels": 0, "busy_s": 0, "sum_s": 0, "longest": {}}
    assert kernel_times([]) == nothing
