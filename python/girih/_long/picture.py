"""What the attributes of a module hold, and of what lies within them, so that it can be put back.

Attributes lead to lists, dictionaries, sets, objects of the program's, arrays and generators. One
is taken in every pass of a layer, and one around every replay: a layer without state of its own
has but to be walked once, so that what is done for each attribute must be little.
"""

from __future__ import annotations

import collections
import functools
import random
import sys
import types
from collections.abc import Callable, Iterator
from operator import is_
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from girih._long import generators
from girih._long.placed import ASKED

MOST = 20_000
"""Entries that are looked at for one picture: an attribute may lead to all that a program has."""
LARGE = 2_000
"""Entries of a list, a dictionary or a queue from which on it is believed to grow at its end alone:
a history, or data. Its entries are not looked at."""
ARRAY_MOST = 1 << 20
"""Bytes of an array of numpy's that is looked at; larger ones are data, and no state."""
APART = (frozenset(vars(torch.nn.Module())) | {"forward", *ASKED}) - {"training"}
"""Of a module's attributes those that are the module's own business, or Girih's: parameters,
modules, hooks; and buffers, which are looked at by themselves."""
FOREIGN = {"torch", "girih", "numpy", "logging", "threading", "multiprocessing", "concurrent"}
"""Packages whose objects are not looked into."""
PLAIN = frozenset({int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device})
"""Types of most of what attributes are. Nothing lies within."""
BUILT_IN = frozenset({dict, list, tuple, set, collections.deque})
"""Types that have no attributes."""
LEAVES: tuple[Any, ...] = (
    *(int, float, complex, str, bytes, type(None), type, torch.nn.Module),
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType),
)
WAYS: dict[str, Any] = {
    "dict": dict,
    "sequence": (list, collections.deque),
    "tuple": tuple,
    "set": set,
    "random": random.Random,
}
"""How objects are looked at, by what they come of."""

Read = Callable[[Any], Any]
Write = Callable[[Any, Any], None]


# ---- how each is read and written


