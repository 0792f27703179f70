"""Distances within proteins: a representation of all pairs of residues, made better a few times.

What is held grows with the square of a length, and within a block with its cube. All passes but
the last are without gradients, and a drawn number of them; their attention goes in parts, as many
as it takes. In the last one every block is made again when its gradients are.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from kinds.common import Run, Step

LONGEST = 640
"""Residues. A block holds as much as its cube."""
KINDS = 22
BINS = 64


class Attention(nn.Module):
    """Each row attends to itself, gated; a bias for two of its places comes from their pair."""

    def __init__(self, width: int, pair: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, 4 * width, bias=False)
        self.bias = nn.Sequential(nn.LayerNorm(pair), nn.Linear(pair, heads, bias=False))
        self.out = nn.Linear(width, width)

    def rows(self, x: Tensor, bias: Tensor) -> Tensor:
        """Some rows."""
        split = self.project(self.norm(x)).unflatten(2, (4, self.heads, -1))
        query, key, value, gate = split.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(2, 3) / query.shape[-1] ** 0.5 + bias
        seen = scores.softmax(-1).to(value.dtype) @ value * gate.sigmoid()
        after: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return after

    def forward(self, x: Tensor, pairs: Tensor, part: int) -> Tensor:
        """Rows of shape rows, places, width; so many of them at a time."""
        bias = self.bias(pairs).permute(2, 0, 1)
        return torch.cat([self.rows(some, bias) for some in x.split(part)])


class Triangle(nn.Module):
    """A pair hears of two others that make a triangle with it."""

    def __init__(self, pair: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(pair)
        self.project = nn.Linear(pair, 5 * pair)
        self.out = nn.Sequential(nn.LayerNorm(pair), nn.Linear(pair, pair))

    def forward(self, pairs: Tensor, outward: bool) -> Tensor:
        """By the edges that leave both, or by those that arrive."""
        left, right, *gates = self.project(self.norm(pairs)).chunk(5, dim=-1)
        left, right = left * gates[0].sigmoid(), right * gates[1].sigmoid()
        way = "ikc,jkc->ijc" if outward else "kic,kjc->ijc"
        said: Tensor = self.out(torch.einsum(way, left, right)) * gates[2].sigmoid()
        return said


class Block(nn.Module):
    """Sequences by their pairs, pairs by their sequences, pairs by pairs."""

    def __init__(self, width: int, pair: int, outer: int) -> None:
        super().__init__()
        self.along = Attention(width, pair, 8)
        self.feed = self.transition(width)
        self.narrow = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * outer))
        self.outer = nn.Linear(outer * outer, pair)
        self.triangles = nn.ModuleList(Triangle(pair) for _ in range(2))
        self.around = nn.ModuleList(Attention(pair, pair, 4) for _ in range(2))
        self.feed_pairs = self.transition(pair)

    def transition(self, width: int) -> nn.Sequential:
        """A perceptron for each place."""
        return nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
        )

    def forward(self, rows: Tensor, pairs: Tensor, part: int) -> tuple[Tensor, Tensor]:
        """Both as they came in. Attention takes so many rows at a time."""
        rows = rows + self.along(rows, pairs, part)
        rows = rows + self.feed(rows)
        left, right = self.narrow(rows).chunk(2, dim=-1)
        outer = torch.einsum("sic,sjd->ijcd", left, right) / len(rows)
        pairs = pairs + self.outer(outer.flatten(2))
        for place, triangle in enumerate(self.triangles):
            pairs = pairs + triangle(pairs, outward=place == 0)
        first, second = self.around
        pairs = pairs + first(pairs, pairs, part)
        turned = pairs.transpose(0, 1)
        pairs = pairs + second(turned, turned, part).transpose(0, 1)
        return rows, pairs + self.feed_pairs(pairs)


class Folder(nn.Module):
    """Sequences in, the distance of every pair out."""

    def __init__(self, width: int, pair: int, outer: int, blocks: int) -> None:
        super().__init__()
        self.inward = nn.Embedding(KINDS, width)
        self.ends = nn.Embedding(KINDS, 2 * pair)
        self.apart = nn.Embedding(65, pair)
        self.again = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(pair)])
        self.blocks = nn.ModuleList(Block(width, pair, outer) for _ in range(blocks))
        self.words = nn.Linear(width, KINDS)
        self.distances = nn.Linear(pair, BINS)

    def forward(self, ids: Tensor, before: tuple[Tensor, Tensor] | None, part: int) -> list[Tensor]:
        """Rows and pairs, after all blocks. Before: what came out of the pass before, if any."""
        left, right = self.ends(ids[0]).chunk(2, dim=-1)
        places = torch.arange(ids.shape[1], device=ids.device)
        apart = (places.unsqueeze(1) - places).clamp(-32, 32) + 32
        pairs = left.unsqueeze(1) + right + self.apart(apart)
        rows = self.inward(ids)
        if before is not None:
            rows = torch.cat([rows[:1] + self.again[0](before[0]), rows[1:]])
            pairs = pairs + self.again[1](before[1])
        for block in self.blocks:
            if torch.is_grad_enabled():
                rows, pairs = checkpoint(block, rows, pairs, part, use_reentrant=False)
            else:
                rows, pairs = block(rows, pairs, part)
        return [rows, pairs]


def build(run: Run) -> Step:
    """Six blocks, mixed precision; a protein of 96 to 640 residues, up to 128 sequences of it."""
    shape = (run.width(256, 16), run.width(128, 8), run.width(32, 4), run.width(6, 2))
    with run.device:
        model = Folder(*shape).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    longest = run.width(max(96, round(LONGEST * run.size ** (1 / 3))), 24)

    def step(number: int) -> Tensor:
        length = run.draw.randint(run.width(96, 8), longest)
        count = run.draw.randint(*((2, 4) if run.tiny else (32, 128)))
        ids = torch.randint(0, KINDS - 1, (count, length), device=run.device)
        hidden = torch.rand(count, length, device=run.device) < 0.15
        hidden[:, 0] = True
        given = ids.masked_fill(hidden, KINDS - 1)
        steps = torch.randn(length, 3, device=run.device)
        points = steps.cumsum(0)
        bins = (2 * (points.unsqueeze(1) - points).norm(dim=2)).long().clamp(max=BINS - 1)
        before = None
        with run.autocast():
            for _ in range(run.draw.randint(0, 3)):
                with torch.no_grad():
                    rows, pairs = model(given, before, max(1, length // 8))
                before = (rows[0], pairs)
            rows, pairs = model(given, before, max(count, length))
            guess, said = model.distances(pairs + pairs.transpose(0, 1)), model.words(rows)
        loss = functional.cross_entropy(guess.float().flatten(0, 1), bins.flatten())
        loss = loss + 0.5 * functional.cross_entropy(said[hidden].float(), ids[hidden])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss.detach()

    return step
