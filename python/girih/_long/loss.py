"""Cross entropy over many tokens, a tile of them at a time, to the same bits.

`cross_entropy(logits.float(), labels)` makes of logits in 16 bits two tensors in 32 and two more in
backward, all as long as the sequence and as wide as the vocabulary. Here a tile of rows is made in
32 bits at a time; what is there whole are the logits and their gradient in their own type.

Each row's loss and gradient depend on that row alone, and are computed by the same kernels. Their
sum over the rows is one kernel's too: it is given the rows' picked values as a tensor of one class.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from girih._long import placed

TILE_BYTES = 64 << 20
"""Of a tile in 32 bits; three such are there at a time. Kernels are full with a part of it."""
ALIGNED = 16
"""Rows of a tile are a multiple of this: so each row lies as it would in the whole tensor, and a
kernel that reads several values at once begins a row where it would begin it there."""
IGNORED = -100
REDUCTIONS = {"mean": 1, "sum": 2}


def cross_entropy(
    logits: Any, target: Any, *, ignore_index: int = IGNORED, reduction: str = "mean"
) -> Any:
    """`torch.nn.functional.cross_entropy(logits.float(), target)`, in tiles.

    Args:
        logits: `[rows, classes]`, of a floating type.
        target: `[rows]`, the class of each row.
        ignore_index: rows of this target do not count.
        reduction: `mean` or `sum`.

    Raises:
        ValueError: for another reduction, shapes that do not go together, or no floating type.
    """
    checked(logits, target, reduction)
    return _CrossEntropy.apply(logits, target, ignore_index, REDUCTIONS[reduction])


def checked(rows: Any, target: Any, reduction: str) -> None:
    """Raises where arguments do not go together."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"use the reduction mean or sum: not {reduction}")
    if rows.ndim != 2 or target.ndim != 1 or len(rows) != len(target):
        raise ValueError(
            f"give logits or hidden states of [rows, columns] and as many targets: not "
            f"{list(rows.shape)} and {list(target.shape)}"
        )
    if not rows.is_floating_point():
        raise ValueError(f"give logits or hidden states of a floating type: not {rows.dtype}")


def _tiles(logits: Any) -> Iterator[tuple[int, int]]:
    rows, classes = logits.shape
    tile = max(1, TILE_BYTES // (4 * max(1, classes)) // ALIGNED) * ALIGNED
    for first in range(0, rows, tile):
        yield first, min(first + tile, rows)


def log_softmax(logits: Any) -> Any:
    """Of rows, in 32 bits."""
    return torch.ops.aten._log_softmax(logits.float(), 1, False)


def _backward(ctx: Any, grad: Any) -> Any:
    """Makes each tile's scores again, and of them its gradient."""
    logits, target, weight = ctx.saved_tensors
    gradient = torch.empty_like(logits)
    for first, end in _tiles(logits):
        scores = log_softmax(logits[first:end])
        of_scores = torch.ops.aten.nll_loss_backward(
            grad, scores, target[first:end], None, ctx.reduction, ctx.ignore_index, weight
        )
        of_logits = torch.ops.aten._log_softmax_backward_data(of_scores, scores, 1, torch.float32)
        gradient[first:end].copy_(of_logits)
    return gradient, None, None, None


class _CrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, logits: Any, target: Any, ignore_index: int, reduction: int) -> Any:
        """Picks each row's value tile by tile; one kernel adds them up."""
        picked = torch.empty(len(logits), 1, dtype=torch.float32, device=logits.device)
        is_ignored = target == ignore_index
        classes = torch.where(is_ignored, 0, target)
        for first, end in _tiles(logits):
            scores = log_softmax(logits[first:end])
            torch.gather(scores, 1, classes[first:end, None], out=picked[first:end])
        marks = torch.where(is_ignored, IGNORED, 0)
        loss, weight = torch.ops.aten.nll_loss_forward(picked, marks, None, reduction, IGNORED)
        ctx.save_for_backward(logits, target, weight)
        ctx.ignore_index, ctx.reduction = ignore_index, reduction
        return loss

    backward = staticmethod(torch.autograd.function.once_differentiable(_backward))


