"""How many tokens of a layer are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from girih._long.part import Alpha, Part

UNIT = 128
"""Kernels work on tiles of so many rows: parts of whole tiles are computed like the whole."""

STEPS_BEFORE = 2
"""Steps of optimizers before the peak is believed: the first makes states, the second has them."""

SPARE = 0.02
"""Of the budget: what is asked for besides is not the same in every step."""


class Share(Protocol):
    """Decides for each layer and pass."""

    is_free: bool
    """Nobody has asked for these parts: a layer may keep all or nothing instead."""

    def is_worth_it(self, layer: int, tokens: int) -> bool:
        """Whether passes of so many tokens are looked at at all."""

    def part(self, layer: int, tokens: int, bytes_per_token: float) -> Part:
        """What is kept: how many of the first tokens, all if the pass is not to be split.

        `bytes_per_token` is what can be cut of each token; 0 where it is not known yet.
        """


class Fixed:
    """The same part of every pass: Memo's alpha, one for all layers or one for each."""

    is_free = False

    def __init__(self, alpha: Alpha | Sequence[Alpha], least_tokens: int) -> None:
        self.alpha = alpha
        self.least_tokens = least_tokens

    def is_worth_it(self, layer: int, tokens: int) -> bool:
        """From the least on, where not everything is kept anyway."""
        return tokens >= self.least_tokens and self._of(layer) != 1

    def part(self, layer: int, tokens: int, bytes_per_token: float) -> Part:
        """Rounded down to whole tiles, where there are some."""
        alpha = self._of(layer)
        if isinstance(alpha, str):
            return Part(0, products=True)
        return Part(rounded(alpha * tokens, tokens))

    def _of(self, layer: int) -> Alpha:
        return self.alpha if isinstance(self.alpha, (int, float, str)) else self.alpha[layer]


class Filling:
    """As much as the budget holds, found by running.

    At first nothing is kept that can be computed again. When the optimizer has its states, what the
    budget has above the peak is filled with layers that are kept whole, from the last, which are
    needed first, and one in part. If the peak goes over the budget after that, as much is given
    back. A model that fits without is left alone from then on.
    """

    is_free = True

    def __init__(
        self,
        budget: int,
        layers: int,
        least_tokens: int,
        *,
        peak: Callable[[], int],
        steps: Callable[[], int],
    ) -> None:
        self.budget = budget
        self.layers = layers
        self.least_tokens = least_tokens
        self.peak = peak
        """The most bytes that there were of tensors, so far."""
        self.steps = steps
        """Steps of optimizers, so far."""
        self.room: int | None = None
        """Bytes of a pass that are kept of what could be cut; None while it is not known."""
        self.peak_seen = 0

    def is_worth_it(self, layer: int, tokens: int) -> bool:
        """From the least on."""
        return tokens >= self.least_tokens

    def part(self, layer: int, tokens: int, bytes_per_token: float) -> Part:
        """From the last layer on, whole ones as long as there is room."""
        if layer == 0:
            self._look()
        if self.room is None or bytes_per_token <= 0:
            return Part(0)
        behind = self.layers - 1 - layer
        rest = self.room / bytes_per_token - behind * tokens
        return Part(rounded(min(max(rest, 0), tokens), tokens))

    def _look(self) -> None:
        if self.steps() < STEPS_BEFORE:
            return
        peak, limit = self.peak(), int(self.budget * (1 - SPARE))
        if self.room is None:
            self.room, self.peak_seen = max(0, limit - peak), max(peak, limit)
        elif peak > self.peak_seen:
            self.room = max(0, self.room - (peak - self.peak_seen))
            self.peak_seen = peak


def rounded(kept: float, tokens: int) -> int:
    """Whole tiles, but all tokens stay all of them."""
    if kept >= tokens:
        return tokens
    unit = UNIT if tokens >= 2 * UNIT else 1
    return max(0, int(kept) // unit * unit)
