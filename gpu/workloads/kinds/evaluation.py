"""A segmenter with what is around training: a moving average, evaluation, and saved states.

Every tenth step also evaluates the average on batches of another size; every twentieth writes the
model and its optimizer to memory.
"""

import copy
import io

import torch
from torch import Tensor, nn
from torch.nn import functional

from kinds.common import Run, Step

CLASSES = 32


def stage(inward: int, outward: int) -> nn.Sequential:
    """Two convolutions, each normalized."""
    return nn.Sequential(
        nn.Conv2d(inward, outward, 3, padding=1, bias=False),
        nn.BatchNorm2d(outward),
        nn.ReLU(inplace=True),
        nn.Conv2d(outward, outward, 3, padding=1, bias=False),
        nn.BatchNorm2d(outward),
        nn.ReLU(inplace=True),
    )


class Segmenter(nn.Module):
    """A U-net: down to an eighth of the sides, and up again beside what came down."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(
            stage(inward, outward) for inward, outward in zip([3, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(
            stage(inward + outward, outward)
            for inward, outward in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of every pixel."""
        beside = [self.down[0](images)]
        for part in self.down[1:]:
            beside.append(part(functional.max_pool2d(beside[-1], 2)))
        x = beside.pop()
        for part in self.up:
            x = part(torch.cat([functional.interpolate(x, scale_factor=2.0), beside.pop()], dim=1))
        logits: Tensor = self.head(x)
        return logits


def build(run: Run) -> Step:
    """Mixed precision; 40 images of one size a step, and more of drawn sizes in an evaluation."""
    with run.device:
        model = Segmenter(run.width(64, 8)).train()
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    # A program's own size; in its evaluations sizes differ.
    usual = 32 * run.width(run.draw.randint(9, 12), 1)

    def forward(network: nn.Module, samples: int, side: int) -> Tensor:
        images = torch.rand(samples, 3, side, side, device=run.device)
        classes = torch.randint(0, CLASSES, (samples, side, side), device=run.device)
        with run.autocast():
            return functional.cross_entropy(network(images).float(), classes)

    def evaluate() -> None:
        for _ in range(4):
            side = usual + 32 * run.draw.randint(0, run.width(4, 1))
            with torch.no_grad():
                forward(average, run.batch(run.draw.randint(16, 80)), side)

    def save() -> None:
        state = {"model": model.state_dict(), "average": average.state_dict()}
        torch.save({**state, "optimizer": optimizer.state_dict()}, io.BytesIO())

    def step(number: int) -> Tensor:
        loss = forward(model, run.batch(40), usual)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, other in zip(average.parameters(), model.parameters(), strict=True):
                mine.lerp_(other, 0.01)
        if number % run.width(10, 2) == run.width(9, 1):
            evaluate()
        if number % run.width(20, 2) == run.width(19, 1):
            save()
        return loss.detach()

    return step
