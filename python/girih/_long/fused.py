"""The loss with the product before it, so that logits are never whole.

`cross_entropy(linear(hidden, weight), target)` has as many logits as tokens times words, which is
more than all layers where those are solved. Here a tile of rows goes from the hidden states to its
loss, and in backward from there to the gradients; what is whole are the hidden states, their
gradient, and the weight's in 32 bits.

Rows of a product know nothing of each other: the loss and the gradient of the hidden states are
those of the whole, where a product's kernel rounds alike for fewer rows. The weight's gradient is a
sum over all rows, here of each tile's: in 32 bits, in another order than one product's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional
from torch.utils._pytree import tree_map

from girih._long import placed
from girih._long.layout import PLAIN
from girih._long.loss import (
    IGNORED,
    REDUCTIONS,
    causal_lm_loss,
    checked,
    log_softmax,
    over_items,
    shifted,
)

TILE_BYTES = 256 << 20
"""Of a tile's logits in 32 bits. Products want more rows at a time than the loss alone."""
ALIGNED = 128
"""Rows of a tile are a multiple of this: kernels of products work on so many."""


def linear_cross_entropy(
    hidden: Any,
    weight: Any,
    target: Any,
    *,
    bias: Any = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Any:
    """`torch.nn.functional.cross_entropy(linear(hidden, weight, bias).float(), target)`, in tiles.

    Args:
        hidden: `[rows, width]`, of a floating type.
        weight: `[classes, width]`, of the same type, or what autocast makes the same.
        target: `[rows]`, the class of each row.
        bias: `[classes]`, or None.
        ignore_index: rows of this target do not count.
        reduction: `mean` or `sum`.

    Raises:
        ValueError: for another reduction, shapes that do not go together, or no floating type.
    """
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    checked(hidden, target, reduction)
    if weight.ndim != 2 or weight.shape[1] != hidden.shape[1] or weight.dtype != hidden.dtype:
        raise ValueError(
            f"give a weight of [classes, {hidden.shape[1]}] and {hidden.dtype}: not "
            f"{list(weight.shape)} and {weight.dtype}"
        )
    return _LinearCrossEntropy.apply(
        hidden, weight, bias, target, ignore_index, REDUCTIONS[reduction]
    )


def _tiles(rows: int, classes: int) -> Iterator[tuple[int, int]]:
    tile = max(1, TILE_BYTES // (4 * max(1, classes)) // ALIGNED) * ALIGNED
    for first in range(0, rows, tile):
        yield first, min(first + tile, rows)


def _backward(ctx: Any, grad: Any) -> Any:
    """Makes each tile's logits again, of them its gradient, and of that its part of the others."""
    hidden, weight, bias, target, total = ctx.saved_tensors
    wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
    of_hidden = torch.empty_like(hidden) if wants_hidden else None
    precise = torch.promote_types(weight.dtype, torch.float32)
    of_weight = torch.zeros_like(weight, dtype=precise) if wants_weight else None
    of_bias = torch.zeros_like(bias, dtype=precise) if wants_bias else None
    for first, end in _tiles(len(hidden), len(weight)):
        rows = hidden[first:end]
        logits = functional.linear(rows, weight, bias)
        scores = log_softmax(logits)
        of_scores = torch.ops.aten.nll_loss_backward(
            grad, scores, target[first:end], None, ctx.reduction, ctx.ignore_index, total
        )
        of_logits = torch.ops.aten._log_softmax_backward_data(of_scores, scores, 1, torch.float32)
        of_logits = of_logits.to(logits.dtype)
        del logits, scores, of_scores
        if of_hidden is not None:
            torch.mm(of_logits, weight, out=of_hidden[first:end])
        if of_weight is not None:
            of_weight += _in_32_bits(of_logits.t(), rows)
        if of_bias is not None:
            of_bias += of_logits.sum(0, dtype=precise)
    return (
        of_hidden,
        None if of_weight is None else of_weight.to(weight.dtype),
        None if of_bias is None else of_bias.to(bias.dtype),
        None,
        None,
        None,
    )


def _in_32_bits(left: Any, right: Any) -> Any:
    """A product whose sums are not rounded to 16 bits before they are added to others."""
    if left.dtype in (torch.float16, torch.bfloat16):
        if left.is_cuda:
            return torch.mm(left, right, out_dtype=torch.float32)
        left, right = left.float(), right.float()
    return left @ right


class _LinearCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd gives them by place
        ctx: Any,
        hidden: Any,
        weight: Any,
        bias: Any,
        target: Any,
        ignore_index: int,
        reduction: int,
    ) -> Any:
        """Picks each row's value tile by tile; one kernel adds them up."""
        picked = torch.empty(len(hidden), 1, dtype=torch.float32, device=hidden.device)
        is_ignored = target == ignore_index
        classes = torch.where(is_ignored, 0, target)
        for first, end in _tiles(len(hidden), len(weight)):
            scores = log_softmax(functional.linear(hidden[first:end], weight, bias))
            torch.gather(scores, 1, classes[first:end, None], out=picked[first:end])
        marks = torch.where(is_ignored, IGNORED, 0)
        loss, total = torch.ops.aten.nll_loss_forward(picked, marks, None, reduction, IGNORED)
        ctx.save_for_backward(hidden, weight, bias, target, total)
        ctx.ignore_index, ctx.reduction = ignore_index, reduction
        return loss

    backward = staticmethod(torch.autograd.function.once_differentiable(_backward))


class Logits(torch.Tensor):  # type: ignore[misc]
    """What the last layer would give, as long as nobody asks for it.

    Whatever is done with it is done with the logits, which are computed then. Only a cast to 32
    bits is put off as well.
    """

    hidden: Any
    weight: Any
    bias: Any
    is_cast: bool

    @staticmethod
    def of(hidden: Any, weight: Any, bias: Any, *, is_cast: bool = False) -> Any:
        """Of hidden states `[..., width]` and what the last layer has when it is given them."""
        device = hidden.device.type
        is_mixed = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_mixed else weight.dtype
        logits = torch.Tensor._make_wrapper_subclass(
            Logits,
            (*hidden.shape[:-1], len(weight)),
            dtype=torch.float32 if is_cast else dtype,
            device=hidden.device,
        )
        logits.hidden, logits.weight, logits.bias = hidden, weight, bias
        logits.is_cast = is_cast
        return logits

    def whole(self) -> Any:
        """The logits."""
        logits = functional.linear(self.hidden, self.weight, self.bias)
        return logits.float() if self.is_cast else logits

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs a function of torch."""
        kwargs = kwargs or {}
        if func in _OF_THE_SHAPE:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func is torch.Tensor.float and isinstance(args[0], Logits):
            return Logits.of(args[0].hidden, args[0].weight, args[0].bias, is_cast=True)
        args, kwargs = tree_map(_whole, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """What goes past the functions of torch."""
        args, kwargs = tree_map(_whole, (args, kwargs or {}))
        return func(*args, **kwargs)


def _whole(it: Any) -> Any:
    return it.whole() if isinstance(it, Logits) else it


_OF_THE_SHAPE: set[Callable[..., Any]] = {
    torch.Tensor.shape.__get__,
    torch.Tensor.dtype.__get__,
    torch.Tensor.device.__get__,
    torch.Tensor.ndim.__get__,
    torch.Tensor.is_cuda.__get__,
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.numel,
}


def fused_loss(  # noqa: PLR0917 - the parameters of the function that it stands for
    logits: Any,
    labels: Any,
    vocab_size: int,
    num_items_in_batch: Any = None,
    ignore_index: int = IGNORED,
    shift_labels: Any = None,
    **others: Any,
) -> Any:
    """`causal_lm_loss` of logits that were not computed."""
    if not isinstance(logits, Logits):
        return causal_lm_loss(
            logits, labels, vocab_size, num_items_in_batch, ignore_index, shift_labels, **others
        )

    def loss_of(target: Any, reduction: str) -> Any:
        return linear_cross_entropy(
            logits.hidden.flatten(0, -2),
            logits.weight,
            target,
            bias=logits.bias,
            ignore_index=ignore_index,
            reduction=reduction,
        )

    target = shifted(labels, ignore_index) if shift_labels is None else shift_labels
    return over_items(loss_of, target.flatten().to(logits.device), num_items_in_batch)


class Unmade:
    """Puts off the logits of a causal model, in passes that are given labels."""

    def __init__(self, model: Any) -> None:
        self.reason = ""
        """Why that cannot be; empty if it is."""
        self.model = model
        self.linear = model.get_output_embeddings()
        self.is_wanted = False
        self.hooks: list[Any] = []
        if type(self.linear) is not torch.nn.Linear:
            self.reason = f"its last layer is a {type(self.linear).__name__}, and no Linear"
        elif "forward" in vars(self.linear) or self.linear._forward_hooks:
            self.reason = "its last layer has a forward, or hooks, of somebody's own"
        if self.reason:
            return
        self.forward = placed.Forward(self.linear, self._forward)
        self.hooks.append(model.register_forward_pre_hook(self._before, with_kwargs=True))
        self.hooks.append(model.register_forward_hook(self._after, always_call=True))
        placed.of(model).hook(*self.hooks)

    def remove(self) -> None:
        """Gives the last layer its own forward back."""
        if self.hooks:
            placed.of(self.model).unhook(*self.hooks)
            self.forward.remove()
        self.hooks.clear()

    def _before(self, _model: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        self.is_wanted = kwargs.get("labels") is not None and torch.is_grad_enabled()

    def _after(self, *_: Any) -> None:
        self.is_wanted = False

    def _forward(self, hidden: Any) -> Any:
        is_plain = type(hidden) in PLAIN and type(self.linear.weight) in PLAIN
        if self.is_wanted and is_plain and not torch.compiler.is_compiling():
            return Logits.of(hidden, self.linear.weight, self.linear.bias)
        return self.forward.original(hidden)
