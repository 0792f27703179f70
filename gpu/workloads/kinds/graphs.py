"""Message passing over random graphs of any number of nodes and edges."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from kinds.common import Run, Step

FEATURES = 64
CLASSES = 40


class Passing(nn.Module):
    """Each edge says something of both its ends; each node adds up what it hears."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Sequential(
            nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.LayerNorm(width))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Nodes as they came in. Edges: a row of sources and a row of targets."""
        source, target = edges
        said = self.message(torch.cat([nodes[source], nodes[target]], dim=1))
        heard = torch.zeros_like(nodes).index_add(0, target, said)
        after: Tensor = nodes + self.update(torch.cat([nodes, heard], dim=1))
        return after


class Model(nn.Module):
    """A class for every node."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.inward = nn.Linear(FEATURES, width)
        self.layers = nn.ModuleList(Passing(width) for _ in range(layers))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Logits."""
        x = self.inward(nodes)
        for layer in self.layers:
            x = layer(x, edges)
        logits: Tensor = self.head(x)
        return logits


def build(run: Run) -> Step:
    """Six layers in 32 bits; up to 90,000 nodes with 4 to 12 edges each."""
    with run.device:
        model = Model(run.width(256, 16), run.width(6, 2)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(number: int) -> Tensor:
        nodes = run.batch(run.draw.uniform(20_000, 90_000))
        edges = int(nodes * run.draw.uniform(4, 12))
        # Targets are uneven: some nodes hear of many.
        ends = torch.rand(2, edges, device=run.device)
        ends[1].square_()
        graph = (ends * nodes).long().clamp_(max=nodes - 1)
        classes = torch.randint(0, CLASSES, (nodes,), device=run.device)
        logits = model(torch.randn(nodes, FEATURES, device=run.device), graph)
        loss = functional.cross_entropy(logits, classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
