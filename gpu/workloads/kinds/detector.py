"""A two-stage detector with masks: images, boxes and proposals of any number and size."""

from typing import Any

import torch
from torch import Tensor
from torchvision.models.detection import maskrcnn_resnet50_fpn

from kinds.common import Run, Step


def sample(run: Run) -> tuple[Tensor, dict[str, Tensor]]:
    """An image of random sides, and random boxes on it with a mask each."""
    sides = (run.width(480, 48), run.width(1100, 96))
    height, width = run.draw.randint(*sides), run.draw.randint(*sides)
    image = torch.rand(3, height, width, device=run.device)
    boxes = 1 + int(run.draw.expovariate(1 / 12)) % 60
    limit = torch.tensor([width, height], device=run.device)
    # Corners in the upper left two thirds, and sides of a twentieth to a third.
    corner = torch.rand(boxes, 2, device=run.device) * limit * 0.65
    extent = (0.05 + torch.rand(boxes, 2, device=run.device) * 0.28) * limit + 1
    around = torch.cat([corner, corner + extent], dim=1)
    rows = torch.arange(height, device=run.device).view(1, -1, 1)
    columns = torch.arange(width, device=run.device).view(1, 1, -1)
    left, top, right, bottom = around.view(boxes, 4, 1, 1).unbind(1)
    masks = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    labels = torch.randint(1, 91, (boxes,), device=run.device)
    return image, {"boxes": around, "labels": labels, "masks": masks.to(torch.uint8)}


def build(run: Run) -> Step:
    """Mask R-CNN over a ResNet-50 in 32 bits, 10 images a step, each resized to a drawn side."""
    smaller = {"rpn_post_nms_top_n_train": 64, "box_batch_size_per_image": 32} if run.tiny else {}
    sides = (64,) if run.tiny else tuple(range(480, 801, 32))
    settings: dict[str, Any] = {"min_size": sides, "max_size": run.width(1333, 96), **smaller}
    with run.device:
        model: Any = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, **settings)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4)

    def step(number: int) -> Tensor:
        images, targets = zip(*(sample(run) for _ in range(run.batch(10))), strict=True)
        loss: Tensor = sum(model(list(images), list(targets)).values())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        return loss.detach()

    return step
