"""Clips of any length under convolutions in three dimensions; the first stages are recomputed."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from kinds.common import Run, Step

CLASSES = 400


class Residual(nn.Module):
    """Two convolutions beside a path of their own; with a stride, half the sides."""

    def __init__(self, inward: int, outward: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv3d(inward, outward, 3, stride, padding=1, bias=False),
            nn.BatchNorm3d(outward),
            nn.ReLU(),
            nn.Conv3d(outward, outward, 3, padding=1, bias=False),
            nn.BatchNorm3d(outward),
        )
        self.beside = nn.Conv3d(inward, outward, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Another number of channels."""
        return functional.relu(self.beside(x) + self.inner(x))


class Model(nn.Module):
    """A class for each clip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inward = nn.Conv3d(3, width, (3, 7, 7), (1, 2, 2), padding=(1, 3, 3))
        # Their activations are the largest, and are made again when they are needed.
        self.recomputed = nn.ModuleList(Residual(width, width, 1) for _ in range(2))
        self.kept = nn.Sequential(
            Residual(width, 2 * width, 2),
            Residual(2 * width, 2 * width, 1),
            Residual(2 * width, 4 * width, 2),
            Residual(4 * width, 4 * width, 1),
            Residual(4 * width, 8 * width, 2),
            Residual(8 * width, 8 * width, 1),
        )
        self.head = nn.Linear(8 * width, CLASSES)

    def forward(self, clips: Tensor) -> Tensor:
        """Logits of clips of shape batch, colours, frames, rows, columns."""
        x = self.inward(clips)
        for stage in self.recomputed:
            x = checkpoint(stage, x, use_reentrant=False)
        logits: Tensor = self.head(self.kept(x).mean((2, 3, 4)))
        return logits


def build(run: Run) -> Step:
    """33 million parameters, mixed precision; 64 clips of 8 to 32 frames, 112 to 160 to a side."""
    with run.device:
        model = Model(run.width(64, 8)).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    def step(number: int) -> Tensor:
        frames = run.draw.randint(2, 4) if run.tiny else 4 * run.draw.randint(2, 8)
        side = 16 * run.draw.randint(*((1, 2) if run.tiny else (7, 10)))
        samples = max(2, run.batch(64))
        clips = torch.rand(samples, 3, frames, side, side, device=run.device)
        classes = torch.randint(0, CLASSES, (samples,), device=run.device)
        with run.autocast():
            loss = functional.cross_entropy(model(clips), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
