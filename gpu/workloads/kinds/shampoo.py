"""An image transformer under an optimizer that allocates much: Shampoo, its roots now and then.

Each weight is cut into square blocks. A block's gradient is multiplied on both sides by the inverse
fourth root of what its rows and columns have summed up to. The roots come from Newton's iteration,
of all blocks of a weight at once.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from kinds.common import Layer, Run, Step

PATCH = 16


def inverse_fourth_root(matrices: Tensor) -> Tensor:
    """Of each positive matrix of a batch, by the coupled Newton iteration."""
    eye = torch.eye(matrices.shape[-1], device=matrices.device)
    # The norm bounds the largest eigenvalue. A hundredth of it is added: one that is nearly zero
    # would ask for more digits than the iteration has.
    scale = torch.linalg.matrix_norm(matrices).clamp_min(1e-30)[:, None, None]
    scaled = matrices / scale + 0.01 * eye
    root = eye.expand_as(scaled)
    for _ in range(12):
        change = (5 * eye - scaled) / 4
        root = root @ change
        scaled = torch.linalg.matrix_power(change, 4) @ scaled
    unscaled: Tensor = root * scale.pow(-0.25)
    return unscaled


class Shampoo(torch.optim.Optimizer):
    """Shampoo with the length of a step taken from the gradient, and momentum."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, block: int, every: int) -> None:
        super().__init__(parameters, {"lr": lr})
        self.block = block
        self.every = every
        self.steps = 0

    def blocks(self, gradient: Tensor) -> Tensor:
        """A weight as a batch of blocks."""
        rows, columns = (side // self.block for side in gradient.shape)
        cut = gradient.view(rows, self.block, columns, self.block).transpose(1, 2)
        return cut.reshape(-1, self.block, self.block)

    def direction(self, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Where to go: the gradient between the two roots, as long as the gradient is."""
        cut = self.blocks(gradient)
        sums = {"left": cut @ cut.mT, "right": cut.mT @ cut}
        for side, found in sums.items():
            state[side] = state[side].mul_(0.95).add_(found) if side in state else found
            if f"{side} root" not in state or self.steps % self.every == 0:
                state[f"{side} root"] = inverse_fourth_root(state[side])
        turned = state["left root"] @ cut @ state["right root"]
        turned *= cut.norm() / turned.norm().clamp_min(1e-30)
        rows, columns = (side // self.block for side in gradient.shape)
        whole = turned.view(rows, columns, self.block, self.block).transpose(1, 2)
        return whole.reshape(gradient.shape)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Moves every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient, state = parameter.grad, self.state[parameter]
                if gradient is None:
                    continue
                if gradient.dim() == 2 and not any(s % self.block for s in gradient.shape):
                    gradient = self.direction(gradient, state)
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(parameter)
                state["momentum"].mul_(0.9).add_(gradient)
                parameter.sub_(state["momentum"], alpha=group["lr"])
        self.steps += 1


class Classifier(nn.Module):
    """Patches, layers, a thousand classes."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.inward = nn.Conv2d(3, width, PATCH, stride=PATCH)
        self.layers = nn.ModuleList(Layer(width, 8) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        x = self.inward(images).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits


def build(run: Run) -> Step:
    """151 million parameters, mixed precision; 96 images of drawn sides; roots every few steps."""
    with run.device:
        model = Classifier(run.width(1024, 32), run.width(12, 2)).train()
    every = run.width(run.draw.randint(4, 8), 2)
    optimizer = Shampoo(model.parameters(), lr=1e-3, block=run.width(1024, 16), every=every)

    def step(number: int) -> Tensor:
        side = PATCH * run.draw.randint(*((2, 3) if run.tiny else (10, 17)))
        images = torch.randn(run.batch(96), 3, side, side, device=run.device)
        classes = torch.randint(0, 1000, (len(images),), device=run.device)
        with run.autocast():
            loss = functional.cross_entropy(model(images), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
