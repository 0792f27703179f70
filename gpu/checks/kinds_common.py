"""What the programs of `kinds_*.py` share: what they learnt, and how.

A program is a function of a `Notes`, which says on which device it is and takes down what came of
it. Saved tensors have a MiB or two: narrow and long, so that a CPU is soon through.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

ROWS, WIDTH = 4096, 64
"""Of a tensor of one MiB in float32."""
STEPS = 3


class Notes:
    """What a program was given and what came of it."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.digests: list[str] = []

    def __call__(self, *tensors: Tensor | None) -> None:
        """Takes down the bits of these."""
        for tensor in tensors:
            if tensor is None:
                self.digests.append("none")
                continue
            plain = tensor.detach()
            if plain.is_sparse:
                plain = plain.coalesce()
                self(plain.indices(), plain.values())
                continue
            plain = plain.resolve_conj().resolve_neg().contiguous().cpu()
            words = plain.reshape(-1).view(torch.uint8).numpy()
            self.digests.append(hashlib.sha256(words.tobytes()).hexdigest()[:16])

    def model(self, model: nn.Module) -> None:
        """Takes down gradients, parameters and buffers."""
        for parameter in model.parameters():
            self(parameter.grad, parameter)
        self(*model.buffers())

    def randn(self, *shape: int, **more: Any) -> Tensor:
        """Drawn on the host, so that devices agree."""
        return torch.randn(*shape).to(self.device).requires_grad_(more.get("requires_grad", False))

    def integers(self, high: int, *shape: int) -> Tensor:
        """Below `high`."""
        return torch.randint(0, high, shape).to(self.device)

    def train(
        self,
        model: nn.Module,
        loss_of: Callable[[int], Tensor],
        *,
        steps: int = STEPS,
        optimizer: torch.optim.Optimizer | None = None,
        parameters: Iterable[Tensor] | None = None,
    ) -> None:
        """Steps of AdamW, unless another is given; losses and what came of the model."""
        of = list(parameters if parameters is not None else model.parameters())
        optimizer = optimizer or torch.optim.AdamW(of, lr=1e-3)
        for number in range(steps):
            optimizer.zero_grad()
            loss = loss_of(number)
            loss.backward()
            optimizer.step()
            self(loss)
        self.model(model)


Program = Callable[[Notes], None]


class Feed(nn.Module):
    """A residual perceptron."""

    def __init__(self, width: int = WIDTH, times: int = 2) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, times * width), nn.Linear(times * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape as came in."""
        y: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return y


def stack(layers: int = 4, width: int = WIDTH) -> nn.Sequential:
    """Layers of the kind above."""
    return nn.Sequential(*(Feed(width) for _ in range(layers)))
