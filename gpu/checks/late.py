"""Rounds of a program in which a side stream reads what its owner has freed already.

A tensor of the main stream is read by a side stream that nobody recorded on it (`record_stream`),
and freed before the main stream waits for the side stream. That is sound under torch's own
allocator: the bytes go to the main stream alone, and to it only after the wait. An allocator that
gives them to a third stream must find the order by itself. The third stream here asks at once for
as much as was freed, which lies in several holes between tensors that are kept. Every element that
is read is compared on the device, and what is wrong is counted there.
"""

from __future__ import annotations

import random

import torch

from checks.registry import MIB

SMALLEST_MIB, LARGEST_MIB = 4, 64
BLOCKS_MAX = 32
# Freed in a round, at most.
VICTIMS_MAX = 3
# The side stream is late in one round of so many, by up to about two thirds of a millisecond.
LATE_EVERY = 6
LATE_CYCLES_MAX = 1_200_000
# So that a value does not come back soon, and no element of an int32 overflows.
VALUES = 1 << 30


class Rounds:
    """The program, and its counters on the device."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.main = torch.cuda.Stream()
        self.side = torch.cuda.Stream()
        self.third = torch.cuda.Stream()
        self.done = 0
        self.value = 0
        self.kept: list[tuple[torch.Tensor, int]] = []
        # A large tensor of the third stream, which lives from one round into the next.
        self.large: tuple[torch.Tensor, int] | None = None
        self.wrong_of_side = torch.zeros((), dtype=torch.int64, device="cuda")
        self.wrong_of_third = torch.zeros((), dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()

    def filled(self, count: int) -> tuple[torch.Tensor, int]:
        """A tensor of so many int32 on the current stream, filled with a value of its own."""
        self.value = self.value % VALUES + 1
        tensor = torch.empty(count, dtype=torch.int32, device="cuda")
        return tensor.fill_(self.value), self.value

    def refill(self) -> None:
        """New tensors of the main stream in the place of those that went. Most are small."""
        with torch.cuda.stream(self.main):
            while len(self.kept) < BLOCKS_MAX:
                part = self.chance.random()
                mebibytes = SMALLEST_MIB * (LARGEST_MIB / SMALLEST_MIB) ** part
                self.kept.append(self.filled(int(mebibytes * MIB) // 4))

    def read_late(self, victims: list[tuple[torch.Tensor, int]]) -> None:
        """The side stream reads what the main stream has written, now and then after a delay."""
        self.side.wait_stream(self.main)
        with torch.cuda.stream(self.side):
            if self.chance.randrange(LATE_EVERY) == 0:
                torch.cuda._sleep(self.chance.randrange(LATE_CYCLES_MAX))
            for tensor, value in victims:
                self.wrong_of_side += (tensor != value).sum()

    def let_go(self) -> None:
        """The third stream's tensor, if it has one, is read for the last time and freed."""
        if self.large is not None:
            tensor, value = self.large
            with torch.cuda.stream(self.third):
                self.wrong_of_third += (tensor != value).sum()
            self.large = None

    def round(self) -> None:
        """One round: read by the side stream, freed, asked for by the third."""
        self.refill()
        self.chance.shuffle(self.kept)
        victims = [self.kept.pop() for _ in range(self.chance.randint(1, VICTIMS_MAX))]
        count = sum(tensor.numel() for tensor, _ in victims)
        self.read_late(victims)
        victims.clear()  # freed, while the side stream may not even have begun
        self.let_go()
        with torch.cuda.stream(self.third):
            self.large = self.filled(count)
        if self.chance.random() < 0.5:
            self.let_go()
        # From here on the main stream may write to the bytes again.
        self.main.wait_stream(self.side)
        self.done += 1

    def wrong(self) -> int:
        """Waits for the device, frees everything, and gives the number of wrong elements."""
        self.let_go()
        self.read_late(self.kept)
        torch.cuda.synchronize()
        self.kept.clear()
        return int(self.wrong_of_side.item() + self.wrong_of_third.item())
