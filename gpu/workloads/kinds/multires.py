"""An image classifier whose images grow as it learns, in float16 with scaled gradients."""

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn import functional

from kinds.common import Run, Step

CLASSES = 1000


class Bottleneck(nn.Module):
    """Three convolutions, the middle one narrow, beside a path of their own."""

    def __init__(self, inward: int, outward: int, stride: int) -> None:
        super().__init__()
        narrow = outward // 4
        self.inner = nn.Sequential(
            nn.Conv2d(inward, narrow, 1, bias=False),
            nn.BatchNorm2d(narrow),
            nn.ReLU(inplace=True),
            nn.Conv2d(narrow, narrow, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(narrow),
            nn.ReLU(inplace=True),
            nn.Conv2d(narrow, outward, 1, bias=False),
            nn.BatchNorm2d(outward),
        )
        alike = inward == outward and stride == 1
        self.beside = nn.Identity() if alike else nn.Conv2d(inward, outward, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Another number of channels; with a stride, half the sides."""
        return functional.relu(self.beside(x) + self.inner(x), inplace=True)


class Classifier(nn.Module):
    """A residual network."""

    def __init__(self, width: int, depths: tuple[int, ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]
        inward = width
        for level, depth in enumerate(depths):
            outward = 4 * width << level
            for place in range(depth):
                layers.append(Bottleneck(inward, outward, 2 if level and not place else 1))
                inward = outward
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(inward, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.body(images).mean((2, 3)))
        return logits


def build(run: Run) -> Step:
    """101 layers; 192 images a step, from 128 to 320 to a side, with drawn ones between."""
    depths = (1, 1) if run.tiny else (3, 4, 23, 3)
    with run.device:
        model = Classifier(run.width(64, 8), depths).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    scaler = GradScaler(run.device.type, init_scale=1024.0, growth_interval=20)
    first, last = run.width(128, 16), run.width(320, 32)

    def step(number: int) -> Tensor:
        grown = first + (last - first) * number / max(1, run.steps - 1)
        side = 16 * max(1, round(grown * run.draw.uniform(0.85, 1.0) / 16))
        samples = max(2, run.batch(192))
        images = torch.randn(samples, 3, side, side, device=run.device)
        classes = torch.randint(0, CLASSES, (samples,), device=run.device)
        with run.autocast(torch.float16):
            loss = functional.cross_entropy(model(images).float(), classes, label_smoothing=0.1)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step
