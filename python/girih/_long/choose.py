"""Which way is the fastest, where what is kept may go to the host: found by trying.

What a link can hide is a matter of the layers, the link, the budget and all that runs besides. So
each way trains for a few steps, all of which give the same bits, and the fastest stays.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from girih._long.part import Held, Part
from girih._long.share import GUESS

STEPS = 4
"""Optimizer steps of each way."""
STEPS_TIMED = 2
"""The last of these are timed: in those before, layers are compared and swapping finds a policy.
One alone may be a step in which layers are compared again: the faster counts."""
WAYS = ("nothing", "products", "whole")
"""What is kept, on the GPU or on the host. In this order each needs more of the host."""


class Mark(Protocol):
    """A moment."""

    def is_past(self) -> bool:
        """Whether the device has come to it."""

    def since(self, other: Any) -> float:
        """Seconds between two moments that are past."""


class OnGpu:
    """When the current stream comes to where it is now."""

    def __init__(self) -> None:
        self._event: Any = torch.cuda.Event(enable_timing=True)
        self._event.record()

    def is_past(self) -> bool:
        """Asks, and does not wait."""
        return bool(self._event.query())

    def since(self, other: OnGpu) -> float:
        """By the device's own clock."""
        return float(other._event.elapsed_time(self._event)) / 1e3


class OnCpu:
    """Now."""

    def __init__(self) -> None:
        self._seconds = time.perf_counter()

    def is_past(self) -> bool:
        """It is."""
        return True

    def since(self, other: OnCpu) -> float:
        """By the clock of this machine."""
        return self._seconds - other._seconds


@dataclasses.dataclass
class Step:
    """One of an optimizer."""

    way: int
    is_timed: bool
    begin: Mark
    end: Mark | None = None
    tokens: int = 0


class Choosing:
    """Tries the ways one after another, then keeps to the fastest.

    A way for which the host has too little memory is left out. Lengths may differ: what is compared
    are seconds for each token, of the faster of the steps that are timed.
    """

    def __init__(
        self,
        layers: int,
        least_tokens: int,
        host_budget: int,
        *,
        steps: Callable[[], int],
        now: Callable[[], Mark],
    ) -> None:
        self.layers = layers
        self.least_tokens = least_tokens
        self.host_budget = host_budget
        self.steps = steps
        """Steps of optimizers, so far."""
        self.now = now
        self.way = 0
        self.is_chosen = False
        self.seconds: dict[str, float] = {}
        """For each token, of every way that was tried."""
        self._last = layers
        """The layer that was asked for last."""
        self._count = 0
        """Steps that were begun in this way."""
        self._steps_seen = -1
        self._open: Step | None = None
        self._closed: list[Step] = []

    def is_worth_it(self, layer: int, tokens: int) -> bool:
        """From the least on."""
        return tokens >= self.least_tokens

    def part(self, layer: int, tokens: int, held: Held) -> Part:
        """As the way says that is tried, or was chosen."""
        if layer <= self._last and not self.is_chosen:
            # Another pass. The first layer may have been left alone.
            self._look(tokens, held)
        self._last = layer
        way = WAYS[self.way]
        return Part(tokens if way == "whole" else 0, products=way == "products")

    def report(self) -> dict[str, Any]:
        """What was chosen, empty until then; and microseconds for each token of what was tried."""
        return {
            "way": WAYS[self.way] if self.is_chosen else "",
            "us_per_token": {way: 1e6 * seconds for way, seconds in self.seconds.items()},
        }

    def _look(self, tokens: int, held: Held) -> None:
        if self.steps() != self._steps_seen:
            self._steps_seen = self.steps()
            self._begin(tokens, held)
        if self._open is not None:
            self._open.tokens += tokens

    def _begin(self, tokens: int, held: Held) -> None:
        """A step of the optimizer begins."""
        mark = self.now()
        if self._open is not None:
            self._open.end = mark
            if self._open.is_timed:
                self._closed.append(self._open)
            self._open = None
        while self._count >= STEPS and self.way < len(WAYS) - 1:
            self.way += 1
            # One that has no room is passed over.
            self._count = 0 if self._has_room(tokens, held) else STEPS
        if self._count >= STEPS:
            if all(step.end is not None and step.end.is_past() for step in self._closed):
                self._choose()
            return
        self._count += 1
        self._open = Step(self.way, self._count > STEPS - STEPS_TIMED, mark)

    def _has_room(self, tokens: int, held: Held) -> bool:
        able = held.whole - held.nothing
        each = held.whole if WAYS[self.way] == "whole" else held.nothing + GUESS * able
        return each * tokens * self.layers <= self.host_budget

    def _choose(self) -> None:
        for way, name in enumerate(WAYS):
            times = [
                step.end.since(step.begin) / step.tokens
                for step in self._closed
                if step.way == way and step.end is not None and step.tokens
            ]
            if times:
                # In the other one layers may have been compared.
                self.seconds[name] = min(times)
        self.way = WAYS.index(min(self.seconds, key=lambda name: self.seconds[name]))
        self.is_chosen = True
        self._closed.clear()


def host_memory() -> int:
    """Bytes that swapping takes of the host where nothing was said: half of what is available."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024 // 2
    return 0