@functools.lru_cache(maxsize=4096)
def _own_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Of the names of attributes, in their order, those that are looked at."""
    return tuple(it for it in names if it not in APART)


def _write_attributes(there: dict[str, Any], was: dict[str, Any]) -> None:
    for name in [it for it in there if it not in APART and it not in was]:
        del there[name]
    there.update({name: it for name, it in was.items() if name not in APART})


def _write_dict(there: dict[Any, Any], was: dict[Any, Any]) -> None:
    # Of the class that it comes of: others refuse (transformers' ModelOutput does), or count.
    base: Any = collections.OrderedDict if isinstance(there, collections.OrderedDict) else dict
    base.clear(there)
    base.update(there, was)


def _write_sequence(there: Any, was: Any) -> None:
    there.clear()
    there.extend(was)


def _write_set(there: set[Any], was: set[Any]) -> None:
    there.clear()
    there.update(was)


def _read_array(there: Any) -> Any:
    return there.copy()


def _write_array(there: Any, was: Any) -> None:
    there[...] = was


def _write_length(there: Any, was: int) -> None:
    """Takes away what came since, at its end."""
    while len(there) > was:
        if isinstance(there, dict):
            there.popitem()
        else:
            there.pop()


def _read_slots(there: Any) -> dict[str, Any]:
    kind: Any = type(there)
    found = {name: getattr(there, name, _NOTHING) for name in _slots(kind)}
    return {name: it for name, it in found.items() if it is not _NOTHING}


def _write_slots(there: Any, was: dict[str, Any]) -> None:
    for name in _read_slots(there).keys() - was.keys():
        object.__delattr__(there, name)
    for name, it in was.items():
        # Whatever the class says to it: one that is frozen, too.
        object.__setattr__(there, name, it)


_NOTHING = object()


@functools.lru_cache(maxsize=4096)
def _way_of(kind: Any) -> str:
    """How objects of a class are looked at. Of the class: an object may say that it is another's,
    and be long about it."""
    if issubclass(kind, torch.Tensor):
        return "tensor"
    if issubclass(kind, LEAVES):
        return "leaf"
    for way, base in WAYS.items():
        if issubclass(kind, base):
            return way
    return "numpy" if kind.__module__.startswith("numpy") else "object"


@functools.lru_cache(maxsize=4096)
def _is_foreign(kind: Any) -> bool:
    """Whether objects of a class are not looked into."""
    return kind.__module__.partition(".")[0] in FOREIGN


@functools.lru_cache(maxsize=4096)
def _slots(kind: Any) -> tuple[str, ...]:
    """Of a class and those that it comes of."""
    names: list[str] = []
    for one in kind.__mro__:
        slots = one.__dict__.get("__slots__", ())
        own = (slots,) if isinstance(slots, str) else tuple(slots)
        mine = one.__name__.lstrip("_")
        names += [f"_{mine}{it}" if it[:2] == "__" and it[-2:] != "__" else it for it in own]
    return tuple(it for it in names if it not in ("__dict__", "__weakref__"))


def _is_same_dict(a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    return len(a) == len(b) and all(map(is_, a.values(), b.values())) and [*a] == [*b]


def _is_same(a: Any, b: Any) -> bool:
    """Whether two pictures of one thing are: of the same things within it, not of equal ones."""
    if isinstance(a, dict):
        return _is_same_dict(a, b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(is_, a, b))
    if isinstance(a, (set, bytes, tuple, int)):
        return bool(a == b)
    return bool(a.tobytes() == b.tobytes())


class Thing:
    """One thing that can be written into, and what it held."""

    __slots__ = ("held", "read", "there", "write")

    def __init__(self, there: Any, read: Read, write: Write, held: Any = _NOTHING) -> None:
        self.there, self.read, self.write = there, read, write
        self.held = read(there) if held is _NOTHING else held

    def is_as_it_was(self) -> bool:
        """Whether it holds the same."""
        if self.write is _write_attributes:
            is_same = _is_same_dict(self.held, self.there)
            return is_same or _is_same_dict(_own(self.held), _own(self.there))
        return _is_same(self.held, self.read(self.there))

    def restore(self) -> bool:
        """Has it hold what it held. Whether it had changed."""
        if self.is_as_it_was():
            return False
        self.write(self.there, self.held)
        return True

    def settle(self) -> None:
        """Lets go of the histories of tensors: another graph is not to live on by this one."""
        if isinstance(self.held, dict):
            self.held = {name: _settled(it) for name, it in self.held.items()}
        elif isinstance(self.held, list):
            self.held = [_settled(it) for it in self.held]


def _own(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: attributes[name] for name in _own_names(tuple(attributes))}


def _settled(value: Any) -> Any:
    if isinstance(value, (torch.Tensor, tuple)) and any(map(_has_history, tree_leaves(value))):
        return tree_map(lambda it: bare(it) if _has_history(it) else it, value)
    return value


def _has_history(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def bare(tensor: Any) -> Any:
    """Without its history, of which another graph is."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def modules_of(module: Any) -> Iterator[Any]:
    """It and those within it, each once: `modules` takes three times as long."""
    seen, left = {id(module)}, [module]
    while left:
        one = left.pop()
        yield one
        for inner in one._modules.values():
            if inner is not None and id(inner) not in seen:
                seen.add(id(inner))
                left.append(inner)


# ---- the walk


