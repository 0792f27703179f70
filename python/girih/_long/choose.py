"""Which way is the fastest, where what is kept may go to the host: found by trying.

What a link can hide is a matter of the layers, the link, the budget and all that runs besides, and
of how copies get into each other's way, which no model of it has. So each way trains for a few
steps, all of which give the same bits, and the fastest stays.

Memo (Zhao et al., SIGMOD 2025, section 4.1) has a linear program for the part of the tokens that
goes. Its ends are what this begins with: nothing, all, and what the host's memory has room for.
Between them a step takes the longer of two times, what is computed and what is copied. Both are
linear in how many layers keep more, so that the step's is convex: where the least can be follows
from what was tried, and is tried next.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from girih._long.part import Held, Part
from girih._long.share import GUESS

STEPS = 4
"""Optimizer steps of each way at least. The first two are not timed: layers are compared in them,
and swapping finds a policy. The fastest of the others counts: layers may be compared again."""
STEPS_UNTIMED = 2
STEPS_MOST = 24
"""Of a way for which swapping still tries plans."""
SLOWER = 1.1
"""A way that takes so much longer than another is not waited for until it has settled. The first
plan's step takes up to 1.05 of the last's, of eight in nine recordings (bench/results/swap.md)."""
WAYS = ("nothing", "products", "whole")
"""What is kept, on the GPU or on the host. In this order each needs more of the host."""
GAIN = 0.01
"""What a way between two others must promise to be tried, of a step."""
MIXES = 4
"""Ways between others at most."""


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

    level: int
    is_timed: bool
    begin: Mark
    end: Mark | None = None
    tokens: int = 0


class Choosing:
    """Tries the ways one after another, then keeps to the fastest.

    A way is a *level*: 0 keeps nothing of any layer, each one more the next way of one layer more,
    so that of `n` layers `n` keeps all products, and `2 n` everything. Levels for which the host
    has too little memory are left out. Lengths may differ: what is compared are seconds for each
    token, of the fastest step that is timed.
    """

    def __init__(
        self,
        layers: int,
        least_tokens: int,
        host_budget: int,
        *,
        steps: Callable[[], int],
        now: Callable[[], Mark],
        is_settled: Callable[[], bool],
    ) -> None:
        self.layers = layers
        self.least_tokens = least_tokens
        self.host_budget = host_budget
        self.steps = steps
        """Steps of optimizers, so far."""
        self.now = now
        self.is_settled = is_settled
        """Whether swapping has tried its plans for the steps as they are now."""
        self.level = 0
        self.is_chosen = False
        self.seconds: dict[int, float] = {}
        """For each token, of every level that was tried."""
        self._given_up: set[int] = set()
        """Levels that were too slow to wait for: they may take less than was seen."""
        self._last = layers
        """The layer that was asked for last."""
        self._count = 0
        """Steps that were begun at this level."""
        self._top = 0
        """The highest that was tried."""
        self._mixes = 0
        self._most_tokens = 0
        """Of a pass."""
        self._steps_seen = -1
        self._open: Step | None = None
        self._closed: list[Step] = []
        """Timed, and not known to be past."""

    def is_worth_it(self, layer: int, tokens: int) -> bool:
        """From the least on."""
        return tokens >= self.least_tokens

    def part(self, layer: int, tokens: int, held: Held) -> Part:
        """As the way says that is tried, or was chosen."""
        if layer <= self._last and not self.is_chosen:
            # Another pass. The first layer may have been left alone.
            self._look(tokens, held)
        self._last = layer
        way = WAYS[self._way_of(layer)]
        return Part(tokens if way == "whole" else 0, products=way == "products")

    def report(self) -> dict[str, Any]:
        """What was chosen, empty until then; and microseconds for each token of what was tried."""
        return {
            "way": self.name(self.level) if self.is_chosen else "",
            "us_per_token": {self.name(at): 1e6 * it for at, it in sorted(self.seconds.items())},
        }

    def name(self, level: int) -> str:
        """Of a level, for people."""
        way, more = divmod(level, self.layers)
        if not more:
            return WAYS[way]
        return f"{WAYS[way + 1]} of {more} of {self.layers} layers, {WAYS[way]} of the others"

    def _way_of(self, layer: int) -> int:
        """Those that keep more lie evenly among the others, so that copies do. The last does: its
        backward pass is the first, and what it keeps need not go."""
        way, more = divmod(self.level, self.layers)
        return way + (layer + 1) * more // self.layers - layer * more // self.layers

    def _look(self, tokens: int, held: Held) -> None:
        self._most_tokens = max(self._most_tokens, tokens)
        if self.steps() != self._steps_seen:
            self._steps_seen = self.steps()
            self._begin(held)
        if self._open is not None:
            self._open.tokens += tokens

    def _begin(self, held: Held) -> None:
        """A step of the optimizer begins."""
        mark = self.now()
        if self._open is not None:
            self._open.end = mark
            if self._open.is_timed:
                self._closed.append(self._open)
            self._open = None
        self._read()
        if self._is_tried():
            if self._closed:
                # The device is behind: the run goes on as it is.
                return
            level = self._next(held)
            if level is None:
                self.level = min(self.seconds, key=self.seconds.__getitem__, default=0)
                self.is_chosen = True
                return
            self.level, self._count = level, 0
        self._count += 1
        self._open = Step(self.level, self._count > STEPS_UNTIMED, mark)

    def _read(self) -> None:
        """Times of what is past."""
        while self._closed:
            step = self._closed[0]
            if step.end is None or not step.end.is_past():
                return
            del self._closed[0]
            if step.tokens:
                seconds = step.end.since(step.begin) / step.tokens
                self.seconds[step.level] = min(seconds, self.seconds.get(step.level, math.inf))

    def _is_tried(self) -> bool:
        if self._count < STEPS:
            return False
        if self._count >= STEPS_MOST or self.is_settled():
            return True
        # While nothing of it is known, it is no slower than the others.
        if self.seconds.get(self.level, 0) > SLOWER * min(self.seconds.values(), default=0):
            self._given_up.add(self.level)
        return self.level in self._given_up

    def _next(self, held: Held) -> int | None:
        """The level that is tried after this one; none if that is enough."""
        most = self._level_with_room(held)
        for level in (min(self.layers, most), min(2 * self.layers, most)):
            if level > self._top and self._may_mix(level):
                self._top = level
                return level
        levels = sorted(self.seconds)
        best = min(levels, key=self.seconds.__getitem__, default=0)
        # The widest first, then by what its middle takes at least.
        between = [
            (low - high, least, (low + high) // 2)
            for low, high in itertools.pairwise(levels)
            if best in (low, high)
            and high - low > 1
            and (least := self._least_between(low, high)) < (1 - GAIN) * self.seconds[best]
        ]
        if not between or not self._may_mix(min(between)[-1]):
            return None
        return min(between)[-1]

    def _may_mix(self, level: int) -> bool:
        """Counts those that are no whole ways."""
        self._mixes += level % self.layers > 0
        return self._mixes <= MIXES

    def _least_between(self, low: int, high: int) -> float:
        """A convex function is above the lines through the two points on each side. Where products
        end and the rest begins it may bend the other way, so that lines end there."""
        begin = low // self.layers * self.layers
        levels = [it for it in sorted(self.seconds) if begin <= it <= begin + self.layers]
        at, middle, least = levels.index(low), (low + high) // 2, 0.0
        for pair in (levels[max(0, at - 1) : at + 1], levels[at + 1 : at + 3]):
            if len(pair) == 2 and self._given_up.isdisjoint(pair):
                (left, right), (one, other) = pair, (self.seconds[it] for it in pair)
                slope = (other - one) / (right - left)
                least = max(least, one + slope * (middle - left))
        return least

    def _level_with_room(self, held: Held) -> int:
        """The most that the host has room for, if all of it went."""
        able = held.whole - held.nothing
        products = held.products or held.nothing + GUESS * able
        each = [it * self._most_tokens for it in (held.nothing, products, held.whole)]
        room, level = self.host_budget - self.layers * each[0], 0
        for more in (each[1] - each[0], each[2] - each[1]):
            if room < 0:
                break
            fits = self.layers if room >= self.layers * more else max(0, int(room // more))
            level += fits
            room -= fits * more
            if fits < self.layers:
                break
        return level


def host_memory() -> int:
    """Bytes that swapping takes of the host where nothing was said: half of what is available."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024 // 2
    return 0
