"""What a layer has of its own, as a pass finds it: a replay finds it so again, and leaves no trace.

A layer may write what it has: count its steps, keep running means, the loads of its experts, keys
of earlier tokens, what it was given last. It runs again to be compared, for the backward pass, and
where what was let go of does not come again. So

- `Picture` is of attributes, and of what lies within them: lists, dictionaries, sets, objects of
  the program's, arrays; and of generators of Python and numpy, the global ones among them;
- `Undo` is of tensors that are there before a pass, and are written into while it runs. What else
  writes into a tensor of the layer's before the replay is seen by its version, and an error.

A replay puts both back as the pass found them, runs, and puts back what it found itself. Not seen
is what no attribute leads to (a global list, a file), and what objects of C hold.
"""

from __future__ import annotations

import collections
import contextlib
import pickle
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from girih._long.communicate import unwrapped
from girih._long.layout import address
from girih._long.trace import Made, start_of, writes

MOST = 20_000
"""Entries that are looked at for one picture: an attribute may lead to all that a program has."""
ARRAY_MOST = 1 << 20
"""Bytes of an array of numpy's that is looked at; larger ones are data, and no state."""
APART = (frozenset(vars(torch.nn.Module())) | {"forward"}) - {"training", "_buffers"}
"""Of a module's attributes those that are the module's own business: parameters, modules, hooks."""
FOREIGN = {"torch", "girih", "numpy", "logging", "threading", "multiprocessing", "concurrent"}
"""Packages whose objects are not looked into."""
LEAVES: tuple[Any, ...] = (
    *(int, float, complex, str, bytes, type(None), type, torch.Tensor, torch.nn.Module),
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType),
)

Read = Callable[[Any], Any]
Write = Callable[[Any, Any], None]


def _write_dict(there: dict[Any, Any], was: dict[Any, Any]) -> None:
    there.clear()
    there.update(was)


def _write_attributes(there: dict[str, Any], was: dict[str, Any]) -> None:
    for name in [it for it in there if it not in APART and it not in was]:
        del there[name]
    there.update(was)


def _write_sequence(there: Any, was: Any) -> None:
    there.clear()
    there.extend(was)


def _write_set(there: set[Any], was: set[Any]) -> None:
    there.clear()
    there.update(was)


def _write_array(there: Any, was: Any) -> None:
    there[...] = was


def _write_numpy(there: Any, was: bytes) -> None:
    there.state = pickle.loads(was)


def _read_numpy(there: Any) -> bytes:
    return pickle.dumps(there.state)


def _attributes(there: dict[str, Any]) -> dict[str, Any]:
    return {name: it for name, it in there.items() if name not in APART}


def _is_same(a: Any, b: Any) -> bool:
    """Whether two pictures of one thing are: of the same things within it, not of equal ones."""
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items(), strict=False)
        return len(a) == len(b) and all(k == m and x is y for (k, x), (m, y) in pairs)
    if isinstance(a, list):
        return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
    if isinstance(a, (set, bytes, tuple)):
        return bool(a == b)
    return bool(a.tobytes() == b.tobytes())


class Thing:
    """One thing that can be written into, and what it held."""

    __slots__ = ("held", "read", "there", "write")

    def __init__(self, there: Any, read: Read, write: Write) -> None:
        self.there, self.read, self.write = there, read, write
        self.held = read(there)

    def is_as_it_was(self) -> bool:
        """Whether it holds the same."""
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


def _settled(value: Any) -> Any:
    if isinstance(value, (torch.Tensor, tuple)) and any(map(_has_history, tree_leaves(value))):
        return tree_map(lambda it: _bare(it) if _has_history(it) else it, value)
    return value


