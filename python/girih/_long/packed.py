"""Tensors that are kept from a layer's forward to its backward pass."""

from __future__ import annotations

import dataclasses
from typing import Any

from girih._long.layout import Layout, address
from girih._long.trace import Shape

Storage = tuple[Any, ...]
"""Of tensors that were saved: where it began, of what type, on which device."""


@dataclasses.dataclass
class Packed:
    """A tensor that is kept, as the hooks around the layer pack it (those of swapping, or none)."""

    value: Any
    unpack: Any
    version: int
    requires_grad: bool
    like: Shape
    tensor: Any = None
    """The tensor itself, until the layer's pass ends."""

    def copy(self) -> None:
        """From now on it is a copy: someone is to write into the tensor."""
        self.value = self.tensor = self.tensor.clone()
        self.version = self.value._version

    def get(self) -> Any:
        """The tensor."""
        if self.unpack is not None:
            return self.unpack(self.value)
        if self.value._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: a {self.value.dtype} of {list(self.value.shape)} that a layer "
                f"saved is at version {self.value._version}; expected version {self.version} "
                "instead"
            )
        return self.value


@dataclasses.dataclass
class Save:
    """A tensor that autograd saved."""

    tensor: Any
    """The tensor itself, until the layer's pass ends."""
    version: int
    module: str
    """The innermost module that was running; empty for the layer itself."""
    is_fixed: bool
    """A parameter or buffer of the layer, or within an opaque module, or of a class that has its
    bytes elsewhere: never cut."""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    place: tuple[Any, ...] = ()
    """The bytes of it: equal for saves of the same ones."""
    bytes: int = 0
    """0 of a parameter or buffer of the layer."""
    storage: Storage = ()
    """Which one it is of: views of one storage are put together in one again, as they were."""
    offset: int = 0
    """In elements, in that storage."""
    whole: Packed | None = None
    layout: Layout | None = None
    kept: Packed | None = None
    """The first tokens, if there are any that are kept."""
    notes: int = 0
    """How many notes a replay has come to when it saves this."""
    wrap: Any = None
    """Makes of the plain tensor that this is the wrapper that autograd saved, if it was one."""


def place(tensor: Any) -> tuple[Any, ...]:
    """The bytes of a tensor: equal for those that are the same."""
    start = address(tensor)
    return (id(tensor),) if start is None else (start, tensor.numel(), tensor.dtype)
