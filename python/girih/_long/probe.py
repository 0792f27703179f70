"""How a module can run over some tokens after others: by what it does with a few of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from girih._long.layout import PLAIN, address, close_up
from girih._long.notes import kind_of, name_of
from girih._long.trace import start_of, written

PROBED = 16
"""Tokens over which a module is watched."""
WIDE = 4
"""What a module saves, in bytes of its input: of what is less, tiles would win nothing."""
PRODUCTS_LEAST = 2
"""Matrices among its parameters."""
CANNOT = {
    "attention": "attends",
    "random": "draws random numbers",
    "collective": "communicates",
    "dynamic": "has shapes that depend on data",
}


class Unfit(Exception):
    """A module cannot run in tiles: why."""


@dataclasses.dataclass
class Use:
    """One product of a module with parameters of its own, in the order in which they run."""

    kind: str
    """`linear` or `addmm`."""
    weight: int | None
    """Which of the parameters that want a gradient it is; None if it wants none."""
    bias: int | None
    is_last: bool = False
    """What it gives is what the module gives: the gradient of that is there whole."""


@dataclasses.dataclass
class Plan:
    """How a module runs in tiles."""

    uses: list[Use]
    saved: float
    """Bytes that autograd would save of a token, but for its input."""


def trained(module: Any) -> list[Any]:
    """The parameters of a module that want a gradient."""
    return [it for it in module.parameters() if it.requires_grad]


def product_of(func: Any, args: tuple[Any, ...], kwargs: Any) -> tuple[str, Any, Any, Any] | None:
    """The kind, the rows, the weight and the bias of a product; None if it is none we know."""
    if func is functional.linear:
        names, given = ("input", "weight", "bias"), dict(kwargs)
        given |= dict(zip(names, args, strict=False))
        return "linear", given["input"], given["weight"], given.get("bias")
    if func is torch.addmm and len(args) == 3 and not kwargs:
        return "addmm", args[1], args[2], args[0]
    return None


def may_be_one(module: Any) -> bool:
    """Whether it has as many matrices as would be worth a look."""
    return len([it for it in module.parameters() if it.ndim == 2]) >= PRODUCTS_LEAST


def probe(module: Any, run: Callable[[Any], Any], x: Any, dim: int) -> Plan:
    """How a module can run in tiles: by what it does with a few tokens.

    Raises:
        Unfit: if it cannot, or nothing would be won.
    """
    for child in module.modules():
        if child is not module and (
            child._forward_hooks or child._forward_pre_hooks or child._backward_hooks
        ):
            raise Unfit("modules within it have hooks, which would run for every tile")
    if any(type(it) not in PLAIN for it in module.parameters()):
        raise Unfit("its parameters are tensors of a class of their own")
    rows = x.narrow(dim, 0, min(PROBED, x.shape[dim]))
    rows = close_up(rows, x).detach().requires_grad_()
    parameters = trained(module)
    seen = Seeing(parameters, rows)
    saved: dict[int, int] = {}
    own = {address(it) for it in [*module.parameters(), *module.buffers(), rows]}

    def pack(tensor: Any) -> Any:
        at = address(tensor)
        if at is not None and at not in own:
            saved[at] = max(saved.get(at, 0), tensor.nbytes)
        held.append(tensor)
        return tensor

    held: list[Any] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda it: it)
    with torch.enable_grad(), hooks, Watching(rows), seen:
        gives = run(rows)
    if not isinstance(gives, torch.Tensor) or gives.shape[:-1] != rows.shape[:-1]:
        raise Unfit("it gives something else than rows")
    if start_of(gives) == start_of(rows) or not gives.requires_grad:
        raise Unfit("it gives what it was given")
    if not _learns(gives) <= {id(it) for it in (rows, *parameters)}:
        raise Unfit("it learns what is no parameter of it")
    covered = [it for use in seen.uses for it in (use.weight, use.bias) if it is not None]
    if sorted(covered) != list(range(len(parameters))):
        raise Unfit("its parameters go into something else than one product each")
    for use, gave in zip(seen.uses, seen.gave, strict=True):
        use.is_last = gave is gives or gave._base is gives or gives._base is gave
    if sum(saved.values()) < WIDE * rows.nbytes:
        raise Unfit("next to nothing would be won")
    return Plan(seen.uses, sum(saved.values()) / rows.shape[dim])


def _learns(gives: Any) -> set[int]:
    """Tensors that a gradient of what a module gives would come to, by their ids."""
    found, left, seen = set[int](), [gives.grad_fn], set[Any]()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        left += [after for after, _ in node.next_functions]
    return found


class Watching(TorchDispatchMode):  # type: ignore[misc]
    """Raises where a module does what tiles cannot."""

    def __init__(self, rows: Any) -> None:
        super().__init__()
        self.made = {start_of(rows)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs an operator."""
        kwargs, kind = kwargs or {}, kind_of(func)
        if kind in CANNOT:
            raise Unfit(f"it {CANNOT[kind]} ({name_of(func)})")
        if getattr(func, "_schema", None) is None:
            raise Unfit(f"it has a program of its own ({name_of(func)})")
        changed = written(func, args, kwargs) if func._schema.is_mutable else []
        if any(start_of(it) not in self.made for it in changed):
            raise Unfit(f"it changes what it has ({name_of(func)})")
        gave = func(*args, **kwargs)
        given = {start_of(it) for it in tree_leaves((args, kwargs)) if torch.is_tensor(it)}
        self.made |= {start_of(it) for it in tree_leaves(gave) if torch.is_tensor(it)} - given
        return gave


class Seeing(TorchFunctionMode):  # type: ignore[misc]
    """Notes the products with parameters that want gradients."""

    def __init__(self, parameters: list[Any], rows: Any) -> None:
        super().__init__()
        self.numbers = {id(it): number for number, it in enumerate(parameters)}
        self.count = math.prod(rows.shape[:-1])
        self.uses: list[Use] = []
        self.gave: list[Any] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs a function of torch."""
        kwargs = kwargs or {}
        gave = func(*args, **kwargs)
        if getattr(func, "__name__", "") == "__get__":
            return gave
        leaves = [id(it) for it in tree_leaves((args, kwargs)) if id(it) in self.numbers]
        if not leaves:
            return gave
        product = product_of(func, args, kwargs)
        if product is None:
            name = getattr(func, "__name__", str(func))
            raise Unfit(f"a parameter of it goes into {name}, and not into a product")
        kind, x, weight, bias = product
        if id(x) in self.numbers or math.prod(x.shape[:-1]) != self.count or weight.ndim != 2:
            raise Unfit("one of its products is not of its tokens' rows")
        number = self.numbers.get
        self.uses.append(Use(kind, number(id(weight)), number(id(bias))))
        self.gave.append(gave)
        return gave