def _has_history(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _bare(tensor: Any) -> Any:
    return tensor.detach().requires_grad_(tensor.requires_grad)


class Picture:
    """What the attributes of a module, and of those within it, hold."""

    def __init__(self, module: Any) -> None:
        self.things: list[Thing] = []
        self.tensors: list[Any] = []
        """Those that were come across."""
        self._left = MOST
        self._seen: set[int] = set()
        for it in module.modules():
            self._look_at_attributes(it.__dict__)
        self._add_generators()

    def _add_generators(self) -> None:
        self.things.append(Thing(None, lambda _: random.getstate(), _set_random))
        numpy = sys.modules.get("numpy")
        if numpy is not None and hasattr(numpy, "random"):
            self.things.append(Thing(_Legacy(numpy.random), _read_numpy, _write_numpy))

    def _look_at_attributes(self, there: dict[str, Any]) -> None:
        self.things.append(Thing(there, _attributes, _write_attributes))
        for value in self.things[-1].held.values():
            self._look_at(value)

    def _look_at(self, value: Any) -> None:
        if isinstance(value, LEAVES):
            if isinstance(value, torch.Tensor):
                self.tensors.append(value)
            return
        if id(value) in self._seen or self._left <= 0:
            return
        self._seen.add(id(value))
        self._left -= 1
        within: Any = ()
        if isinstance(value, dict):
            self.things.append(Thing(value, dict, _write_dict))
            within = value.values()
        elif isinstance(value, (list, collections.deque)):
            self.things.append(Thing(value, list, _write_sequence))
            within = value
        elif isinstance(value, set):
            self.things.append(Thing(value, set, _write_set))
        elif isinstance(value, tuple):
            within = value
        elif isinstance(value, random.Random):
            self.things.append(Thing(value, random.Random.getstate, random.Random.setstate))
        elif self._is_of_numpy(value):
            return
        if isinstance(getattr(value, "__dict__", None), dict):
            root = type(value).__module__.partition(".")[0]
            if root not in FOREIGN and not isinstance(value, random.Random):
                self._look_at_attributes(value.__dict__)
        for it in within:
            self._look_at(it)

    def _is_of_numpy(self, value: Any) -> bool:
        if not type(value).__module__.startswith("numpy"):
            return False
        numpy: Any = sys.modules["numpy"]
        if isinstance(value, numpy.ndarray):
            if value.nbytes <= ARRAY_MOST and value.dtype.kind in "biufc":
                self.things.append(Thing(value, lambda it: it.copy(), _write_array))
        elif isinstance(value, numpy.random.Generator):
            self.things.append(Thing(value.bit_generator, _read_numpy, _write_numpy))
        elif isinstance(value, numpy.random.RandomState):
            self.things.append(Thing(_Legacy(value), _read_numpy, _write_numpy))
        return True

    def restore(self) -> int:
        """Puts all back as it was. How many things had changed."""
        return sum(thing.restore() for thing in self.things)

    def changed(self) -> list[Thing]:
        """Those that hold something else by now, with what they hold now."""
        others = [it for it in self.things if not it.is_as_it_was()]
        return [Thing(it.there, it.read, it.write) for it in others]

    def settle(self) -> None:
        """The pass has ended: see `Thing.settle`."""
        self.tensors.clear()
        for thing in self.things:
            thing.settle()


class _Legacy:
    """A generator of numpy's older kind, or that of all, as the newer ones are."""

    def __init__(self, own: Any) -> None:
        self.own = own

    @property
    def state(self) -> Any:
        return self.own.get_state(legacy=False)

    @state.setter
    def state(self, state: Any) -> None:
        self.own.set_state(state)


def _set_random(_: Any, state: Any) -> None:
    random.setstate(state)


class Undo:
    """Tensors that were there before, as they were before they were written into."""

    def __init__(self) -> None:
        self.was: dict[int, tuple[Any, Any]] = {}
        """By where a storage begins: its bytes, and a copy of them."""

    def before(self, tensor: Any) -> None:
        """It is to be written into. All of its storage is copied, the first time."""
        start = start_of(tensor)
        if start not in self.was:
            there = bytes_of(tensor)
            self.was[start] = there, there.clone()

    def restore(self, after: int = 0) -> None:
        """Writes what was there, of all but the first so many."""
        for there, was in list(self.was.values())[after:]:
            there.copy_(was)

    def forget(self, after: int) -> None:
        """Likewise: they are no more to be known."""
        for start in list(self.was)[after:]:
            del self.was[start]

    def nbytes(self) -> int:
        """Of the copies."""
        return sum(int(was.nbytes) for _, was in self.was.values())


class Own:
    """What a layer has of its own, in one pass."""

    def __init__(self, module: Any, given: Iterable[Any]) -> None:
        self.picture = Picture(module)
        """As the pass finds it."""
        self.undo = Undo()
        """What of it the pass writes into, as it was before."""
        self.made = Made(given)
        self.wrote: list[Any] | None = None
        """What is written into while something runs that will be answered."""
        its = [*module.parameters(), *module.buffers(), *self.picture.tensors]
        plain = [it for one in its if address(it := unwrapped(one)[0])]
        # Without their histories, of which other graphs are.
        self._versions = [(it.detach(), it._version) for it in plain]

    def writes(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        """An operator is to run: what it changes is noted as it is."""
        for tensor in self.made.others(func, args, kwargs) if writes(func) else ():
            self.undo.before(tensor)
            if self.wrote is not None:
                self.wrote.append(tensor)

    def begin_anew(self) -> None:
        """All is again as the pass found it."""
        self.undo.restore()
        self.picture.restore()

    def stale(self) -> set[int]:
        """Storages that were changed since, but by the pass itself."""
        changed = {start_of(it) for it, version in self._versions if it._version != version}
        return changed - self.undo.was.keys()


def bytes_of(tensor: Any) -> Any:
    """Of all of its storage. Written into by this, no version of a tensor tells of it."""
    with torch.no_grad():
        raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return raw.set_(tensor.untyped_storage())


def effects(before: Picture, undo: Undo, wrote: Iterable[Any]) -> list[tuple[Any, Any, Any]]:
    """What was left of a layer's own since a picture was taken, so that it can be left again."""
    things = before.changed()
    for thing in things:
        thing.settle()
    found: list[tuple[Any, Any, Any]] = [(it.write, it.there, it.held) for it in things]
    places = {start_of(it): undo.was[start_of(it)][0] for it in wrote}
    return [*found, *((None, there, there.clone()) for there in places.values())]


def leave(left: list[tuple[Any, Any, Any]], undo: Undo) -> None:
    """Leaves it again."""
    for write, there, value in left:
        if write is not None:
            write(there, value)
        else:
            undo.before(there)
            there.copy_(value)


@contextlib.contextmanager
def as_it_was(module: Any, own: Own, undo: Undo) -> Iterator[None]:
    """Around a replay: it finds what the pass found. What it writes is undone, by its `undo`."""
    now = Picture(module)
    try:
        for there, was in own.undo.was.values():
            undo.before(there)
            there.copy_(was)
        own.picture.restore()
        yield
    finally:
        undo.restore()
        now.restore()
