"""Those that choose kernels, and allocate as they do: torch.compile and cuDNN's benchmark."""

from __future__ import annotations

import os
from typing import Any

import torch

from checks.registry import Skip, alone, check, equal


def compiled(mode: str | None) -> None:
    """Trains a compiled model and an eager one alike."""
    if os.environ.get("GIRIH_PARITY_NO_COMPILE"):
        raise Skip("GIRIH_PARITY_NO_COMPILE is set")
    results = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model: Any = torch.nn.Sequential(
            torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 128)
        ).cuda()
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        if is_compiled:
            model = torch.compile(model, mode=mode)
        inputs = torch.randn(32, 128, device="cuda")
        for _ in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            loss = (model(inputs) - inputs).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(loss.item())
    assert abs(results[0] - results[1]) < 1e-3, f"the losses are {results}"


@alone
def compile_default() -> None:
    """torch.compile in its default mode."""
    compiled(None)


@alone
def compile_reduce_overhead() -> None:
    """torch.compile with mode="reduce-overhead": graph trees, with checkpoints of their pool."""
    compiled("reduce-overhead")


@check
def cudnn_benchmark() -> None:
    """cudnn.benchmark asks how much workspace there could be, and finds an algorithm."""
    if not torch.backends.cudnn.is_available():
        raise Skip("there is no cuDNN")
    torch.backends.cudnn.benchmark = True
    try:
        convolution = torch.nn.Conv2d(16, 32, 3, padding=1).cuda()
        output = convolution(torch.randn(4, 16, 64, 64, device="cuda"))
        output.sum().backward()
        equal(tuple(output.shape), (4, 32, 64, 64), "the shape")
    finally:
        torch.backends.cudnn.benchmark = False
