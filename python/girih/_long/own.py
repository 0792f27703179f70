"""What a layer has of its own, as a pass finds it: a replay finds it so again, and leaves no trace.

A layer may write what it has: count its steps, keep running means, the loads of its experts, keys
of earlier tokens, what it was given last. It runs again to be compared, for the backward pass, and
where what was let go of does not come again. So

- `Picture` is of attributes, and of what lies within them: lists, dictionaries, sets, objects of
  the program's, arrays; and of generators of Python and numpy, the global ones among them;
- `Undo` is of tensors that are there before a pass, and are written into while it runs. What else
  writes into a tensor of the layer's before the replay is seen by its version, or by its storage
  where it was given another, and is an error;
- `Weights` (`weights.py`) are the parameters.

A replay puts all back as the pass found them, runs, and puts back what it found itself. Not seen
is what no attribute leads to (a global list, a file), and what objects of C hold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from girih._long.communicate import unwrapped
from girih._long.layout import address
from girih._long.notes import ReplayError
from girih._long.picture import Picture, Thing
from girih._long.trace import Made, start_of, writes
from girih._long.weights import Weights

MANAGED = "ds_id"
"""An attribute of a parameter that a sharding gives its bytes whenever it is used (DeepSpeed's ZeRO
of stage 3): in another storage each time, and with the same values."""

Storages = dict[int, StorageWeakRef]


class Undo:
    """Tensors that were there before, as they were before they were written into.

    With `keeps_versions` they have their versions again, too, so that autograd does not take what
    was written and undone for a change of what it saved.
    """

    def __init__(self, *, keeps_versions: bool = False) -> None:
        self.was: dict[int, tuple[Any, Any]] = {}
        """By where a storage begins: its bytes, and a copy of them."""
        self.keeps_versions = keeps_versions
        self._versions: dict[int, Any] = {}
        """By its id, a tensor, and what sets its version back. What operators see of it below
        autograd has the version of the whole."""

    def before(self, tensor: Any) -> None:
        """It is to be written into. All of its storage is copied, the first time."""
        whole = tensor if tensor._base is None else tensor._base
        if self.keeps_versions and id(whole) not in self._versions:
            keeps = torch.autograd._unsafe_preserve_version_counter(whole)
            keeps.__enter__()
            self._versions[id(whole)] = whole, keeps
        start = start_of(tensor)
        if start not in self.was:
            there = bytes_of(tensor)
            self.was[start] = there, there.clone()

    def restore(self, after: int = 0) -> None:
        """Writes what was there, of all but the first so many."""
        for there, was in list(self.was.values())[after:]:
            there.copy_(was)
        for _, keeps in self._versions.values():
            keeps.__exit__(None, None, None)
        self._versions.clear()

    def forget(self, after: int) -> None:
        """Likewise: they are no more to be known."""
        for start in list(self.was)[after:]:
            del self.was[start]

    def nbytes(self) -> int:
        """Of the copies."""
        return sum(int(was.nbytes) for _, was in self.was.values())


class Own:
    """What a layer has of its own, in one pass."""

    def __init__(self, module: Any, given: Iterable[Any], known: Storages | None = None) -> None:
        self.module = module
        self.picture = Picture(module)
        """As the pass finds it."""
        self.weights = Weights(module)
        self.undo = Undo()
        """What of it the pass writes into, as it was before."""
        self.made = Made(given)
        self.wrote: list[Any] | None = None
        """What is written into while something runs that will be answered."""
        plain = [it for one in self.picture.tensors if address(it := unwrapped(one)[0])]
        # What was made in inference mode has no version, and nobody may write into it elsewhere.
        plain = [it for it in plain if not it.is_inference()]
        # Without their histories, of which other graphs are.
        plain = [it if it.is_leaf else it.detach() for it in plain]
        self._found = [(it, it._version, it.untyped_storage()._cdata) for it in plain]
        """Each tensor with its version and the number of its storage."""
        self.storages = _held(self._found, known or {})
        """So that no other storage has the number of one that is gone."""

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
        """Storages of tensors that were changed since, but by the pass itself."""
        changed = {
            start_of(it)
            for it, version, storage in self._found
            if it._version != version or _is_moved(it, storage)
        }
        return changed - self.undo.was.keys()

    def changed(self, tensor: Any) -> ReplayError:
        """The error where a stale one is needed."""
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        plain = [(name, unwrapped(it)[0]) for name, it in named]
        start = start_of(tensor)
        names = [name for name, it in plain if address(it) and start_of(it) == start]
        what = names[0] if names else f"a {tensor.dtype} of {list(tensor.shape)}"
        return ReplayError(
            f"{what} of a {type(self.module).__name__} was changed between its forward and its "
            "backward pass, so that it cannot be computed again as it was"
        )


def _held(found: list[tuple[Any, int, int]], known: Storages) -> Storages:
    """Of storages by their numbers: to look for them takes less than to make them."""
    if all(number in known for _, _, number in found):
        return known
    return {
        number: known.get(number) or StorageWeakRef(it.untyped_storage()) for it, _, number in found
    }


def _is_moved(tensor: Any, storage: int) -> bool:
    """Whether a program has given it another storage."""
    return tensor.untyped_storage()._cdata != storage and not hasattr(tensor, MANAGED)


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
    others: list[Thing] = []
    now = Picture(module)
    with own.weights.in_place():
        try:
            for there, was in own.undo.was.values():
                undo.before(there)
                there.copy_(was)
            others = own.picture.replace()
            yield
        finally:
            try:
                undo.restore()
            finally:
                now.restore()
                # What the module no longer leads to; and what has grown long since.
                for thing in others:
                    thing.restore()
