"""A perceptron, a tile of its tokens at a time, to the same bits.

What a perceptron holds between its products is wider than all else of a layer: of Llama's, gate,
up, their product, and in backward the gradients of each. It works token by token, so that it may
run over some tokens after others: in forward with nothing kept but its input, and in backward once
more. Gradients of its input are rows, too. Those of its weights are sums over all tokens, whose
order is one kernel's. So what is multiplied for them is put together whole, of as few products at a
time as there are passes over the tiles:

     first pass      tiles run forward:               what the last product is given, whole
                     gradients of its weights
     second pass     tiles run forward and backward:  gradients of what the others gave, whole
                     gradients of their weights, and of the input

Any module may be one: what it does is watched over a few tokens (`probe.py`), and what it gives and
its gradients are compared to the bit with those of a run over all tokens at once.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from girih._long.layout import close_up
from girih._long.own import Own, Undo, as_it_was
from girih._long.probe import Plan, product_of, trained
from girih._long.trace import start_of

TILE_ROWS = 4096
"""Of a tile, about: a product of so many rows fills a GPU."""
ALIGNED = 128
"""Tokens of a tile are a multiple of this: kernels of products work on so many."""
ALIGNED_FROM = 8 * ALIGNED
"""Of tiles of so many tokens."""
COMPARED = 16384
"""Tokens over which gradients are compared, or a quarter if that is more: a run over all of them
would take what tiles are to save."""
LESS = 4
"""Times fewer are compared if there is no memory for so many."""
TRIES = 4


class Tiled:
    """A module of a layer that runs in tiles."""

    def __init__(
        self, module: Any, run: Callable[[Any], Any], dim: int, plan: Plan, tile: int
    ) -> None:
        self.module = module
        self.run = run
        """Its own forward."""
        self.dim = dim
        """Where the tokens of its input are."""
        self.plan = plan
        self.tile = tile
        """Tokens of one, about."""

    def apply(self, x: Any, autocast: dict[str, Any], fails: Callable[[str], None] | None) -> Any:
        """Runs it. If `fails` is given its gradients are compared, and it is told what differs."""
        return _Tiled.apply(self, autocast, fails, x, *trained(self.module))

    def forward(self, x: Any) -> Any:
        """What it gives."""
        whole = None
        for first, end in self.tiles(x):
            rows = self.run(self._rows(x, first, end))
            if whole is None:
                shape = [*rows.shape]
                shape[self.dim] = x.shape[self.dim]
                whole = rows.new_empty(shape)
            whole.narrow(self.dim, first, end - first).copy_(rows)
        return whole

    def tiles(self, x: Any) -> Iterator[tuple[int, int]]:
        """The first token of each, and the one after the last."""
        tokens = x.shape[self.dim]
        unit = ALIGNED if self.tile >= ALIGNED_FROM else 1
        units, count = math.ceil(tokens / unit), math.ceil(tokens / self.tile)
        # About as many each: kernels for a few rows are others, and may round another way.
        ends = [min(unit * math.ceil(it * units / count), tokens) for it in range(count + 1)]
        yield from itertools.pairwise(ends)

    def _rows(self, whole: Any, first: int, end: int) -> Any:
        return close_up(whole.narrow(self.dim, first, end - first), whole)

    def gradients(self, x: Any, gradient: Any) -> list[Any]:
        """Of its input, and of each parameter that wants one."""
        uses = range(len(self.plan.uses))
        wants = [it for it in uses if self._wants(it)]
        last = [it for it in wants if self.plan.uses[it].is_last]
        found: list[Any] = [None] * (1 + len(trained(self.module)))
        if last:
            self._pass(x, gradient, last, found, is_forward=True)
        self._pass(x, gradient, [it for it in wants if it not in last], found, is_forward=False)
        return found

    def _wants(self, use: int) -> bool:
        return self.plan.uses[use].weight is not None or self.plan.uses[use].bias is not None

    def _pass(
        self, x: Any, gradient: Any, uses: list[int], found: list[Any], *, is_forward: bool
    ) -> None:
        parameters = trained(self.module)
        operands = Operands(self, x, gradient, set(uses))
        if not is_forward:
            found[0] = torch.empty_like(x)
        for first, end in self.tiles(x):
            rows = self._rows(x, first, end).detach().requires_grad_(not is_forward)
            operands.begin(first, end, rows)
            with torch.set_grad_enabled(not is_forward), Linears(parameters, operands):
                gives = self.run(rows)
            if is_forward:
                continue
            operands.gradient = given = self._rows(gradient, first, end)
            (of_rows,) = torch.autograd.grad(gives, rows, given)
            found[0].narrow(self.dim, first, end - first).copy_(of_rows)
        for use in uses:
            for parameter, value in operands.of_parameters(use):
                found[1 + parameter] = value.to(parameters[parameter].dtype)

    def reference(self, x: Any, gradient: Any, *, is_derived: bool = False) -> list[Any]:
        """What `gradients` should give: by a run over all tokens at once.

        With `is_derived` they know what they come of.
        """
        parameters = trained(self.module)
        if not is_derived:
            x = x.detach().requires_grad_()
        with torch.enable_grad():
            # By a tensor of its own: what the input comes of is not gone back to.
            own = x.view_as(x)
            gives = self.run(own)
            found = torch.autograd.grad(
                gives, [own, *parameters], gradient, create_graph=is_derived
            )
        return list(found)


def tile_of(x: Any, dim: int, tokens: int) -> int:
    """How many tokens a tile has: `tokens`, or if that is 0 as many as make a GPU busy."""
    return tokens or max(1, TILE_ROWS * int(x.shape[dim]) * x.shape[-1] // max(1, x.numel()))


# ---- one pass over the tiles


class Operands:
    """What is multiplied for the gradients of weights, of all tokens."""

    def __init__(self, tiled: Tiled, x: Any, gradient: Any, wanted: set[int]) -> None:
        self.tiled = tiled
        self.x = x
        self.whole_gradient = gradient
        self.wanted = wanted
        self.left: dict[int, Any] = {}
        """Of a product, what it was given."""
        self.right: dict[int, Any] = {}
        """And the gradient of what it gave."""
        self.casts: dict[int, Any] = {}
        """Parameters as autocast has them."""
        self.first = self.end = self.use = 0
        self.rows: Any = None
        self.gradient: Any = None
        """Of the tile."""
        uses = tiled.plan.uses
        for use in wanted:
            if uses[use].is_last:
                self.right[use] = gradient

    def begin(self, first: int, end: int, rows: Any) -> None:
        """Of a tile."""
        self.first, self.end, self.rows, self.use = first, end, rows, 0

    def next(self) -> int:
        """The product that runs."""
        self.use += 1
        if self.use > len(self.tiled.plan.uses):
            raise RuntimeError("a perceptron in tiles does something else than when it was watched")
        return self.use - 1

    def cast(self, parameter: Any, dtype: Any) -> Any:
        """A parameter in another type, made once."""
        if parameter is None or parameter.dtype == dtype:
            return parameter
        if id(parameter) not in self.casts:
            self.casts[id(parameter)] = parameter.detach().to(dtype)
        return self.casts[id(parameter)]

    def note_left(self, use: int, given: Any) -> None:
        """What a product is given, of the rows of this tile."""
        if use in self.wanted and self.tiled.plan.uses[use].weight is not None:
            self._put(self.left, use, given, self.rows, self.x)

    def note_right(self, use: int, gradient: Any) -> None:
        """The gradient of what it gave."""
        if use in self.wanted:
            self._put(self.right, use, gradient, self.gradient, self.whole_gradient)

    def _put(self, into: dict[int, Any], use: int, rows: Any, tile: Any, whole: Any) -> None:
        if start_of(rows) == start_of(tile) and rows.numel() == tile.numel():
            # The rows of what is there whole.
            into[use] = whole
            return
        dim, width = self.tiled.dim, rows.shape[-1]
        outer, inner = math.prod(self.x.shape[:dim]), math.prod(self.x.shape[dim + 1 : -1])
        if use not in into:
            into[use] = rows.new_empty(outer, self.x.shape[dim], inner, width)
        there = into[use].narrow(1, self.first, self.end - self.first)
        there.copy_(rows.view(outer, self.end - self.first, inner, width))

    def of_parameters(self, use: int) -> Iterator[tuple[int, Any]]:
        """The gradients of a product's parameters, with their numbers."""
        one, right = self.tiled.plan.uses[use], self.right.pop(use)
        right = right.reshape(-1, right.shape[-1])
        left = self.left.pop(use, None)
        if one.weight is not None:
            # What was cast before it was multiplied.
            left = left.reshape(-1, left.shape[-1]).to(right.dtype)
            mm = torch.ops.aten.mm
            yield one.weight, mm(right.t(), left) if one.kind == "linear" else mm(left.t(), right)
        if one.bias is not None:
            yield one.bias, right.sum(0)


