"""A student taught by a frozen teacher on a stream of its own; its layers thaw one after another.

The teacher is one part of a batch ahead. Each step has another number of parts, of other lengths.
While only the last layers learn, little is held; with every layer that thaws there is a new
optimizer, which takes over what the old one knew. An average of the weights is evaluated in place
of them, and both go to the host on a third stream.
"""

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kinds.common import Layer, Run, Step

TOKENS = 16_384
"""Of a part of a batch. Everything large is in proportion to it."""


class Model(nn.Module):
    """A causal language model."""

    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, 8, causal=True) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words, bias=False))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


class Streams:
    """Work beside the main stream. On the CPU there is none but that."""

    def __init__(self, run: Run) -> None:
        self.are_there = run.device.type == "cuda"
        self.teaching: Any = torch.cuda.Stream() if self.are_there else None
        self.copying: Any = torch.cuda.Stream() if self.are_there else None

    @contextlib.contextmanager
    def beside(self, stream: Any) -> Any:
        """On that stream, behind all that the main one has been given so far."""
        if stream is None:
            yield
            return
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            yield

    def used(self, tensor: Tensor, stream: Any) -> None:
        """A tensor of the main stream's is read on that one too."""
        if self.are_there:
            tensor.record_stream(stream)

    def hand_over(self, tensor: Tensor, ready: Any) -> Tensor:
        """A tensor of another stream's, which the main one goes on with when it is ready."""
        if self.are_there:
            ready.wait()
            tensor.record_stream(torch.cuda.current_stream())
        return tensor

    def event(self) -> Any:
        """What has been given to the current stream so far."""
        return torch.cuda.current_stream().record_event() if self.are_there else None


class Averaged:
    """An average of a model's weights, which can take their place."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.average = {name: it.detach().clone() for name, it in model.named_parameters()}
        self.on_host: dict[str, Tensor] = {}

    @torch.no_grad()
    def follow(self) -> None:
        """After each step."""
        for name, it in self.model.named_parameters():
            self.average[name].lerp_(it, 0.05)

    def swap(self) -> None:
        """Each in the other's place."""
        for name, it in self.model.named_parameters():
            it.data, self.average[name] = self.average[name], it.data

    def save(self, streams: Streams) -> None:
        """Both to the host, while the program goes on."""
        both = {f"average.{name}": it for name, it in self.average.items()}
        both.update(self.model.named_parameters())
        for name, it in both.items():
            # They go on changing while this copy of them is on its way.
            still = it.detach().clone()
            with streams.beside(streams.copying):
                if name not in self.on_host:
                    pinned = streams.are_there
                    self.on_host[name] = torch.empty_like(still, device="cpu", pin_memory=pinned)
                self.on_host[name].copy_(still, non_blocking=True)
            streams.used(still, streams.copying)


class Thawing:
    """Optimizes more and more of a model's parts; each time more thaw, by a new optimizer."""

    def __init__(self, parts: list[nn.Module], every: int) -> None:
        self.parts = parts
        self.every = every
        self.thawed = 0
        self.optimizer: torch.optim.Optimizer | None = None

    def at(self, number: int) -> torch.optim.Optimizer:
        """The optimizer of this step. What an older one knew is kept."""
        thawed = min(len(self.parts), 1 + number // self.every)
        if self.optimizer and thawed == self.thawed:
            return self.optimizer
        learning = [it for part in self.parts[:thawed] for it in part.parameters()]
        optimizer = torch.optim.AdamW([it.requires_grad_() for it in learning], lr=2e-4)
        if self.optimizer:
            optimizer.state.update(self.optimizer.state)
        self.optimizer, self.thawed = optimizer, thawed
        return optimizer


def distance(logits: Tensor, said: Tensor, ids: Tensor) -> Tensor:
    """From the teacher's words, and a little from the right ones."""
    mine = logits.float().log_softmax(-1).flatten(0, 1)
    wanted = said.float().log_softmax(-1).flatten(0, 1)
    apart = functional.kl_div(mine, wanted, reduction="batchmean", log_target=True)
    return apart + 0.1 * functional.nll_loss(mine[:-1], ids.flatten()[1:])


def build(run: Run) -> Step:
    """Teacher of 440, student of 170 million, mixed precision; 1 to 5 parts of 16,384 tokens."""
    words = run.width(32768, 100)
    with run.device:
        teacher = Model(run.width(1536, 48), run.width(12, 2), words)
        student = Model(run.width(1024, 32), run.width(8, 3), words).train()
    teacher.to(torch.bfloat16).requires_grad_(False)
    student.requires_grad_(False)
    averaged = Averaged(student)
    streams = Streams(run)
    # From the head on, the embedding last, at two thirds of the run.
    order = [student.head, *reversed(student.layers), student.embedding]
    thawing = Thawing(order, every=max(1, 2 * run.steps // (3 * len(order))))

    def draw() -> Tensor:
        tokens = run.draw.randint(8, 32) if run.tiny else 64 * run.draw.randint(2, 32)
        return torch.randint(0, words, (run.batch(TOKENS / tokens), tokens), device=run.device)

    def teach() -> tuple[Tensor, Tensor, Any]:
        ids = draw()
        with streams.beside(streams.teaching), torch.no_grad():
            said, ready = teacher(ids), streams.event()
        streams.used(ids, streams.teaching)
        return ids, said, ready

    @torch.no_grad()
    def evaluate() -> None:
        for _ in range(3):
            ids = draw()
            with run.autocast():
                logits = student(ids)
            functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())

    def step(number: int) -> Tensor:
        optimizer = thawing.at(number)
        parts = run.draw.randint(1, run.width(5, 3))
        total = torch.zeros((), device=run.device)
        optimizer.zero_grad()
        ahead = teach()
        for part in range(parts):
            ids, said, ready = ahead
            if part + 1 < parts:
                ahead = teach()
            with run.autocast():
                logits = student(ids)
            loss = distance(logits, streams.hand_over(said, ready), ids) / parts
            loss.backward()
            total += loss.detach()
        optimizer.step()
        averaged.follow()
        if number % run.width(10, 2) == run.width(9, 1):
            averaged.swap()
            evaluate()
            averaged.save(streams)
            averaged.swap()
        return total

    return step
