"""A small training run, the same bit by bit whatever happens to it.

It trains a few transformer layers. Every kernel is deterministic, and every step draws its batch
and its dropout from a seed of its own, so that two runs agree whatever happened in between. It
knows no allocator; if Girih is in the process, it notes step by step how well a plan was followed.

```text
 step   0 1 2 3 | 4 | 5 6 7   8     9 ...  13
        learns    ^         FAULT          last
                  the plan is there, for the next launch
```
"""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

MIB = 1 << 20
STEPS = 14
FAULT = 8
# After this step `auto` has seen enough to plan.
LEARNT = 3
SECONDS_TO_PLAN_MAX = 20.0

Within = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a model and of its batch."""

    layers: int
    width: int
    heads: int
    length: int
    batch: int
    words: int


SHAPES = {
    "small": Shape(layers=4, width=512, heads=8, length=256, batch=8, words=4096),
    "other": Shape(layers=6, width=384, heads=6, length=192, batch=7, words=6000),
}


class Layer(torch.nn.Module):
    """Attention and two linear layers, of operations that are deterministic."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.mixed = torch.nn.Linear(width, 3 * width)
        self.joined = torch.nn.Linear(width, width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """[batch, length, width] to the same."""
        batch, length, width = x.shape
        parts = self.mixed(self.norms[0](x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.size(-1))
        seen = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value
        seen = self.joined(seen.transpose(1, 2).reshape(batch, length, width))
        x = x + F.dropout(seen, 0.1, self.training)
        thought = self.down(F.gelu(self.up(self.norms[1](x))))
        return x + F.dropout(thought, 0.1, self.training)


class Model(torch.nn.Module):
    """A language model."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.words = torch.nn.Parameter(0.02 * torch.randn(shape.words, shape.width))
        self.layers = torch.nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = torch.nn.LayerNorm(shape.width)

    def forward(self, ids: torch.Tensor, within: Within | None = None) -> torch.Tensor:
        """The loss. `within` is called before each layer with its number."""
        length = self.shape.length
        hidden = torch.ones(length, length, dtype=torch.bool, device=ids.device).triu(1)
        x = self.words[ids]
        for number, layer in enumerate(self.layers):
            if within is not None:
                within(number)
            x = layer(x, hidden)
        logits = self.norm(x) @ self.words.T
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class Guards:
    """Tensors of a known pattern: whoever writes where he should not is found out."""

    def __init__(self) -> None:
        self.held: list[tuple[torch.Tensor, int]] = []

    def add(self, count: int) -> None:
        """Holds `count` bytes more."""
        value = 1 + len(self.held) % 250
        self.held.append((torch.full((count,), value, dtype=torch.uint8, device="cuda"), value))

    def broken(self) -> int:
        """How many were written to."""
        return sum(not bool((tensor == value).all()) for tensor, value in self.held)


def girih_of_process() -> Any:
    """The package, if it is the allocator here."""
    girih: Any = sys.modules.get("girih")
    return girih if girih is not None and girih.is_enabled() else None


class Run:
    """The training, and what is seen of it."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(1)
        self.guards = Guards()
        for count in (1000, 70_000, 3 * MIB, 37 * MIB):
            self.guards.add(count)
        with torch.device("cuda"):
            self.model = Model(SHAPES[name])
        self.shape = self.model.shape
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scaler: torch.amp.GradScaler | None = None
        self.losses: dict[int, str] = {}
        self.rows: list[dict[str, Any]] = []
        # False if nothing waits for the planning thread.
        self.is_patient = True
        self.has_waited = False
        self.seen = self.look()

    def step(
        self,
        index: int,
        *,
        batch: int | None = None,
        within: Within | None = None,
        optimizes: bool = True,
        factor: float = 1.0,
        label: str = "",
    ) -> None:
        """One step of training, whole."""
        loss = self.compute(index, batch=batch, within=within, factor=factor)
        self.finish(index, loss, optimizes=optimizes, label=label)

    def compute(
        self,
        index: int,
        *,
        batch: int | None = None,
        within: Within | None = None,
        factor: float = 1.0,
    ) -> torch.Tensor:
        """Forward and backward. Gives the loss."""
        torch.manual_seed(1000 + index)
        size = (batch or self.shape.batch, self.shape.length)
        ids = torch.randint(0, self.shape.words, size, device="cuda")
        loss: torch.Tensor = self.model(ids, within)
        scaled = loss * factor
        (self.scaler.scale(scaled) if self.scaler else scaled).backward()
        return loss

    def finish(
        self, index: int, loss: torch.Tensor, *, optimizes: bool = True, label: str = ""
    ) -> None:
        """The step's end: the optimizer, and what is to be noted."""
        if optimizes and self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        elif optimizes:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses[index] = loss.item().hex()
        print(f"loss {index} {self.losses[index]}", flush=True)
        self.note(label or f"step {index}")
        self.rest(index)

    def attempt(self, index: int, within: Within | None = None, *, label: str) -> bool:
        """A step that may run out of memory and is then done again. True if it did."""
        # What the error refers to must be gone before the second try.
        try:
            loss = self.compute(index, within=within)
        except torch.OutOfMemoryError:
            loss = None
        ran_out = loss is None
        # A step of the optimizer that ends in the middle cannot be done again.
        torch.cuda.set_per_process_memory_fraction(1.0)
        if loss is None:
            self.optimizer.zero_grad(set_to_none=True)
            gc.collect()
            loss = self.compute(index)
        self.finish(index, loss, label=label)
        return ran_out

    def look(self) -> dict[str, Any]:
        """What Girih says of this device; nothing if it is not here."""
        girih = girih_of_process()
        if girih is None:
            return {}
        found: dict[str, Any] = girih.stats(torch.cuda.current_device())
        return found

    def note(self, label: str) -> None:
        """How well a plan was followed since the note before."""
        now = self.look()
        if now:
            names = ("hits", "misses", "hit_bytes", "miss_bytes", "waits")
            row = {name: now[name] - self.seen[name] for name in names}
            self.rows.append({"label": label, "stage": now["stage"], **row})
        self.seen = now

    def rest(self, index: int) -> None:
        """Lets the planning thread finish once, so that runs are at the same stage at the same
        step. A run that follows a plan already has nothing to wait for."""
        if not self.is_patient or index < LEARNT or index >= STEPS:
            return
        if self.seen.get("mode") != "auto" or self.seen["stage"] != "learning":
            return
        if self.seen["planning_seconds"] == 0 and not self.has_waited:
            self.has_waited = True
            deadline = time.monotonic() + SECONDS_TO_PLAN_MAX
            while self.look()["planning_seconds"] == 0 and time.monotonic() < deadline:
                time.sleep(0.01)
            self.seen = self.look()
        time.sleep(0.05)

    def checksum(self) -> str:
        """Of every parameter and every state of the optimizer."""
        digest = hashlib.sha256()
        states = self.optimizer.state.values()
        tensors = [value for state in states for value in state.values()]
        for tensor in [*self.model.parameters(), *tensors]:
            digest.update(tensor.detach().cpu().numpy().tobytes())
        return digest.hexdigest()

    def save(self, path: Path, following: int) -> None:
        """Writes a checkpoint, whole or not at all. `following` is the next step."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "next": following,
        }
        unfinished = path.with_suffix(".unfinished")
        torch.save(state, unfinished)
        unfinished.replace(path)

    def load(self, path: Path) -> int:
        """Goes back to a checkpoint. Gives the next step."""
        state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        following: int = state["next"]
        return following

    def result(self) -> dict[str, Any]:
        """Everything that was seen."""
        stats = torch.cuda.memory_stats()
        now = self.look()
        return {
            "mode": now.get("mode"),
            "door": now.get("door"),
            "stage": now.get("stage"),
            "plan": now.get("plan"),
            "warnings": now.get("warnings"),
            "swapped": (now.get("swap") or {}).get("bytes_out", 0),
            "losses": self.losses,
            "checksum": self.checksum(),
            "broken": self.guards.broken(),
            "rows": self.rows,
            "allocated_peak": stats["allocated_bytes.all.peak"],
            "reserved_peak": stats["reserved_bytes.all.peak"],
            "ooms": stats["num_ooms"],
        }
