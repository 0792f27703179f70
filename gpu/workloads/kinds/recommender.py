"""A recommender: large tables of embeddings whose gradients are sparse, between two perceptrons."""

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from kinds.common import Run, Step

DENSE = 13


def perceptron(*widths: int) -> nn.Sequential:
    """Linear layers of these widths, and what is not linear between them."""
    layers: list[nn.Module] = []
    for inward, outward in itertools.pairwise(widths):
        layers += [nn.Linear(inward, outward), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Model(nn.Module):
    """Numbers and bags of ids in, the chance of a click out."""

    pairs: Tensor

    def __init__(self, rows: list[int], width: int, inner: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(count, width, mode="sum", sparse=True) for count in rows
        )
        self.bottom = perceptron(DENSE, inner, inner // 2, width)
        features = len(rows) + 1
        self.top = perceptron(width + features * (features - 1) // 2, 2 * inner, inner, 1)
        self.register_buffer("pairs", torch.tril_indices(features, features, -1), persistent=False)

    def forward(self, dense: Tensor, bags: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Logits, one for each sample. A bag is the ids of all samples and where each begins."""
        inward = self.bottom(dense)
        looked = [table(*bag) for table, bag in zip(self.tables, bags, strict=True)]
        features = torch.stack([inward, *looked], dim=1)
        products = features @ features.transpose(1, 2)
        rows, columns = self.pairs
        logits: Tensor = self.top(torch.cat([inward, products[:, rows, columns]], dim=1))
        return logits.squeeze(1)


def build(run: Run) -> Step:
    """26 tables with 10 million rows in all, 32 bits; about 32,768 samples a step."""
    shares = [run.draw.lognormvariate(0, 1.5) for _ in range(run.width(26, 4))]
    total = run.width(10_000_000, 4000)
    rows = [max(100, int(total * share / sum(shares))) for share in shares]
    # How many ids a sample has in each table, at most: one in many.
    most = [run.draw.choice([1, 1, 2, 5, 10, 20, 40]) for _ in rows]
    with run.device:
        model = Model(rows, run.width(128, 16), run.width(1024, 32)).train()
    sparse = torch.optim.SparseAdam(model.tables.parameters(), lr=1e-3)
    others = [*model.bottom.parameters(), *model.top.parameters()]
    dense = torch.optim.Adam(others, lr=1e-3)

    def bag(samples: int, count: int, limit: int) -> tuple[Tensor, Tensor]:
        sizes = torch.randint(0 if limit > 1 else 1, limit + 1, (samples,), device=run.device)
        ends = sizes.cumsum(0)
        # Some ids are seen much more often than others.
        ids = torch.rand(int(ends[-1]), device=run.device).pow(3) * count
        return ids.long().clamp_(max=count - 1), ends - sizes

    def step(number: int) -> Tensor:
        samples = run.batch(32768 * run.draw.uniform(0.6, 1.4))
        bags = [bag(samples, *table) for table in zip(rows, most, strict=True)]
        logits = model(torch.randn(samples, DENSE, device=run.device), bags)
        clicks = (torch.rand(samples, device=run.device) < 0.2).float()
        loss = functional.binary_cross_entropy_with_logits(logits, clicks)
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
        return loss.detach()

    return step
