"""A mixture of experts: how many tokens an expert gets is known only when the router has run."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from kinds.common import Attention, Run, Step

EXPERTS = 16
CHOICES = 2


class Experts(nn.Module):
    """Each token goes to the experts that its router likes most."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(EXPERTS)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the experts say of tokens of shape tokens, width; and how uneven their loads are."""
        weights = self.router(x).float().softmax(-1)
        best, chosen = weights.topk(CHOICES, dim=-1)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS)
        source = order // CHOICES
        said = torch.zeros_like(x, dtype=torch.float32)
        # The host learns the sizes here, as it does in every layer without fixed capacities.
        parts = source.split(counts.tolist())
        shares = best.flatten()[order].split(counts.tolist())
        for expert, rows, share in zip(self.experts, parts, shares, strict=True):
            if len(rows):
                answer = expert(x.index_select(0, rows)).float() * share.unsqueeze(1)
                said = said.index_add(0, rows, answer)
        load = counts / counts.sum()
        uneven: Tensor = EXPERTS * (load * weights.mean(0)).sum()
        return said, uneven


class Layer(nn.Module):
    """Attention, then experts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.LayerNorm(width)
        self.attention = Attention(width, 8, causal=True)
        self.second = nn.LayerNorm(width)
        self.experts = Experts(width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens as they came in, and the layer's share of the loss."""
        x = x + self.attention(self.first(x))
        said, uneven = self.experts(self.second(x).flatten(0, 1))
        return x + said.view_as(x), uneven


class Model(nn.Module):
    """Embedding, layers, words."""

    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and how uneven the loads are in all layers together."""
        x, uneven = self.embedding(ids), torch.zeros((), device=ids.device)
        for layer in self.layers:
            x, more = layer(x)
            uneven = uneven + more
        return self.head(x), uneven


def build(run: Run) -> Step:
    """16 experts in each of 6 layers, mixed precision; about 16,000 tokens of drawn lengths."""
    words = run.width(32000, 200)
    with run.device:
        model = Model(run.width(1024, 32), run.width(6, 2), words).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def step(number: int) -> Tensor:
        tokens = 64 * run.draw.randint(2, 32) if not run.tiny else run.draw.randint(8, 32)
        samples = run.batch(16384 / tokens)
        # A part of the vocabulary is said more than the rest: another one in every step.
        likely = torch.rand(samples, tokens, device=run.device).pow(run.draw.uniform(1, 6)) * words
        ids = (likely.long() + run.draw.randrange(words)) % words
        with run.autocast():
            logits, uneven = model(ids)
            flat = logits[:, :-1].flatten(0, 1)
            loss: Tensor = functional.cross_entropy(flat, ids[:, 1:].flatten()) + 0.01 * uneven
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