class _Linear(torch.autograd.Function):  # type: ignore[misc]
    """A product of which the gradients of its parameters are left to later."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd gives them by place
        ctx: Any, x: Any, weight: Any, bias: Any, kind: str, use: int, operands: Operands
    ) -> Any:
        """What it gives."""
        operands.note_left(use, x)
        ctx.weight, ctx.kind, ctx.use, ctx.operands = weight, kind, use, operands
        if operands.tiled.plan.uses[use].is_last:
            # Nobody reads it: what the module gives is known.
            return x.new_empty(*x.shape[:-1], weight.shape[kind != "linear"])
        if kind == "linear":
            return functional.linear(x, weight, bias)
        return torch.addmm(bias, x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Of what it was given."""
        ctx.operands.note_right(ctx.use, gradient)
        rows = gradient.reshape(-1, gradient.shape[-1])
        weight = ctx.weight if ctx.kind == "linear" else ctx.weight.t()
        return rows.mm(weight).view(*gradient.shape[:-1], -1), None, None, None, None, None


class Linears(TorchFunctionMode):  # type: ignore[misc]
    """Has products with parameters that want gradients go through `_Linear`."""

    def __init__(self, parameters: list[Any], operands: Operands) -> None:
        super().__init__()
        self.ours = {id(it) for it in parameters}
        self.operands = operands

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs a function of torch."""
        kwargs = kwargs or {}
        product = product_of(func, args, kwargs)
        if product is None or not any(id(it) in self.ours for it in product[2:]):
            return func(*args, **kwargs)
        kind, x, weight, bias = product
        dtype, operands = autocast_type(x), self.operands
        if dtype is not None:
            x, weight, bias = x.to(dtype), operands.cast(weight, dtype), operands.cast(bias, dtype)
        use = operands.next()
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        return _Linear.apply(x, weight, bias, kind, use, operands)


def autocast_type(x: Any) -> Any:
    """What autocast makes of a product's operands; None where it leaves them."""
    device = x.device.type
    if not torch.is_autocast_enabled(device) or x.dtype == torch.float64:
        return None
    return torch.get_autocast_dtype(device)


