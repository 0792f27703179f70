"""How many tokens of a layer are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from girih._long.part import Alpha, Held, Part

UNIT = 128
"""Kernels work on tiles of so many rows: parts of whole tiles are computed like the whole."""

STEPS_BEFORE = 2
"""Steps of optimizers before the peak is believed: the first makes states, the second has them."""

SPARE = 0.02
"""Of the budget: what is asked for besides is not the same in every step."""


GUESS = 0.75
"""What products are of all that can be computed again, until a step has shown it."""


class Share(Protocol):
    """Decides for each layer and pass."""

    def is_worth_it(self, layer: int, tokens: int) -> bool:
        """Whether passes of so many tokens are looked at at all."""

    def part(self, layer: int, tokens: int, held: Held) -> Part:
        """What is kept: how many of the first tokens, all if the pass is not to be split.

        `held` is what the layer was seen to hold.
        """


class Fixed:
    """The same part of every pass: Memo's alpha, one for all layers or one for each."""

    def __init__(self, alpha: Alpha | Sequence[Alpha], least_tokens: int) -> None:
        self.alpha = alpha
        self.least_tokens = least_tokens

    def is_worth_it(self, layer: int, tokens: int) -> bool:
        """From the least on, where not everything is kept anyway."""
        return tokens >= self.least_tokens and self._of(layer) != 1

    def part(self, layer: int, tokens: int, held: Held) -> Part:
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
    budget has above the peak is filled: with the products of as many layers as there is room for,
    from the last, which are needed first; where those of all layers are kept, with layers that are
    kept whole. For each byte a product saves more time than what else a layer saves does. If the
    peak goes over the budget after that, as much is given back. A model that fits without is left
    alone from then on.
    """

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
        self.products = GUESS
        """Of what can be computed again, the part that products are: as the layer that was asked
        for last has shown it, for layers are alike."""
        self.last = layers
        """The layer that was asked for last."""

    def is_worth_it(self, layer: int, tokens: int) -> bool:
        """From the least on."""
        return tokens >= self.least_tokens

    def part(self, layer: int, tokens: int, held: Held) -> Part:
        """From the last layer on, products; then, if those are all kept, whole ones."""
        if layer <= self.last:
            # Another pass. The first layer may have been left alone.
            self._look()
        self.last = layer
        able = held.whole - held.nothing
        if self.room is None or able <= 0:
            return Part(0)
        if held.products:
            self.products = (held.products - held.nothing) / able
        products = min(max(self.products * able, 1.0), able)
        # Of this layer and those behind it; then of all, and of those again.
        behind, room = self.layers - layer, self.room / tokens
        if room >= self.layers * products + behind * (able - products):
            return Part(tokens)
        return Part(0, products=room >= behind * products)

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
