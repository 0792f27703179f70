"""What the programs share: the settings of one run, and a transformer's layer.

Sizes are drawn on the host by a generator of the run's own, data on the device by torch's. Widths
and lengths have two values, one for a GPU and one for a try on the CPU.
"""

import dataclasses
import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Step = Callable[[int], Tensor]
"""Trains for the step of this number, counted from 0, and gives its loss."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What the command line asks for."""

    device: torch.device
    seed: int
    steps: int
    size: float
    """Batches are this many times as large as they come."""
    tiny: bool
    """Models are small enough for a try on the CPU."""
    draw: random.Random
    """Draws sizes and shapes."""

    def batch(self, samples: float) -> int:
        """So many samples, scaled; at least one."""
        return max(1, round(samples * self.size))

    def width(self, full: int, tiny: int) -> int:
        """A size of the model or of a sample."""
        return tiny if self.tiny else full

    def autocast(self, dtype: torch.dtype = torch.bfloat16) -> torch.autocast:
        """Mixed precision. On the CPU always bfloat16: not all kernels there know float16."""
        on_cpu = self.device.type == "cpu"
        return torch.autocast(self.device.type, torch.bfloat16 if on_cpu else dtype)


class Cache:
    """Keys and values of the tokens so far, in one layer."""

    def __init__(self) -> None:
        self.kept: Tensor | None = None

    def grow(self, pair: Tensor) -> Tensor:
        """Adds tokens, and gives all there are. Shape: 2, batch, heads, tokens, width."""
        self.kept = pair if self.kept is None else torch.cat([self.kept, pair], dim=3)
        return self.kept

    def select(self, rows: Tensor) -> None:
        """Keeps these samples of the batch."""
        if self.kept is not None:
            self.kept = self.kept.index_select(1, rows)


class Attention(nn.Module):
    """Attention of several heads to the sample itself."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        """Tokens of shape batch, tokens, width. The mask says what may be attended to."""
        batch, tokens, width = x.shape
        split = self.project(x).view(batch, tokens, 3, self.heads, width // self.heads)
        query, *pair = split.permute(2, 0, 3, 1, 4)
        key, value = cache.grow(torch.stack(pair)) if cache else pair
        # One token after others attends to all of them.
        causal = self.causal and tokens > 1
        seen = functional.scaled_dot_product_attention(query, key, value, mask, is_causal=causal)
        attended: Tensor = self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        return attended


class Layer(nn.Module):
    """A transformer's layer, normalized before."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.first = nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.second = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        """The same shape as came in."""
        x = x + self.attention(self.first(x), mask, cache)
        after: Tensor = x + self.feed(self.second(x))
        return after
