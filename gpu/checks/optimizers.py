"""States of optimizers: between steps they may go to the host, and whoever reads them finds them.

A model is trained by AdamW in a process that swaps nothing, and in one with a budget that its steps
fit into only if states are away while a large temporary is there. Losses, parameters and states
must be equal to the bit. The program takes a device, so that a test runs it without a GPU.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from checks.registry import MIB, alone, equal
from checks.swapping import Net, at_rest, require_swapping, started, swap_stats

# Weights are 320 MiB, states twice as much; each layer saves two tensors of 8 MiB.
LAYERS, WIDTH, ROWS = 20, 2048, 1024
# There in the forward pass, with weights and states and without gradients.
SCRATCH = 800 * MIB
STEPS = 8
# The steps in the midst of which the states are read, and are loaded again.
READ_AT, LOADED_AT = 4, 6


def digest(tensors: list[torch.Tensor]) -> str:
    """Of their contents."""
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().cpu().numpy().tobytes())
    return whole.hexdigest()


def states_of(found: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors of what `state_dict` gives, in order."""
    every = [state for _, state in sorted(found["state"].items())]
    return [state[name] for state in every for name in ("exp_avg", "exp_avg_sq")]


def on_host(found: dict[str, Any]) -> dict[str, Any]:
    """The same in memory of the host, as a checkpoint has it."""
    states = {
        number: {name: value.detach().to("cpu", copy=True) for name, value in state.items()}
        for number, state in found["state"].items()
    }
    return found | {"state": states}


class Trained:
    """A model, its optimizer, and what a step needs besides."""

    def __init__(self, device: str, size: tuple[int, int, int], scratch: int, **more: Any) -> None:
        layers, width, rows = size
        torch.manual_seed(7)
        self.net = Net(layers, width).to(device)
        self.x = torch.randn(rows, width, device=device)
        self.scratch = scratch
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3, **more)

    def one(self) -> torch.Tensor:
        """A one, out of a tensor that no hook sees."""
        return torch.ones(self.scratch // 4, device=self.x.device).amax()

    def forward(self) -> torch.Tensor:
        """The loss, with the temporary in the middle of it."""
        return self.net(self.x).square().mean() * self.one()

    def finish(self, loss: torch.Tensor) -> None:
        """Backward, and the optimizer's step."""
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def trained(
    device: str,
    size: tuple[int, int, int] = (LAYERS, WIDTH, ROWS),
    scratch: int = SCRATCH,
    **more: Any,
) -> dict[str, Any]:
    """Losses of all steps, what was read in the midst of one, and what there is in the end."""
    program, losses, kept = Trained(device, size, scratch, **more), [], {}
    read = ""
    for step in range(STEPS):
        loss = program.forward()
        if step == READ_AT:
            # States that are away come back for whoever asks, between any two operators.
            kept = on_host(program.optimizer.state_dict())
            read = digest(states_of(kept))
        if step == LOADED_AT:
            # Those that are away are given up.
            program.optimizer.load_state_dict(kept)
        losses.append(loss.detach())
        program.finish(loss)
        del loss
    parameters = digest(list(program.net.parameters()))
    states = digest(states_of(program.optimizer.state_dict()))
    found = {"losses": [loss.item() for loss in losses], "read": read}
    return found | {"parameters": parameters, "states": states}


def trained_here() -> dict[str, Any]:
    """In a process of its own: what came of it, and what swapping did."""
    found = trained("cuda", fused=True)
    peak = torch.cuda.max_memory_allocated()
    return found | {"peak": peak, "swap": swap_stats()}


def need() -> dict[str, Any]:
    """In a process of its own: bytes between steps, and at most in an optimizer's step."""
    program = Trained("cuda", (LAYERS, WIDTH, ROWS), SCRATCH, fused=True)
    most = 0
    for _ in range(2):
        loss = program.forward()
        loss.backward()
        torch.cuda.reset_peak_memory_stats()
        program.optimizer.step()
        most = torch.cuda.max_memory_allocated()
        program.optimizer.zero_grad()
        del loss
    return {"between": torch.cuda.memory_allocated(), "step": most}


@alone
def states_of_an_optimizer() -> None:
    """Within a budget that needs states away, training is equal to the bit, and they are found."""
    require_swapping()
    needs = started("need", module="optimizers", swap="off")
    must = needs["between"] + SCRATCH
    assert needs["step"] + 128 * MIB < must, f"the program needs no states away: {needs}"
    room = (needs["step"] + must) // 2
    # See `settings::room`: a hundredth and 32 MiB less than the budget are in use.
    budget = (room + 32 * MIB) * 100 // 99
    expected = started("trained_here", module="optimizers", swap="off")
    found = started(
        "trained_here", module="optimizers", gpu_budget=budget + 2 * MIB, host_budget=8 << 30
    )
    assert found["peak"] <= budget + 2 * MIB, f"{found['peak']} bytes were in use of {budget}"
    for name in ("losses", "read", "states", "parameters"):
        equal(found[name], expected[name], name)
    swap = found["swap"]
    assert swap["states_out"] > 0, f"no states went: {swap}"
    assert swap["states_in"] > 0, f"no states came back: {swap}"
    assert swap["states_asked"] > 0, f"nobody asked for states: {swap}"
    equal(swap["ooms"], 0, "requests that were refused")
    at_rest(swap)
