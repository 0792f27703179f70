"""Which operators of a layer each of the tensors that it saves comes from.

What is put together for the backward pass need not all be there at once: the second half of a layer
goes backward before the first. A replay for a part of the tensors runs only what these come from;
the other operators give memory that nobody has written. Then what comes from different operators
is put together in turns (`groups`), and no operator runs twice for that.

A trace is of one pass and is used in others, which may go another way. So a replay looks at what
operators are given: memory that nobody has written (`Unwritten`) goes into none that is wanted, and
into no tensor that is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from girih._long.keep import Keeping, cheapest
from girih._long.layout import address

GROUP_LEAST = 0.25
"""Of the bytes that a pass puts together: no replay is for less, since each has its price."""
BARE = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
}
"""They give memory that nobody has written. Who reads it has a kernel that no operator tells of."""


UNSAID = {
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), (3, 4)),
    **dict.fromkeys(("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts"), (3, 4)),
    "batch_norm_update_stats": (1, 2),
}
"""Which arguments an operator writes into, where its schema does not say so: running means."""


class OutOfStep(BaseException):
    """A pass went another way than the one that was traced. No exception that a handler takes."""


@dataclasses.dataclass(frozen=True)
class Operator:
    """One of a pass."""

    name: str
    after: frozenset[int]
    """The operators that made what it reads."""
    is_pure: bool
    """All that it does is to make tensors of its own, of numbers that are no places in others."""
    is_root: bool
    """What it gives may decide what the program does: it must be right."""
    is_answered: bool
    """It does not run in a replay."""
    note: int = -1
    """Of a product that is answered, the number of its note."""
    bytes: int = 0
    """Of what it makes."""
    is_received: bool = False
    """It communicates: what it writes into is answered, too."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Tensors that are put together by one replay."""

    places: frozenset[int]
    """As many saves came before each."""
    operators: frozenset[int]
    """What must run for them."""


