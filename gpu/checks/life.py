"""A program's life: it trains, saves and loads, trains again alike, and ends in its own way."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from checks.registry import CHILD_SECONDS_MAX, check, equal, train


@check
def checkpoint() -> None:
    """torch.save and torch.load of model and optimizer, and training that goes on from there."""
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 256, device="cuda")).sum().backward()
    optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        loaded = torch.load(path, map_location="cuda")
    for name, value in model.state_dict().items():
        assert torch.equal(loaded["model"][name], value), f"{name} differs"
    optimizer.load_state_dict(loaded["optimizer"])
    model(torch.randn(4, 256, device="cuda")).sum().backward()
    optimizer.step()


@check
def training_repeats() -> None:
    """The same seed gives the same loss, to the bit."""
    equal(train(), train(), "the second loss")


def run_code(code: str) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=CHILD_SECONDS_MAX,
        check=False,
    )


@check
def exit_with_live_tensors() -> None:
    """A program that ends with tensors, streams and threads alive ends well."""
    code = """
import threading, torch
held = [torch.ones(1 << 20, device="cuda") for _ in range(8)]
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    late = held[0] * 2
held[1].record_stream(side)
class Holder:
    def __init__(self): self.tensor = torch.ones(1 << 20, device="cuda"); self.me = self
Holder()
threading.Thread(target=lambda: torch.ones(1 << 20, device="cuda")).start()
"""
    result = run_code(code)
    equal(result.returncode, 0, f"the exit status ({result.stderr.strip()[-300:]})")


@check
def exit_by_exception() -> None:
    """A program that dies of an exception has Python's exit status, and no second error."""
    result = run_code("import torch\nx = torch.ones(1 << 20, device='cuda')\nraise KeyError('me')")
    equal(result.returncode, 1, "the exit status")
    last = result.stderr.strip().splitlines()[-1]
    equal(last, "KeyError: 'me'", "the last line")