def causal_lm_loss(  # noqa: PLR0917 - the parameters of the function that it stands for
    logits: Any,
    labels: Any,
    vocab_size: int,
    num_items_in_batch: Any = None,
    ignore_index: int = IGNORED,
    shift_labels: Any = None,
    **_: Any,
) -> Any:
    """What Hugging Face's models compute (`transformers.loss.loss_utils.ForCausalLMLoss`)."""

    def loss_of(target: Any, reduction: str) -> Any:
        rows = logits.view(-1, vocab_size)
        return cross_entropy(rows, target, ignore_index=ignore_index, reduction=reduction)

    target = shifted(labels, ignore_index) if shift_labels is None else shift_labels
    return over_items(loss_of, target.view(-1).to(logits.device), num_items_in_batch)


def over_items(loss_of: Callable[[Any, str], Any], target: Any, items: Any) -> Any:
    """The mean, or the sum by a number of items, that of all batches which are added up."""
    if items is None:
        return loss_of(target, "mean")
    loss = loss_of(target, "sum")
    return loss / (items.to(loss.device) if torch.is_tensor(items) else items)


def shifted(labels: Any, ignore_index: int) -> Any:
    """Of each token the next."""
    return functional.pad(labels, (0, 1), value=ignore_index)[..., 1:].contiguous()


class Loss:
    """The loss of the models within one, put in tiles where it is known."""

    def __init__(self, model: Any, *, is_fused: bool = False) -> None:
        self.unmade: list[Any] = []
        """Where logits are put off."""
        self.reason = "no module within it has a loss function of its own"
        """Why it is not in tiles; empty if it is."""
        self.functions: list[tuple[Any, Any]] = []
        """Each module, and what was put in place of its loss function."""
        utils = sys.modules.get("transformers.loss.loss_utils")
        known = getattr(utils, "ForCausalLMLoss", None)
        for module in model.modules() if known is not None else ():
            has_own = "_loss_function" in vars(module)
            if not has_own and getattr(module, "loss_type", None) != "ForCausalLM":
                continue
            if getattr(module, "loss_function", None) is not known:
                continue
            if not _is_as_known(known):
                self.reason = "this version of transformers computes something else"
                return
            self.reason = ""
            self._put(module, self._fused(module) if is_fused else causal_lm_loss)

    @property
    def is_fused(self) -> bool:
        """Whether no logits are made."""
        return any(not it.reason for it in self.unmade)

    def _put(self, module: Any, function: Any) -> None:
        placed.of(module).put("_loss_function", function)
        self.functions.append((module, function))

    def _fused(self, module: Any) -> Any:
        from girih._long import fused

        unmade = fused.Unmade(module)
        self.unmade.append(unmade)
        if unmade.reason:
            self.reason = f"logits are made: {unmade.reason}"
            return causal_lm_loss
        return fused.fused_loss

    def remove(self) -> None:
        """Gives every module its own loss function back."""
        for unmade in self.unmade:
            unmade.remove()
        self.unmade.clear()
        for module, function in self.functions:
            placed.of(module).take("_loss_function", function)
        self.functions.clear()


def _is_as_known(known: Any) -> bool:
    """Whether it gives the same bits as ours, tried on a few numbers."""
    numbers = torch.Generator().manual_seed(0)
    for items in (None, 5):
        results = []
        for function in (known, causal_lm_loss):
            logits = torch.randn(2, 7, 11, generator=numbers.manual_seed(1)).bfloat16()
            logits.requires_grad_()
            labels = torch.randint(0, 11, (2, 7), generator=numbers)
            labels[0, 2] = IGNORED
            try:
                with torch.enable_grad():
                    loss = function(logits, labels, 11, num_items_in_batch=items)
                loss.backward()
            except Exception:  # Whatever another version wants.
                return False
            results.append((loss.detach(), logits.grad))
        if not all(torch.equal(*pair) for pair in zip(*results, strict=True)):
            return False
    return True
