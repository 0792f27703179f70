"""Swapping: what goes to the host comes back as it was, and what fits nowhere is an error.

Each way to train here is run once in a process that swaps nothing, and once in one with a budget of
half of what it needed, which this one starts; gradients must be equal to the bit. The programs take
a device, so that tests run them without a GPU.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from checks.registry import CHILD_SECONDS_MAX, MIB, Skip, alone, equal, girih_mode

MODES = ("auto", "plan", "stitch")
# Layers, width and rows: each layer saves two tensors of ROWS x WIDTH x 4 bytes, 24 MiB.
LAYERS, WIDTH, ROWS = 20, 1024, 6144
STEPS = 3


class Net(nn.Module):
    """Layers one after another; the forward pass may break off."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.breaks_at: int | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Raises in the layer at which it shall break off."""
        for index, layer in enumerate(self.layers):
            if index == self.breaks_at:
                raise ValueError("the forward pass breaks off")
            x = nn.functional.gelu(layer(x))
        return x


def look_at(_: nn.Module, __: object, output: torch.Tensor) -> None:
    """Has PyTorch make the object that stands for a storage in Python, which goes unused."""
    assert output.untyped_storage().nbytes() > 0


class Program:
    """A model, its input, and what became of its gradients."""

    def __init__(self, device: str, size: tuple[int, int, int] = (LAYERS, WIDTH, ROWS)) -> None:
        layers, width, rows = size
        torch.manual_seed(5)
        self.net = Net(layers, width).to(device)
        self.x = torch.randn(rows, width, device=device)

    def step(self) -> None:
        """Forward and backward."""
        self.net(self.x).square().mean().backward()

    def broken(self) -> None:
        """A forward pass that breaks off near its end, and a step after it."""
        self.net.breaks_at = len(self.net.layers) - 1
        with contextlib.suppress(ValueError):
            self.net(self.x)
        self.net.breaks_at = None
        self.step()

    def two_graphs(self) -> None:
        """Two graphs alive; the one that was made first is run backward first."""
        half = self.x[: len(self.x) // 2]
        first, second = self.net(half), self.net(2 * half)
        first.square().mean().backward()
        second.mean().backward()

    def never_run(self) -> None:
        """A branch that nobody runs backward, and one that is run twice."""
        half = self.x[: len(self.x) // 2]
        branch = self.net(half)
        loss = self.net(half + 1).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        del branch

    def looked_at(self) -> None:
        """Of each tensor that is saved the program asks for the storage, which it does not keep."""
        hooks = [layer.register_forward_hook(look_at) for layer in self.net.layers]
        self.step()
        for hook in hooks:
            hook.remove()

    def digest(self) -> str:
        """Of all gradients, which are gone then."""
        whole = hashlib.sha256()
        for parameter in self.net.parameters():
            assert parameter.grad is not None
            whole.update(parameter.grad.cpu().numpy().tobytes())
            parameter.grad = None
        return whole.hexdigest()


WAYS: tuple[Callable[[Program], None], ...] = (
    Program.step,
    Program.broken,
    Program.two_graphs,
    Program.never_run,
    Program.looked_at,
)


def digests(device: str, **more: Any) -> dict[str, list[str]]:
    """The gradients of some steps of each way to train."""
    found = {}
    for way in WAYS:
        program = Program(device, **more)
        found[way.__name__] = []
        for _ in range(STEPS):
            mark_step()
            way(program)
            found[way.__name__].append(program.digest())
    return found


def mark_step() -> None:
    """No optimizer steps here, so steps are said."""
    if girih := sys.modules.get("girih"):
        with girih.step():
            pass


def swap_stats() -> dict[str, Any]:
    """What Girih says of swapping, once all that was saved is given up."""
    import girih

    gc.collect()
    torch.cuda.synchronize()
    found = girih.stats(0)
    swap = dict(found["swap"] or {})
    return swap | {"ooms": found["ooms"]}


def at_rest(swap: dict[str, Any]) -> None:
    """Nothing is left behind."""
    for name in ("records", "host_used", "going", "away", "coming"):
        equal(swap[name], 0, name)


def started(function: str, *, module: str = "swapping", **options: Any) -> dict[str, Any]:
    """What a function of a module gives in a process of its own, with these options of Girih."""
    own = json.loads(os.environ.get("GIRIH_OPTIONS") or "{}")
    environ = os.environ | {"GIRIH_OPTIONS": json.dumps(own | options)}
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import girih, importlib, json\n"
        "module = importlib.import_module('checks.' + sys.argv[2])\n"
        "print('result', json.dumps(getattr(module, sys.argv[3])()))\n"
    )
    folder = str(Path(__file__).resolve().parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", program, folder, module, function],
        env=environ,
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS_MAX,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith("result "):
            found: dict[str, Any] = json.loads(line.removeprefix("result "))
            return found | {"stderr": done.stderr}
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    raise AssertionError(f"{function} ended with status {done.returncode}: {last}")


def trained() -> dict[str, Any]:
    """In a process of its own: gradients, and what swapping did."""
    found: dict[str, Any] = {"digests": digests("cuda"), "peak": torch.cuda.max_memory_allocated()}
    return found | {"swap": swap_stats()}


def refused() -> dict[str, Any]:
    """In a process of its own: the error of a step, and how things stand after it."""
    program, text = Program("cuda"), ""
    for _ in range(2):
        try:
            program.step()
        except torch.OutOfMemoryError as error:
            text = str(error)
    for parameter in program.net.parameters():
        parameter.grad = None
    return {"text": text, "swap": swap_stats(), "left": torch.cuda.memory_allocated()}


def require_swapping() -> None:
    """The other checks need a mode in which what is let go of serves any request."""
    mode = girih_mode()
    if mode not in MODES:
        raise Skip(f"needs Girih in one of the modes {', '.join(MODES)}")
    if "gpu_budget" in json.loads(os.environ.get("GIRIH_OPTIONS") or "{}"):
        raise Skip("the budget of this run is another")


def need() -> tuple[dict[str, list[str]], int]:
    """The gradients, and the bytes at most, where nothing goes."""
    found = started("trained", swap="off")
    return found["digests"], found["peak"]


@alone
def swapping_within_a_budget() -> None:
    """With half of the bytes gradients are equal to the bit, whatever the graphs do."""
    require_swapping()
    expected, peak = need()
    found = started("trained", gpu_budget=peak // 2, host_budget=2 * peak)
    equal(found["digests"], expected, "the gradients")
    swap = found["swap"]
    assert swap["copies_out"] > 0, f"nothing went: {swap}"
    assert swap["copies_in"] > 0, f"nothing came back: {swap}"
    equal(swap["ooms"], 0, "requests that were refused")
    assert found["peak"] <= peak // 2, f"{found['peak']} bytes were in use of {peak // 2}"
    at_rest(swap)
    assert swap["host_pinned"] <= 2 * peak, f"{swap['host_pinned']} bytes are pinned"


@alone
def swapping_within_too_little() -> None:
    """A budget in which a step cannot be is torch.OutOfMemoryError, which names bytes."""
    require_swapping()
    weights = LAYERS * WIDTH * WIDTH * 4
    found = started("refused", gpu_budget=weights + 96 * MIB, host_budget=4 << 30)
    assert "CUDA out of memory" in found["text"], found["text"] or "no error"
    assert "Swapping has" in found["text"], found["text"]
    assert "MiB" in found["text"], found["text"]
    at_rest(found["swap"])


@alone
def swapping_with_a_full_host() -> None:
    """A host that is full is an error too, and everything is given up after it."""
    require_swapping()
    found = started("refused", gpu_budget=512 * MIB, host_budget=64 * MIB)
    assert "host_budget" in found["text"], found["text"] or "no error"
    at_rest(found["swap"])
    assert found["swap"]["host_pinned"] <= 64 * MIB, found["swap"]


def edge() -> dict[str, Any]:
    """In a process of its own: steps with all of the GPU, then with three fifths of the need."""
    program = Program("cuda")
    program.step()
    expected, peak = program.digest(), torch.cuda.max_memory_allocated()
    before = swap_stats()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.6 * peak / total)
    found, text = [], ""
    try:
        for _ in range(STEPS):
            mark_step()
            program.step()
            found.append(program.digest())
    except torch.OutOfMemoryError as error:
        text = str(error)
    return {
        "digests": found,
        "text": text,
        "expected": expected,
        "before": before,
        "swap": swap_stats(),
        "num_ooms": torch.cuda.memory_stats()["num_ooms"],
    }


@alone
def swapping_at_the_edge() -> None:
    """Without a budget a run that would end in out of memory goes on, equal to the bit."""
    require_swapping()
    found = started("edge")
    equal(found["before"].get("copies_out", 0), 0, "copies while there was room")
    equal(found["before"].get("host_pinned", 0), 0, "bytes of the host while there was room")
    equal(found["text"], "", "the error")
    equal(found["digests"], [found["expected"]] * STEPS, "the gradients")
    swap = found["swap"]
    assert swap["averted"] > 0, f"nothing was refused: {swap}"
    assert swap["at_the_edge"], swap
    equal((swap["ooms"], found["num_ooms"]), (0, 0), "requests that were refused")
    at_rest(swap)
    said = found["stderr"].count("the GPU's memory was full")
    equal(said, 1, "times that it was said")


@alone
def swapping_off() -> None:
    """With `swap=off` the same run ends in out of memory, and nothing of swapping is there."""
    require_swapping()
    found = started("edge", swap="off")
    assert "CUDA out of memory" in found["text"], found["text"] or "it went on"
    assert "Swapping" not in found["text"], found["text"]
    equal(found["swap"], {"ooms": 1}, "what is said of swapping")
    equal(found["num_ooms"], 1, "num_ooms")


@alone
def saved_tensors() -> None:
    """Under every allocator: gradients of all these programs are the same each time."""
    found = digests("cuda", size=(4, 256, 1024))
    for way, each in found.items():
        equal(len(set(each)), 1, f"different gradients of {way}")
