"""Tensors that are kept from a layer's forward to its backward pass."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch.multiprocessing.reductions import StorageWeakRef

from girih._long.layout import Layout, address
from girih._long.trace import Shape, start_of

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
        check_version(self.value, self.version)
        return self.value


def check_version(tensor: Any, version: int) -> None:
    """Raises what autograd would, if a tensor was written into since it was saved."""
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an "
            f"inplace operation: a {tensor.dtype} of {list(tensor.shape)} that a layer "
            f"saved is at version {tensor._version}; expected version {version} instead"
        )


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


class Places:
    """The places of tensors of one pass, some of which are let go of while it runs.

    What lies where another did, which is no more, or was written into since, has another place.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int, int]] = {}
        """By where a storage begins: itself, its version, and how many there were before it."""

    def of(self, tensor: Any) -> tuple[Any, ...]:
        """Of a tensor that is there."""
        at = place(tensor)
        if len(at) == 1 or tensor.numel() == 0:
            return at
        start = start_of(tensor)
        known, version, times = self._known.get(start, (None, tensor._version, 0))
        if known is None or known.expired() or version != tensor._version:
            times += known is not None
            known = StorageWeakRef(tensor.untyped_storage())
            self._known[start] = known, tensor._version, times
        return (*at, times) if times else at