class Trace:
    """The operators of a replay, as it runs; what they come from, when it has run."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.groups: list[Group] = []
        """Those that were proven: a replay of each alone gave what the layer had saved."""
        self.keeping = Keeping(frozenset(), frozenset())
        """What of it passes keep where they keep products, and what of these they do not."""
        self.is_usable = True
        """Nothing came up that is not understood."""
        self.undone: Container[int] = frozenset[int]()
        """Storages that a replay may write into: it puts back what was there."""
        self._of_place: dict[int, frozenset[int]] = {}
        self._bytes: dict[int, int] = {}
        """By where a storage begins."""
        self._bytes_of_place: dict[int, int] = {}
        self._writers: dict[int, frozenset[int]] = {}
        """Of each storage there is, by where it begins."""
        self._roots: frozenset[int] = frozenset()

    # ---- while a replay runs

    def note(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        outputs: Any,
        *,
        is_answered: bool,
        name: str,
        product: int = -1,
        into: list[Any] | None = None,
    ) -> None:
        """An operator has run, or was answered.

        A product with the note of that number; one that communicates by what it writes `into`.
        """
        index = len(self.operators)
        given, gave = tensors((args, kwargs)), tree_leaves(outputs)
        made = [it for it in gave if isinstance(it, torch.Tensor)]
        schema = getattr(func, "_schema", None)
        if schema is None and not is_answered:
            # It may hold a program of its own.
            self.is_usable = False
        if any(address(it) is None for it in (*given, *made)):
            self.is_usable = False
            return
        sources = {start_of(it) for it in given}
        self._bytes |= {start_of(it): it.nbytes for it in made if start_of(it) not in sources}
        if into is not None:
            self._receive(index, into or made)
            self.operators.append(
                Operator(
                    name,
                    frozenset(),
                    is_pure=False,
                    is_root=False,
                    is_answered=True,
                    is_received=True,
                )
            )
            return
        if is_answered:
            # It reads nothing in a replay, and who needs nothing of it need not be given it.
            self._writers |= {start_of(it): frozenset({index}) for it in made}
            nothing = frozenset[int]()
            size = sum(it.nbytes for it in made)
            self.operators.append(
                Operator(
                    name,
                    nothing,
                    is_pure=True,
                    is_root=False,
                    is_answered=True,
                    note=product,
                    bytes=size,
                )
            )
            return
        changed = {start_of(it) for it in written(func, args, kwargs)} if schema else set()
        after = frozenset[int]().union(*(self._writers.get(it, ()) for it in sources))
        own = [it for it in made if start_of(it) not in sources]
        is_view = not changed and not own and bool(made)
        if not is_view:
            # What a view is of is not read.
            self.is_usable &= not any(self._is_bare(it) for it in sources - changed)
        if any(it not in self._writers and it not in self.undone for it in changed):
            # It changes what the layer was given.
            self.is_usable = False
        for start in changed:
            self._writers[start] = self._writers.get(start, frozenset()) | {index}
        for it in own:
            self._writers[start_of(it)] = frozenset({index})
        is_safe = all(is_no_place(it) for it in made)
        is_whole = bool(made) and len(own) == len(made) == len(gave)
        is_pure = not changed and is_whole and is_safe
        is_root = not is_view and not is_pure and not (changed and is_safe)
        self.operators.append(Operator(name, after, is_pure, is_root, is_answered=False))

    def _receive(self, index: int, into: list[Any]) -> None:
        """What communication gave is there, in tensors of its own or in others."""
        for it in into:
            start = start_of(it)
            is_all = it.nbytes == it.untyped_storage().nbytes()
            before = frozenset[int]() if is_all else self._writers.get(start, frozenset())
            self._writers[start] = before | {index}

    def saves(self, place: int, tensor: Any) -> None:
        """Autograd saves a tensor."""
        if address(tensor) is None:
            self.is_usable = False
            return
        start = start_of(tensor)
        self.is_usable &= not self._is_bare(start)
        self._of_place[place] = self._writers.get(start, frozenset())
        self._bytes_of_place[place] = self._bytes.get(start, tensor.nbytes)

    def _is_bare(self, start: int) -> bool:
        writers = self._writers.get(start)
        return writers is not None and all(self.operators[it].name in BARE for it in writers)

    # ---- afterwards

    def close(self) -> None:
        """The replay has run."""
        self._writers.clear()
        self._bytes.clear()
        roots = (index for index, it in enumerate(self.operators) if it.is_root)
        self._roots = self._closure(roots)

    def needed(self, places: Iterable[int]) -> frozenset[int]:
        """The operators without which a replay does not come to these tensors as they were."""
        found = (self._of_place.get(place, frozenset()) for place in places)
        return self._closure(frozenset[int]().union(*found)) | self._roots

    def keeps(self, storages: Mapping[Any, list[int]]) -> Keeping:
        """What is kept so that no product runs again: the fewest bytes.

        `storages` are the places of what would be put together. All other places have their bytes
        from somewhere: where that is a product, it stays.
        """
        products = {index: it.bytes for index, it in enumerate(self.operators) if it.note >= 0}
        ours = {place for places in storages.values() for place in places}
        others = (self._of_place[it] for it in self._of_place if it not in ours)
        fixed = (self._roots | frozenset[int]().union(*others)) & products.keys()
        free = {index: size for index, size in products.items() if index not in fixed}
        sizes = {
            storage: max(self._bytes_of_place[it] for it in places)
            for storage, places in storages.items()
        }
        needs = {it: self.needed(storages[it]) & free.keys() for it in storages}
        kept, saved = cheapest(free, sizes, {it: need for it, need in needs.items() if need})
        dropped = frozenset(self.operators[it].note for it in free.keys() - kept)
        return Keeping(dropped, frozenset(place for it in saved for place in storages[it]))

    def _closure(self, indices: Iterable[int]) -> frozenset[int]:
        found: set[int] = set()
        left = list(indices)
        while left:
            index = left.pop()
            if index not in found:
                found.add(index)
                left += self.operators[index].after
        return frozenset(found)

    def grouped(self, storages: Mapping[Any, list[int]], sizes: Mapping[Any, int]) -> list[Group]:
        """Places in groups that have no operator in common, from the last to the first.

        `storages` are the places of each, `sizes` their bytes. Neighbours are one group where one
        of them is small (`GROUP_LEAST`).
        """
        parts: list[tuple[set[Any], set[int]]] = []
        for storage, places in storages.items():
            costly = {
                it for it in self.needed(places) - self._roots if not self.operators[it].is_answered
            }
            own, apart = {storage}, []
            for one in parts:
                if one[1] & costly:
                    own |= one[0]
                    costly |= one[1]
                else:
                    apart.append(one)
            parts = [*apart, (own, costly)]
        last = {storage: max(places) for storage, places in storages.items()}
        parts.sort(key=lambda part: -max(last[it] for it in part[0]))
        least = GROUP_LEAST * sum(sizes.values())
        merged: list[set[Any]] = []
        for own, _ in parts:
            if merged and min(_bytes(merged[-1], sizes), _bytes(own, sizes)) < least:
                merged[-1] |= own
            else:
                merged.append(own)
        places_of = [[it for storage in own for it in storages[storage]] for own in merged]
        return [Group(frozenset(it), self.needed(it)) for it in places_of]

    def leaves_out(self, groups: Iterable[Group]) -> bool:
        """Whether there is an operator that runs for none of them: what it made is kept."""
        needed = frozenset[int]().union(*(group.operators for group in groups))
        return any(
            it.is_pure and not it.is_answered and index not in needed
            for index, it in enumerate(self.operators)
        )

    def group_of(self, place: int) -> Group | None:
        """The proven group of a tensor."""
        return next((group for group in self.groups if place in group.places), None)


def _bytes(storages: Iterable[Any], sizes: Mapping[Any, int]) -> int:
    return sum(sizes[it] for it in storages)


class Unwritten:
    """Memory in place of what operators would have given, and what came of it since."""

    def __init__(self, *, is_proof: bool) -> None:
        self.is_proof = is_proof
        """It is filled with what is no number, so that it shows where it should not be."""
        self.starts: set[int] = set()

    def like(self, gives: Any) -> Any:
        """In place of tensors of these shapes."""
        return tree_map(self._one, gives)

    def _one(self, like: Any) -> Any:
        if not isinstance(like, (torch.Tensor, Shape)):
            return like
        shape = Shape.of(like) if isinstance(like, torch.Tensor) else like
        tensor = torch.empty_strided(
            shape.size, shape.stride, dtype=shape.dtype, device=shape.device
        )
        if self.is_proof:
            tensor.fill_(float("nan") if shape.dtype.is_floating_point else 1)
        self.starts.add(start_of(tensor))
        return tensor

    def instead(self, func: Any, args: Any, kwargs: Any) -> Any:
        """In place of what an operator would give, which does not run."""
        given = tensors((args, kwargs))
        # A number of the host's goes with tensors of any device.
        devices = {it.device for it in given if it.ndim > 0} or {it.device for it in given}
        named = kwargs.get("device")
        device = torch.device(named) if named is not None else next(iter(devices), None)
        if device is None or len(devices) > 1:
            raise OutOfStep
        try:
            shapes = func(*tree_map(_meta, args), **(tree_map(_meta, kwargs) | _on_meta(kwargs)))
        except (RuntimeError, TypeError, ValueError) as error:
            raise OutOfStep from error
        return self.like(tree_map(lambda it: Shape.of(it, device), shapes))

    def forget(self, given: Any) -> None:
        """These are as they should be, where such memory may have been."""
        self.starts -= {start_of(it) for it in tensors(given)}

    def is_among(self, given: Any) -> bool:
        """Whether any tensor has such bytes."""
        return any(start_of(it) in self.starts for it in tensors(given))

    def spreads(self, given: Any, gave: Any, changed: Iterable[Any]) -> bool:
        """An operator ran: whether it read such bytes. What it gave and changed are such then."""
        sources = {start_of(it) for it in tensors(given)}
        has_read = bool(sources & self.starts)
        own = {start_of(it) for it in tensors(gave)} - sources
        if has_read:
            self.starts |= own | {start_of(it) for it in changed}
        else:
            # Where such memory was, another may be by now.
            self.starts -= own
        return has_read


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of a tensor, without its bytes."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    device: Any

    @staticmethod
    def of(tensor: Any, device: Any = None) -> Any:
        """Of a tensor; what is none stays as it is."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        where = tensor.device if device is None else device
        return Shape(tuple(tensor.shape), tensor.stride(), tensor.dtype, where)