class Picture:
    """What the attributes of a module, and of those within it, hold."""

    def __init__(self, module: Any) -> None:
        self.things: list[Thing] = []
        self.tensors: list[Any] = []
        """Those that were come across, parameters among them."""
        self._empty: list[dict[Any, Any]] = []
        """Dictionaries without entries: no things, of which there would be twice as many."""
        self._unsettled: list[Thing] = []
        """Those that may hold a tensor that knows what it comes of."""
        self._left = MOST
        self._seen: set[int] = set()
        for it in modules_of(module):
            if parameters := it._parameters:
                self.tensors += [one for one in parameters.values() if one is not None]
            if buffers := it._buffers:
                self._add(buffers, dict, _write_dict)
            else:
                self._empty.append(buffers)
            self._look_at_attributes(it.__dict__)
        self.things += [Thing(*it) for it in generators.of_all()]

    def _look_at_attributes(self, there: dict[str, Any]) -> None:
        thing = Thing(there, dict.copy, _write_attributes)
        held = thing.held
        self.things.append(thing)
        values = [it for name in _own_names(tuple(held)) if type(it := held[name]) not in PLAIN]
        self._look_within(thing, values)

    def _look_within(self, thing: Thing, values: Any) -> None:
        """At what a thing holds."""
        for value in values:
            kind: Any = type(value)
            if kind in PLAIN:
                continue
            if kind is dict and not value:
                self._empty.append(value)
                continue
            way = _way_of(kind)
            if way in ("tensor", "tuple"):
                if not self._unsettled or self._unsettled[-1] is not thing:
                    self._unsettled.append(thing)
                if way == "tensor":
                    self.tensors.append(value)
                    continue
            if way != "leaf" and id(value) not in self._seen and self._left > 0:
                self._seen.add(id(value))
                self._left -= 1
                self._look_at(value, kind, way, thing)

    def _look_at(self, value: Any, kind: Any, way: str, holder: Thing) -> None:
        if way in ("dict", "sequence"):
            self._left -= len(value)
            if len(value) > LARGE:
                self.things.append(Thing(value, len, _write_length))
            elif way == "dict":
                self._add(value, dict, _write_dict)
            else:
                self._add(value, list, _write_sequence)
        elif way == "tuple":
            # It is never another, but what lies within may be.
            self._look_within(holder, value)
        elif way == "set":
            self.things.append(Thing(value, set, _write_set))
        elif way == "random":
            self.things.append(Thing(value, generators.read_python, generators.write_python))
        elif way == "numpy":
            self._look_at_numpy(value)
        if kind in BUILT_IN or way in ("random", "numpy") or _is_foreign(kind):
            return
        if isinstance(there := getattr(value, "__dict__", None), dict):
            self._look_at_attributes(there)
        if _slots(kind):
            self._add(value, _read_slots, _write_slots)

    def _add(self, there: Any, read: Read, write: Write) -> None:
        thing = Thing(there, read, write)
        self.things.append(thing)
        held = thing.held
        self._look_within(thing, held.values() if isinstance(held, dict) else held)

    def _look_at_numpy(self, value: Any) -> None:
        numpy: Any = sys.modules["numpy"]
        read, write = generators.read_numpy, generators.write_numpy
        if isinstance(value, numpy.ndarray):
            if value.nbytes <= ARRAY_MOST and value.dtype.kind in "biufc":
                self.things.append(Thing(value, _read_array, _write_array))
        elif isinstance(value, numpy.random.Generator):
            self.things.append(Thing(value.bit_generator, read, write))
        elif isinstance(value, numpy.random.RandomState):
            self.things.append(Thing(generators.Legacy(value), read, write))

    def restore(self) -> int:
        """Puts all back as it was. How many things had changed."""
        filled = [it for it in self._empty if it]
        for it in filled:
            it.clear()
        return len(filled) + sum([thing.restore() for thing in self.things])

    def replace(self) -> list[Thing]:
        """The same, around a replay. Gives what puts back what was there before.

        What has but grown at its end since stays: it would be lost.
        """
        was = [it for it in self._replaceable() if not it.is_as_it_was()]
        was += [Thing(it, dict, _write_dict, {}) for it in self._empty if it]
        now = [Thing(it.there, it.read, it.write) for it in was]
        for thing in was:
            thing.write(thing.there, thing.held)
        return now

    def changed(self) -> list[Thing]:
        """Those that hold something else by now, with what they hold now.

        Not what has but grown at its end: what came is not known.
        """
        others = [it for it in self._replaceable() if not it.is_as_it_was()]
        others += [Thing(it, dict, _write_dict) for it in self._empty if it]
        return [Thing(it.there, it.read, it.write) for it in others]

    def _replaceable(self) -> Iterator[Thing]:
        """Those of which it is known what they held, and not how much alone."""
        return (it for it in self.things if it.write is not _write_length)

    def settle(self) -> None:
        """The pass has ended: see `Thing.settle`."""
        self.tensors.clear()
        for thing in self._unsettled:
            thing.settle()
