"""Swapping by Capuchin's identity: a tensor is known by its operator's number and its place there.

Capuchin (ASPLOS 2020) watches one step, chooses by free time what goes, and from then on acts where
the same operator comes again: a tensor is (operator number, i-th tensor that it saved). The number
counts what the GPU is asked for. A framework that runs whole steps restarts it with each of them;
PyTorch knows no steps, so it counts on by the length of the step that was watched. `restart` is
for programs that say where a step begins.

What is named by a number that means another operator now is looked for and not found: then this
ends with a `LookupError`, for a copy that was to begin cannot.
"""

import dataclasses
from typing import Any

import torch
from torch.autograd import graph
from torch.utils._python_dispatch import TorchDispatchMode

# Smaller tensors stay: as Girih's own records.
LEAST = 1 << 20
# Operators before the use at which a copy in begins. As far ahead as two layers of a small model.
AHEAD = 20

Identity = tuple[int, int]


@dataclasses.dataclass
class Watched:
    """A tensor of the step that is watched."""

    size: int
    saved_at: int
    used_at: int = -1


@dataclasses.dataclass
class Away:
    """A tensor that has gone."""

    host: torch.Tensor
    device: torch.device
    gone: Any = None
    """The end of the copy out, where there are streams."""
    here: torch.Tensor | None = None
    came: Any = None


class Capuchin(TorchDispatchMode):
    """Counts operators; `hooks` swap what autograd saves. Bytes to be sent away: `excess`."""

    def __init__(self, parameters: set[int], excess: int) -> None:
        super().__init__()
        self.parameters = parameters
        self.excess = excess
        self.number = 0
        self.saves = 0
        self.length = 0
        self.watched: dict[Identity, Watched] = {}
        self.chosen: set[Identity] = set()
        self.due: dict[int, list[Identity]] = {}
        self.away: dict[Identity, Away] = {}
        self.streams: Any = None
        if torch.cuda.is_available():
            self.streams = (torch.cuda.Stream(), torch.cuda.Stream())

    def hooks(self) -> graph.saved_tensors_hooks:
        """To be in force in forward passes."""
        return graph.saved_tensors_hooks(self._pack, self._unpack)

    def end_of_watching(self) -> None:
        """The step that was watched is over: from now on what was chosen goes."""
        self.length = self.number
        left = self.excess
        idle = {it: seen for it, seen in self.watched.items() if seen.used_at >= 0}
        # The longest free time first.
        for it in sorted(idle, key=lambda it: idle[it].saved_at - idle[it].used_at):
            if left <= 0:
                break
            seen = idle[it]
            if seen.used_at - seen.saved_at <= AHEAD:
                break
            self.chosen.add(it)
            self.due.setdefault(seen.used_at - AHEAD, []).append(it)
            left -= seen.size
        self.number = self.saves = 0

    def restart(self) -> None:
        """A step begins."""
        self.number = self.saves = 0

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.number += 1
        self.saves = 0
        if self.length:
            self.number %= self.length
            for it in self.due.get(self.number, ()):
                self._fetch(it)
        return function(*args, **(kwargs or {}))

    def _pack(self, tensor: torch.Tensor) -> Any:
        it = (self.number, self.saves)
        self.saves += 1
        size = tensor.numel() * tensor.element_size()
        if size < LEAST or tensor.data_ptr() in self.parameters:
            return tensor if tensor.is_leaf else tensor.detach()
        if not self.length:
            self.watched[it] = Watched(size, self.number)
            return (it, tensor.detach())
        if it not in self.chosen:
            return tensor.detach()
        return self._send(it, tensor.detach())

    def _unpack(self, saved: Any) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        if isinstance(saved, tuple):
            seen = self.watched[saved[0]]
            seen.used_at = self.number if seen.used_at < 0 else seen.used_at
            return saved[1]
        if saved.here is None:
            self._copy_in(saved)
        if self.streams:
            torch.cuda.current_stream().wait_event(saved.came)
            saved.here.record_stream(torch.cuda.current_stream())
        return saved.here

    def _send(self, it: Identity, tensor: torch.Tensor) -> Away:
        with torch.utils._python_dispatch._disable_current_modes():
            if not self.streams:
                away = Away(tensor.clone(), tensor.device)
            else:
                out = self.streams[0]
                out.wait_stream(torch.cuda.current_stream())
                host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                with torch.cuda.stream(out):
                    host.copy_(tensor, non_blocking=True)
                tensor.record_stream(out)
                away = Away(host, tensor.device, out.record_event())
        self.away[it] = away
        return away

    def _fetch(self, it: Identity) -> None:
        away = self.away.pop(it, None)
        if away is None:
            raise LookupError(
                f"operator {it[0]} has saved no tensor {it[1]} in this step: what was to come back "
                f"before operator {self.number + AHEAD} is not there"
            )
        if away.here is None:
            self._copy_in(away)

    def _copy_in(self, away: Away) -> None:
        with torch.utils._python_dispatch._disable_current_modes():
            if not self.streams:
                away.here = away.host.clone()
                return
            back = self.streams[1]
            back.wait_event(away.gone)
            with torch.cuda.stream(back):
                away.here = away.host.to(away.device, non_blocking=True)
            away.came = back.record_event()
