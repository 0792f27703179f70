"""Of which operators a replay is given what they gave, and what is noted of one in forward."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from girih._long import communicate
from girih._long.trace import Shape

ATTENTION = {
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_flash_attention_forward",
    "aten::_efficient_attention_forward",
}
PRODUCTS = {
    "aten::mm": 0,
    "aten::addmm": 1,
    "aten::bmm": 0,
    "aten::baddbmm": 1,
    "aten::_scaled_mm": 0,
    "aten::_grouped_mm": 0,
}
"""Which argument is the left matrix."""
DEPTH = 512
"""Terms of each of a product's sums from which on its output is worth keeping. What has fewer, as
LoRA's have, is computed again about as fast as it is read."""
SUMS = {
    *("aten::mean", "aten::sum", "aten::var", "aten::std", "aten::amax", "aten::amin"),
    *("aten::logsumexp", "aten::linalg_vector_norm", "aten::norm"),
}
"""Of the numbers of a row or of more. What a norm needs of a row is one number: with that, what it
comes of is not computed again."""
TERMS = 64
"""Terms of each sum from which on it is kept: of the bytes that were read, one in so many."""

COMPUTED = PRODUCTS.keys() | SUMS
"""Operators that run again where what they gave is not kept."""


class ReplayError(RuntimeError):
    """The layer did something else than in its forward pass."""


@dataclasses.dataclass
class Note:
    """What an operator, a function of autograd, or an opaque module gave in the forward pass."""

    name: str
    """The operator, the function; of a module, its name within the layer."""
    shape: tuple[int, ...]
    """Of its first tensor, or of what it makes."""
    outputs: Any = None
    """As it gave them, each tensor packed. None of an operator whose numbers are drawn again, and
    of a product that is not kept."""
    like: Shape | None = None
    """Of a product that is not kept, since nothing needs it."""
    state: Any = None
    """Of the generator, before."""
    saves: int = 0
    """Of a module or function: how many saves there were at its end. The replay goes on there."""
    communicates: bool = False
    """It is an operator or a function that does."""
    given: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    """Of an operator that communicates: the shapes of what it sent."""
    function: int | None = None
    """Of a function: how many there were before it."""
    own: dict[int, int] = dataclasses.field(default_factory=dict)
    """Of a function: by the place of a save, which of the things that it was given is saved."""
    is_tiled: bool = False
    """Of a module that ran in tiles."""
    effects: list[tuple[Any, Any, Any]] = dataclasses.field(default_factory=list)
    """Of a module or hook that is answered: what it left of the layer's own, which is left again:
    how it is written, where, and what."""
    changed: dict[int, Any] = dataclasses.field(default_factory=dict)
    """Of a function: things that it was given and has written into, as they were at its end."""

    @property
    def is_computed(self) -> bool:
        """Whether what it gave need not be kept: without it, it runs again."""
        return self.name in COMPUTED or self.is_tiled


_kinds: dict[Any, str] = {}


def kind_of(func: Any) -> str:
    """`attention`, `product`, `sum`, `random`, `collective`, `passes`, `dynamic`, or nothing."""
    kind = _kinds.get(func)
    if kind is None:
        kind = _kinds[func] = _classify(func)
    return kind


def _classify(func: Any) -> str:  # noqa: PLR0911 - one for each kind
    name, tags = name_of(func), getattr(func, "tags", ())
    space = name.partition("::")[0]
    if name in ATTENTION or name == "flex_attention":
        return "attention"
    if "flash_attn" in space and "backward" not in name:
        return "attention"
    if name in PRODUCTS:
        return "product"
    if name in SUMS:
        return "sum"
    if name in communicate.PASSES:
        return "passes"
    if space in communicate.SPACES:
        return "collective"
    if torch.Tag.nondeterministic_seeded in tags:
        return "random"
    if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
        return "dynamic"
    return ""


def name_of(func: Any) -> str:
    name = func.name() if callable(getattr(func, "name", None)) else getattr(func, "_name", "")
    return str(name).partition(".")[0]


def first_shape(args: tuple[Any, ...]) -> tuple[int, ...]:
    first = args[0] if args else ()
    return tuple(first.shape) if isinstance(first, torch.Tensor) else tuple(first)


def is_worth_keeping(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a product is kept where products are."""
    return int(args[PRODUCTS[name]].shape[-1]) >= DEPTH


def is_kept(kind: str, call: Any) -> bool:
    """Whether a pass keeps such outputs, of all tokens: products if it is told to, and sums."""
    return call.first == 0 and (kind == "sum" or (kind == "product" and call.keeps_products))
