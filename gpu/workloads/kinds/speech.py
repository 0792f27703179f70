"""Speech recognition: a convolutional front, a conformer, the CTC loss, batches by frames.

Utterances of similar length make a batch: many short ones or few long ones.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from kinds.common import Attention, Run, Step

BANDS = 80
WORDS = 1024


class Convolution(nn.Module):
    """A conformer's convolution over time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Conv1d(width, 2 * width, 1)
        self.depth = nn.Conv1d(width, width, 31, padding=15, groups=width)
        self.between = nn.BatchNorm1d(width)
        self.out = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape as came in: batch, time, width."""
        inner = functional.glu(self.gate(self.norm(x).transpose(1, 2)), dim=1)
        inner = self.out(functional.silu(self.between(self.depth(inner))))
        after: Tensor = inner.transpose(1, 2)
        return after


class Conformer(nn.Module):
    """One of its layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.feeds = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.SiLU(),
                nn.Dropout(0.1),
                nn.Linear(4 * width, width),
            )
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.convolution = Convolution(width)
        self.last = nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """The same shape as came in: batch, time, width."""
        x = x + 0.5 * self.feeds[0](x)
        x = x + self.attention(self.norm(x), mask)
        x = x + self.convolution(x)
        after: Tensor = self.last(x + 0.5 * self.feeds[1](x))
        return after


class Recognizer(nn.Module):
    """From bands to words, a quarter as many as frames."""

    def __init__(self, width: int, layers: int, channels: int) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv2d(1, channels, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.inward = nn.Linear(channels * (BANDS // 4), width)
        self.layers = nn.ModuleList(Conformer(width, 8) for _ in range(layers))
        self.head = nn.Linear(width, WORDS)

    def forward(self, bands: Tensor, lengths: Tensor) -> Tensor:
        """Logits of shape batch, time, words. Lengths are of what comes out."""
        seen = self.front(bands.unsqueeze(1)).transpose(1, 2).flatten(2)
        x = self.inward(seen)
        times = torch.arange(x.shape[1], device=x.device)
        mask = (times < lengths.unsqueeze(1))[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        logits: Tensor = self.head(x)
        return logits


def buckets(run: Run) -> Iterator[list[int]]:
    """Batches without end: their utterances' lengths in frames of a hundredth of a second."""
    budget = run.batch(run.width(100_000, 40_000))
    longest = run.width(3500, 200)
    while True:
        pool = sorted(
            min(longest, max(60, int(100 * run.draw.lognormvariate(1.7, 0.8)))) for _ in range(4000)
        )
        batches: list[list[int]] = [[]]
        for frames in pool:
            if batches[-1] and frames * (len(batches[-1]) + 1) > budget:
                batches.append([])
            batches[-1].append(frames)
        run.draw.shuffle(batches)
        yield from batches


def build(run: Run) -> Step:
    """118 million parameters in mixed precision; 100,000 frames a step."""
    with run.device:
        model = Recognizer(run.width(512, 32), run.width(17, 2), run.width(256, 8)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = buckets(run)

    def step(number: int) -> Tensor:
        frames = next(batches)
        bands = torch.randn(len(frames), max(frames), BANDS, device=run.device)
        inside = [(length + 3) // 4 for length in frames]
        words = [max(1, int(length * run.draw.uniform(0.1, 0.3))) for length in inside]
        said = torch.randint(1, WORDS, (sum(words),), device=run.device)
        lengths = torch.tensor(inside, device=run.device)
        with run.autocast():
            logits = model(bands, lengths)
        spoken = logits.float().log_softmax(-1).transpose(0, 1)
        counts = torch.tensor(words, device=run.device)
        loss = functional.ctc_loss(spoken, said, lengths, counts, zero_infinity=True)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step
