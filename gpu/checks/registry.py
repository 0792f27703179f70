"""What checks are made with: how one is entered and skipped, and what many of them use."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

MIB = 1 << 20
# Of a process that a check runs in, or that a check starts.
CHILD_SECONDS_MAX = 300


class Skip(Exception):
    """The check needs something that is not here."""


Check = Callable[[], None]
# In the order in which they run.
CHECKS: dict[str, Check] = {}
# Those that run in a process of their own.
ALONE: set[str] = set()


def check(function: Check) -> Check:
    """A check that runs in this process."""
    CHECKS[function.__name__] = function
    return function


def alone(function: Check) -> Check:
    """A check that runs in a process of its own."""
    ALONE.add(function.__name__)
    return check(function)


def blank(mebibytes: float, device: str | int = "cuda") -> torch.Tensor:
    """A tensor of that many MiB, not written to."""
    return torch.empty(int(mebibytes * MIB), dtype=torch.uint8, device=device)


def girih_mode() -> str | None:
    """The mode in which Girih serves device 0; None under torch's own allocator."""
    if "girih" not in sys.modules:
        return None
    import girih

    if not girih.is_enabled():
        return None
    # A heap is made by the first request of its device.
    torch.empty(1, device="cuda:0")
    return girih.stats(0)["mode"]


def equal(found: object, expected: object, what: str) -> None:
    """Fails with both values."""
    assert found == expected, f"{what} is {found}, not {expected}"


def train(steps: int = 3, device: str = "cuda") -> float:
    """A small model, a few steps. Gives the last loss."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(512, 512) for _ in range(4)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(64, 512, device=device)
    loss = torch.zeros(())
    for _ in range(steps):
        loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()
