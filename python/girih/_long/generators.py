"""States of random number generators of Python and numpy, the global ones among them."""

from __future__ import annotations

import ctypes
import pickle
import random
import sys
from typing import Any

TWISTER = 625 * 4
"""Bytes of the state of numpy's MT19937: its key, and where in it the next number is."""


class Legacy:
    """A generator of numpy's older kind, or that of all, as the newer ones are."""

    def __init__(self, own: Any) -> None:
        self.own = own

    @property
    def state(self) -> Any:
        """With the second of a pair of normal numbers, where that is still to be given."""
        return self.own.get_state(legacy=False)

    @state.setter
    def state(self, state: Any) -> None:
        self.own.set_state(state)


def read_python(there: random.Random | None) -> Any:
    """None is the one of all."""
    return random.getstate() if there is None else there.getstate()


def write_python(there: random.Random | None, state: Any) -> None:
    """Likewise."""
    if there is None:
        random.setstate(state)
    else:
        there.setstate(state)


def read_numpy(there: Any) -> bytes:
    """Of anything that has a `state`."""
    return pickle.dumps(there.state)


def write_numpy(there: Any, state: bytes) -> None:
    """Likewise."""
    there.state = pickle.loads(state)


class _Global:
    """The one of all of numpy. To have its state takes 30 microseconds, to see that it is that of
    the time before one: of each pass of each layer the former would be most of what it takes."""

    def __init__(self) -> None:
        self.raw, self.state = b"", b""

    def read(self, legacy: Legacy) -> bytes:
        """Its state."""
        raw = _raw(legacy.own)
        if not raw or raw != self.raw:
            state = legacy.state
            # Where a normal number is left over, its use changes nothing of the key.
            self.raw = b"" if state.get("has_gauss", 1) else raw
            self.state = pickle.dumps(state)
        return self.state


def _raw(numpy_random: Any) -> bytes:
    """The bytes of the generator's key; empty where that is not known to be all."""
    bits = numpy_random.mtrand._rand._bit_generator
    if type(bits).__name__ != "MT19937":
        return b""
    return ctypes.string_at(bits.ctypes.state_address, TWISTER)


_global = _Global()


def of_all() -> list[tuple[Any, Any, Any]]:
    """What is global: each with what reads and what writes it.

    Where numpy's was never imported, nothing was drawn of it.
    """
    found: list[tuple[Any, Any, Any]] = [(None, read_python, write_python)]
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        found.append((Legacy(numpy_random), _global.read, write_numpy))
    return found
