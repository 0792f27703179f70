"""Meta-learning: what a few steps of training come to is differentiated by where they began.

Each task has another number of classes, of images and of inner steps; until a task has ended, all
its inner steps are held, with the gradients taken in them. In the first part of a run these
gradients count as constants, and much less is held.
"""

import itertools

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from kinds.common import Run, Step

IMAGES = 96
"""Of a task, in one inner step, about. Everything large is in proportion to it."""
TASKS = 4
WAYS = 20

Parameters = dict[str, Tensor]


class Learner(nn.Module):
    """Convolutions, each normalized and then halved in its sides; a class for each image."""

    def __init__(self, width: int, stages: int) -> None:
        super().__init__()
        widths = [3, *(width for _ in range(stages))]
        layers: list[nn.Module] = []
        for inward, outward in itertools.pairwise(widths):
            layers += [
                nn.Conv2d(inward, outward, 3, padding=1),
                nn.GroupNorm(8, outward),
                nn.SiLU(),
                nn.AvgPool2d(2),
            ]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, WAYS)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of as many classes as a task may have."""
        logits: Tensor = self.head(self.body(images).mean((2, 3)))
        return logits


def build(run: Run) -> Step:
    """Four tasks a step in 32 bits; 1 to 5 inner steps on some 96 images, 64 to 96 to a side."""
    with run.device:
        model = Learner(run.width(96, 8), run.width(4, 2)).train()
    start: Parameters = dict(model.named_parameters())
    # How far an inner step goes is learnt too, for each parameter.
    rates = {name: nn.Parameter(torch.full_like(it, 0.05)) for name, it in start.items()}
    optimizer = torch.optim.Adam([*start.values(), *rates.values()], lr=1e-3)
    constant_until = run.width(run.steps // 4, 1)

    def adapt(now: Parameters, images: Tensor, classes: Tensor, through: bool) -> Parameters:
        loss = functional.cross_entropy(functional_call(model, now, (images,)), classes)
        slopes = torch.autograd.grad(loss, list(now.values()), create_graph=through)
        pairs = zip(now.items(), slopes, strict=True)
        return {name: it - rates[name] * slope for (name, it), slope in pairs}

    def task(through: bool) -> Tensor:
        side = run.width(4 * run.draw.randint(16, 24), 8)
        ways = run.draw.randint(5, WAYS)
        shots = max(1, round(run.batch(IMAGES * run.draw.uniform(0.6, 1.3)) / ways))
        asked = run.draw.randint(1, 2 * shots)
        # Images of a class are alike.
        alike = torch.randn(ways, 1, 3, side, side, device=run.device)

        def images(count: int) -> tuple[Tensor, Tensor]:
            noise = torch.randn(ways, count, 3, side, side, device=run.device)
            classes = torch.arange(ways, device=run.device).repeat_interleave(count)
            return (alike + noise).flatten(0, 1), classes

        seen = images(shots)
        now = start
        for _ in range(run.draw.randint(1, 5)):
            now = adapt(now, *seen, through)
        queries, classes = images(asked)
        return functional.cross_entropy(functional_call(model, now, (queries,)), classes)

    def step(number: int) -> Tensor:
        total = torch.zeros((), device=run.device)
        optimizer.zero_grad()
        for _ in range(TASKS):
            loss = task(through=number >= constant_until) / TASKS
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return step