# ---- the module as autograd has it


def _backward(ctx: Any, gradient: Any) -> Any:
    """In tiles, of the module as forward found it."""
    x, *_ = ctx.saved_tensors
    tiled = ctx.tiled
    with as_it_was(tiled.module, ctx.own, Undo()), torch.autocast(**ctx.autocast):
        _check(tiled.module, ctx.own)
        if torch.is_grad_enabled():
            # Gradients that are derived again: their graph is that of a run over all tokens.
            return (None, None, None, *tiled.reference(x, gradient, is_derived=True))
        x = x.detach()
        found = tiled.gradients(x, gradient)
        if ctx.fails is not None:
            found = _compared(tiled, x, gradient, found, ctx.fails)
    return (None, None, None, *found)


def _check(module: Any, own: Own) -> None:
    """Raises where a parameter is not what it was."""
    stale = own.stale()
    for it in module.parameters():
        if start_of(it) in stale:
            raise own.changed(it)


class _Tiled(torch.autograd.Function):  # type: ignore[misc]
    is_ours = True

    @staticmethod
    def forward(
        ctx: Any, tiled: Tiled, autocast: dict[str, Any], fails: Any, x: Any, *parameters: Any
    ) -> Any:
        """In tiles."""
        ctx.tiled, ctx.autocast, ctx.fails = tiled, autocast, fails
        ctx.own = Own(tiled.module, ())
        ctx.own.picture.settle()
        ctx.save_for_backward(x, *parameters)
        with torch.autocast(**autocast):
            return tiled.forward(x)

    backward = staticmethod(_backward)


def _compared(tiled: Tiled, x: Any, gradient: Any, found: list[Any], fails: Any) -> list[Any]:
    """The gradients, or if a run over all tokens at once gives others, those."""
    tokens = x.shape[tiled.dim]
    for some in _fewer(min(tokens, max(COMPARED, tokens // LESS))):
        with contextlib.suppress(torch.OutOfMemoryError):
            rows = [tiled._rows(it, 0, some) for it in (x, gradient)]
            ours = found if some == tokens else tiled.gradients(*rows)
            right = tiled.reference(*rows)
            if all(is_same(*pair) for pair in zip(ours, right, strict=True)):
                return found
            fails("its gradients in tiles are others")
            return right if some == tokens else tiled.reference(x, gradient)
    return found


def _fewer(tokens: int) -> list[int]:
    return [max(1, tokens // LESS**it) for it in range(TRIES)]


def is_same(a: Any, b: Any) -> bool:
    """Whether two tensors have the same values; what is no number is equal to itself."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(torch.equal(a, b)) or bool(torch.equal(a.nan_to_num(), b.nan_to_num()))


def gives_the_same(tiled: Tiled, x: Any) -> bool:
    """Whether tiles give what a run over all tokens gives; over fewer if there is no memory."""
    for some in _fewer(x.shape[tiled.dim]):
        with contextlib.suppress(torch.OutOfMemoryError):
            rows = tiled._rows(x, 0, some)
            whole = tiled.run(rows)
            tiles = ((first, end - first) for first, end in tiled.tiles(rows))
            return all(
                is_same(
                    tiled.run(tiled._rows(rows, at, at + size)), whole.narrow(tiled.dim, at, size)
                )
                for at, size in tiles
            )
    return True
