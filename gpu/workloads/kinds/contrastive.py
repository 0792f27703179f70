"""Images and their captions against all others: a batch in parts, and a bank that grows.

The encoders run over a batch without gradients first. What each embedding's gradient is comes from
all of them, and from those of earlier steps, which averaged encoders made; then the encoders run
again, part by part, with gradients. A part has as many samples as its tokens allow.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from kinds.common import Layer, Run, Step

SAMPLES = 3072
"""Of a step. A part's tokens are in proportion to it."""
BANK = 131_072
EMBEDDED = 512
PATCH = 16


class Tower(nn.Module):
    """A transformer that makes one embedding of a sample's tokens."""

    def __init__(self, width: int, layers: int, embedded: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, 8) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, embedded, bias=False)

    def embed(self, x: Tensor) -> Tensor:
        """Of length one each."""
        for layer in self.layers:
            x = layer(x)
        return functional.normalize(self.out(self.norm(x).mean(1)).float(), dim=1)


class Seeing(Tower):
    """Of images, of which some patches alone are looked at."""

    def __init__(self, width: int, layers: int, embedded: int) -> None:
        super().__init__(width, layers, embedded)
        self.inward = nn.Conv2d(3, width, PATCH, stride=PATCH)

    def forward(self, images: Tensor, kept: Tensor) -> Tensor:
        """Embeddings. Kept: the places of each image's patches."""
        x = self.inward(images).flatten(2).transpose(1, 2)
        return self.embed(x.gather(1, kept.unsqueeze(2).expand(-1, -1, x.shape[2])))


class Reading(Tower):
    """Of captions, all of the length of the longest."""

    def __init__(self, width: int, layers: int, embedded: int, words: int) -> None:
        super().__init__(width, layers, embedded)
        self.inward = nn.Embedding(words, width)

    def forward(self, ids: Tensor) -> Tensor:
        """Embeddings."""
        return self.embed(self.inward(ids))


def build(run: Run) -> Step:
    """Towers of 8 and 6 layers, mixed precision; 3,072 pairs a step, a bank of up to 131,072."""
    width, embedded, words = run.width(512, 32), run.width(EMBEDDED, 16), run.width(32768, 100)
    with run.device:
        towers = nn.ModuleList(
            [
                Seeing(width, run.width(8, 2), embedded),
                Reading(width, run.width(6, 2), embedded, words),
            ]
        ).train()
    averages = copy.deepcopy(towers).requires_grad_(False)
    optimizer = torch.optim.AdamW(towers.parameters(), lr=3e-4)
    samples = max(4, run.batch(SAMPLES))
    banks = [torch.empty(0, embedded, device=run.device) for _ in towers]
    limit = run.batch(BANK)

    def parts(inputs: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        # The last of the inputs has a row of a sample's tokens.
        most = run.width(36, 3) * samples // inputs[-1].shape[1]
        return list(zip(*(it.split(max(1, most)) for it in inputs), strict=True))

    @torch.no_grad()
    def embed(tower: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        with run.autocast():
            return torch.cat([tower(*part) for part in parts(inputs)])

    def contrast(asked: Tensor, answers: Tensor, others: Tensor) -> Tensor:
        with run.autocast():
            likeness = asked @ torch.cat([answers, others]).T / 0.07
        right = torch.arange(len(asked), device=run.device)
        return functional.cross_entropy(likeness.float(), right)

    def step(number: int) -> Tensor:
        side = run.width(run.draw.randint(7, 14), run.draw.randint(2, 4))
        images = torch.randn(samples, 3, PATCH * side, PATCH * side, device=run.device)
        order = torch.rand(samples, side * side, device=run.device).argsort(1)
        longest = run.width(8 * run.draw.randint(2, 8), run.draw.randint(3, 9))
        ids = torch.randint(0, words, (samples, longest), device=run.device)
        both = [(images, order[:, : max(2, side * side // 2)]), (ids,)]
        made = [embed(*pair).requires_grad_() for pair in zip(towers, both, strict=True)]
        known = [embed(*pair) for pair in zip(averages, both, strict=True)]
        loss = contrast(made[0], known[1], banks[1]) + contrast(made[1], known[0], banks[0])
        slopes = torch.autograd.grad(loss, made)
        optimizer.zero_grad()
        for tower, inputs, slope in zip(towers, both, slopes, strict=True):
            start = 0
            for part in parts(inputs):
                with run.autocast():
                    again = tower(*part)
                again.backward(slope[start : start + len(again)])
                start += len(again)
        optimizer.step()
        with torch.no_grad():
            for mine, other in zip(averages.parameters(), towers.parameters(), strict=True):
                mine.lerp_(other, 0.01)
        for place, new in enumerate(known):
            old = banks[place]
            banks[place] = torch.cat([old[max(0, len(old) + samples - limit) :], new])
        return loss.detach()

    return step
