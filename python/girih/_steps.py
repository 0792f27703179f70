"""Where an iteration begins, found from what a training loop does anyway.

Nobody tells. What can be seen are optimizers that step and passes that go backward, and an
iteration ends when the last of its optimizers has stepped:

    backward  A.step B.step | backward  A.step B.step |        two optimizers, one after the other
    backward  D.step  backward  G.step | backward  D.step ...  two optimizers with a pass between

So one optimizer is the anchor: after its step a new iteration begins. At first it is the first that
steps. It moves to an optimizer that steps right after it, with no backward pass between (the first
line), and to one that steps more rarely than it (five D to one G). The marks then have the period
of the loop, which is what counts: memory repeats on a ring, and a ring may be cut anywhere.

Whoever knows better than this guess may say so: an integration knows its framework's loop, and the
user's own `with girih.step():` is the last word. A voice of higher authority silences those below.
"""

from __future__ import annotations

import enum
from collections.abc import Callable


class Authority(enum.IntEnum):
    """Who says that a step begins."""

    OPTIMIZER = 0
    INTEGRATION = 1
    USER = 2


# Optimizers that keep stepping while the anchor does not: after so many it is given up.
_PATIENCE = 64


class Steps:
    """Finds the beginnings of iterations, and tells `mark`: a function of kind and name."""

    def __init__(self, mark: Callable[[str, str], None]) -> None:
        self._mark = mark
        self._authority = Authority.OPTIMIZER
        self._count = 0
        self._forwards = 0
        self._backwards = 0
        # True if nothing has been seen since the last boundary: another would mark nothing.
        self._is_fresh = False
        self._is_forward = False
        self._is_evaluating = False
        self._anchor: int | None = None
        # How often the anchor has stepped since an optimizer did, and how many others since it did.
        self._anchor_steps_since: dict[int, int] = {}
        self._steps_since_anchor = 0

    @property
    def count(self) -> int:
        """The number of iterations that have begun at a mark."""
        return self._count

    def begin(self, authority: Authority) -> None:
        """A new iteration begins, says someone of this authority."""
        if authority < self._authority:
            return
        self._authority = authority
        self._is_evaluating = False
        if self._is_fresh:
            return
        self._count += 1
        self._forwards = self._backwards = 0
        self._is_forward = False
        self._is_fresh = True
        self._mark("step", str(self._count))

    def end(self, authority: Authority) -> None:
        """The iteration is over, and what comes now is not the next one yet."""
        if authority >= self._authority:
            self._authority = authority
            self._is_fresh = False
            self._mark("step_end", str(self._count))

    def claim(self, authority: Authority) -> None:
        """Someone of this authority will say where iterations begin."""
        self._authority = max(self._authority, authority)

    def forward(self) -> None:
        """A microbatch goes forward. Several hooks may see the same one: the first is heard."""
        if not self._is_forward:
            self._is_forward = True
            self._mark("forward", str(self.next_forward()))

    def backward(self) -> None:
        """A pass goes backward."""
        self._mark("backward", str(self.next_backward()))

    def next_forward(self) -> int:
        """The number of the forward pass that begins in its iteration, from 0."""
        self._is_fresh = False
        self._forwards += 1
        return self._forwards - 1

    def next_backward(self) -> int:
        """The number of the backward pass that begins in its iteration, from 0."""
        self._is_fresh = self._is_forward = False
        self._backwards += 1
        return self._backwards - 1

    def evaluation_begins(self) -> None:
        """The model is evaluated from here on."""
        if not self._is_evaluating:
            self._is_evaluating = True
            self._is_fresh = False
            self._mark("eval", "")

    def evaluation_ends(self) -> None:
        """Training goes on, with a new iteration if nobody of higher authority says otherwise."""
        if self._is_evaluating:
            self._is_evaluating = False
            self.begin(Authority.OPTIMIZER)

    def optimizer_begins(self, optimizer: int, *, has_closure: bool = False) -> None:
        """An optimizer, known by its `id`, is about to step."""
        if self._authority == Authority.OPTIMIZER and self._follows_anchor(optimizer):
            self._anchor = optimizer
        self._is_fresh = False
        # A closure goes forward and backward within the step: no phase of the optimizer's begins.
        if not has_closure:
            self._mark("optimizer", "")

    def optimizer_ends(self, optimizer: int) -> None:
        """An optimizer has stepped, or would have if its gradients had been finite."""
        if self._authority > Authority.OPTIMIZER:
            return
        if self._anchor is None or self._is_rarer_than_anchor(optimizer):
            self._anchor = optimizer
        if optimizer != self._anchor:
            self._anchor_steps_since[optimizer] = 0
            self._steps_since_anchor += 1
            if self._steps_since_anchor > _PATIENCE * max(1, len(self._anchor_steps_since)):
                self._anchor = optimizer
        if optimizer == self._anchor:
            self._steps_since_anchor = 0
            for other in self._anchor_steps_since:
                self._anchor_steps_since[other] += 1
            self._anchor_steps_since.pop(optimizer, None)
            self.begin(Authority.OPTIMIZER)

    def optimizer_gone(self, optimizer: int) -> None:
        """An optimizer no longer exists. Its `id` may come again."""
        self._anchor_steps_since.pop(optimizer, None)
        if optimizer == self._anchor:
            self._anchor = None

    def _follows_anchor(self, optimizer: int) -> bool:
        """True if the anchor has just stepped: both belong to the end of one iteration."""
        return self._anchor not in (None, optimizer) and self._is_fresh

    def _is_rarer_than_anchor(self, optimizer: int) -> bool:
        return self._anchor_steps_since.get(optimizer, 0) >= 2