def _meta(it: Any) -> Any:
    if not isinstance(it, torch.Tensor):
        return it
    return torch.empty_strided(it.shape, it.stride(), dtype=it.dtype, device="meta")


def _on_meta(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"device": "meta"} if kwargs.get("device") is not None else {}


def tensors(tree: Any) -> list[Any]:
    """Those in arguments or results."""
    return [it for it in tree_leaves(tree) if isinstance(it, torch.Tensor)]


def start_of(tensor: Any) -> int:
    """Where the storage of a tensor begins; a number of its own where there is nothing of it."""
    if tensor.numel() == 0:
        return -id(tensor)
    return int(tensor.data_ptr()) - int(tensor.storage_offset()) * int(tensor.element_size())


def writes(func: Any) -> bool:
    """Whether an operator changes what it is given."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return False
    return bool(schema.is_mutable) or schema.name.removeprefix("aten::") in UNSAID


_views: dict[Any, bool] = {}


def gives_its_own(func: Any) -> bool:
    """Whether what an operator gives is of no tensor that it was given."""
    is_own = _views.get(func)
    if is_own is None:
        schema = getattr(func, "_schema", None)
        returns = () if schema is None else schema.returns
        is_own = _views[func] = all(it.alias_info is None for it in returns)
    return is_own


class Made:
    """Storages that a pass has made."""

    def __init__(self, given: Iterable[Any]) -> None:
        self.starts = {start_of(it) for it in given if address(it) is not None}
        """What it was given is as good as made: others look at whether that is changed."""

    def note(self, func: Any, gave: Any) -> None:
        """An operator has run."""
        if gives_its_own(func):
            self.starts |= {start_of(it) for it in tensors(gave) if address(it) is not None}

    def others(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> list[Any]:
        """What an operator that changes something changes, and the pass has not made."""
        plain = [it for it in written(func, args, kwargs) if address(it) is not None]
        return [it for it in plain if it.numel() and start_of(it) not in self.starts]


def is_no_place(tensor: Any) -> bool:
    """Whether any bytes at all may stand in it: no kernel takes them for places in other memory."""
    return tensor.dtype == torch.bool or bool(tensor.is_floating_point())


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors that an operator changes in place."""
    found: list[Any] = []
    unsaid = UNSAID.get(func._schema.name.removeprefix("aten::"), ())
    for index, argument in enumerate(func._schema.arguments):
        value = args[index] if index < len(args) else kwargs.get(argument.name)
        is_said = argument.alias_info is not None and argument.alias_info.is_write
        if is_said or index in unsaid:
            found += value if isinstance(value, (list, tuple)) else [value]
    return [it for it in found if isinstance(it, torch.Tensor)]
