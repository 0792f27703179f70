"""Where the tokens of a tensor are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Classes of tensors whose bytes are their own."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """A dimension of a tensor that runs over tokens.

    It may run over something else as well: `outer` things outside (the sequences of a batch, in
    `[batch x tokens, width]`) and `inner` things inside. Its size is `outer x tokens x inner`.
    """

    dim: int
    outer: int = 1
    inner: int = 1

    def rows(self, tensor: Any, first: int, end: int, tokens: int) -> Any:
        """A view of the tokens `first .. end` of a tensor with `tokens` of them."""
        apart = tensor.unflatten(self.dim, (self.outer, tokens, self.inner))
        return apart.narrow(self.dim + 1, first, end - first)

    def together(self, rows: Any) -> Any:
        """Rows as a tensor whose only tokens they are."""
        return rows.flatten(self.dim, self.dim + 2)


class Whole(Layout):
    """Of a tensor that is computed again whole: its rows are all of it."""

    def rows(self, tensor: Any, first: int, end: int, tokens: int) -> Any:
        """The tensor itself."""
        return tensor


WHOLE = Whole(0)


def candidates(
    full: tuple[int, ...], part: tuple[int, ...], tokens: int, rows: int
) -> Iterator[Layout]:
    """The layouts by which `part` can be `rows` of the `tokens` that `full` has.

    None if the shapes are equal, or differ in more than one dimension: what runs over tokens twice
    (the weights of attention) has no rows.
    """
    if len(full) != len(part):
        return
    differing = [dim for dim in range(len(full)) if full[dim] != part[dim]]
    if len(differing) != 1:
        return
    (dim,) = differing
    times, rest = divmod(full[dim], tokens)
    if rest or times * rows != part[dim]:
        return
    for outer in divisors(times):
        yield Layout(dim, outer, times // outer)


def divisors(number: int) -> list[int]:
    """From the largest: what is outside of tokens is mostly the batch."""
    return [one for one in range(number, 0, -1) if number % one == 0]


def narrow(tensor: Any, tokens: int, first: int, like: int | None = None) -> Any:
    """The tokens from `first` on, where a dimension runs over them; else the tensor as it is.

    `like` is the dimension to prefer.
    """
    dims = [dim for dim in range(tensor.ndim) if tensor.shape[dim] == tokens]
    if like in dims:
        dims = [like]
    if dims:
        return tensor.narrow(dims[0], first, tokens - first)
    for dim in range(tensor.ndim):
        times, rest = divmod(tensor.shape[dim], tokens)
        if rest == 0 and times > 1:
            layout = Layout(dim, times, 1)
            return layout.together(layout.rows(tensor, first, tokens, tokens))
    return tensor


def address(tensor: Any) -> int | None:
    """Of its first element; None of subclasses that hold their bytes in other tensors."""
    if type(tensor) not in PLAIN:
        return None
    try:
        return int(tensor.data_ptr())
    except RuntimeError:
        return None


def storage_of(tensor: Any) -> tuple[Any, ...]:
    """Which storage it is of: where that begins, of what type, on which device."""
    start = tensor.data_ptr() - tensor.storage_offset() * tensor.element_size()
    return (start, tensor.dtype, tensor.device)


def is_dense(tensor: Any) -> bool:
    """Whether every element has a place of its own, and there are no holes."""
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def is_apart(tensor: Any) -> bool:
    """Whether every element has a place of its own; there may be holes."""
    sizes = zip(tensor.stride(), tensor.shape, strict=True)
    end = 1
    for stride, size in sorted(it for it in sizes if it[1] > 1):
        if stride < end:
            return False
        end = stride * (size - 1) + end
    return True


def close_up(rows: Any, whole: Any) -> Any:
    """Rows of a tensor as an operator would have given them: without holes, if `whole` has none.

    Operators choose their ways by the strides of what they get: these are to be as they were.
    """
    if is_dense(rows) or not is_dense(whole):
        return rows
    outermost = sorted(range(whole.ndim), key=lambda dim: -whole.stride(dim))
    back = [outermost.index(dim) for dim in range(whole.ndim)]
    return rows.permute(outermost).contiguous().permute(back)


def span(shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last, both counted."""
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def span_of(tensor: Any) -> int:
    """Bytes from the first to the last of a tensor's."""
    if tensor.numel() == 0:
        return 0
    return span(tuple(tensor.shape), tensor.stride()) * int(tensor.element_size())
