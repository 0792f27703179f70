"""One pass of a layer: what autograd saved of it, cut by the token and put together again."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from girih._long.communicate import Function, Origins, unwrapped, watching
from girih._long.layout import Layout, address, is_apart, is_dense, span, span_of, storage_of
from girih._long.notes import COMPUTED, Note
from girih._long.packed import Packed, Save, Storage, place
from girih._long.part import Part
from girih._long.replay import (
    Recorder,
    Replay,
    Take,
    generator_state,
    set_generator_state,
)
from girih._long.trace import Group, OutOfStep, Shape, Trace, start_of


@dataclasses.dataclass
class Handle:
    """What autograd holds in place of a tensor."""

    call: Call
    index: int


KEPT_ANYWAY = -1
"""In place of a save's index: the bytes are those of an input, or of what attention gave."""


class Call:
    """One pass of a layer."""

    def __init__(
        self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tokens: int, part: Part
    ) -> None:
        self.layer = layer
        self.tokens = tokens
        self.first = first = part.first
        """The first token that is computed again."""
        self.keeps_products = part.products
        leaves, self.spec = tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.device = tensors[0].device
        self.saves: list[Save] = []
        self.notes: list[Note] = []
        self.opaque_names = layer.opaque_names(first)
        self.opaque_depth = 0
        self.met: list[tuple[str, str, str]] = []
        around: Any = torch._C._autograd._top_saved_tensors_default_hooks(True) or (None, None)
        self.pack_around: Any = around[0]
        self.unpack_around: Any = around[1]
        self.leaves = [self.keep(leaf) for leaf in leaves]
        self.fixed = sorted(
            (at, at + it.nbytes)
            for one in [*layer.module.parameters(), *layer.module.buffers()]
            if (at := address(it := unwrapped(one)[0]))
        )
        device_type = self.device.type
        self.autocast = {
            "device_type": device_type,
            "enabled": torch.is_autocast_enabled(device_type),
            "dtype": torch.get_autocast_dtype(device_type),
            # Which weights have been cast by then is not the same in every replay.
            "cache_enabled": False,
        }
        self.notes_answered = 0
        """Of the notes, how many a replay was seen to need."""
        self.sizes = (0, 0)
        self.bytes_cut = 0
        self.is_cut = False
        self.extents: dict[Storage, tuple[int, int]] = {}
        """Of each storage that is put together: the first element that is used, and the end."""
        self.put_together: dict[Storage, Any] = {}
        self.complete: set[Storage] = set()
        """Those of which one tensor of a replay is all."""
        self.replays = 0
        self.wanted: dict[Storage, set[int]] = {}
        """What of each storage autograd has not asked for yet."""
        self.used: set[Storage] = set()
        """Those that this backward pass has done with."""
        self.bases: dict[tuple[Any, ...], int] = {}
        """By where bytes are, the save that keeps them; `KEPT_ANYWAY` where something else does."""
        self.learnt: dict[int, Layout | None] = {}
        """What was compared of this pass and equal, and where its tokens are."""
        self.trace: Trace | None = None
        """Where what it saves comes from, as far as that is known."""
        self.plan: Trace | None = layer.plan_of(self)
        """What of its products it keeps; None if that is not known, or is to be found out again."""
        self.origins: Origins | None = None
        """What comes from the layer's input; None where nothing communicates."""
        if layer.listens():
            self.origins = Origins(tensors)
        self.held: list[Packed] = []
        """What communication gave, until the pass has ended."""

    # ---- the forward pass

    @property
    def is_in_opaque(self) -> bool:
        """Whether a module runs that will not run again."""
        return self.opaque_depth > 0

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Around the layer's own forward."""
        hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, unpack)
        handler = self.function if self.origins is not None else None
        with watching(handler) if handler else contextlib.nullcontext(), hooks, Recorder(self):
            yield
        self.origins = None if self.origins is None else self.origins.ended()

    def watched(self, handler: Any) -> Any:
        """Around a replay: functions of autograd go through `handler`, where any communicated."""
        has_any = any(note.function is not None for note in self.notes)
        return watching(handler) if has_any else contextlib.nullcontext()

    def pack(self, tensor: Any) -> Handle:
        """Autograd saves a tensor: nothing is cut before the pass has ended."""
        tensor, wrap = unwrapped(tensor)
        is_fixed = self.is_in_opaque or address(tensor) is None or self._is_of_the_module(tensor)
        module = self.layer.running()
        self.saves.append(
            Save(
                tensor.detach(),
                tensor._version,
                module,
                is_fixed,
                tuple(tensor.shape),
                tensor.stride(),
                place(tensor),
                0 if self._is_of_the_module(tensor) else tensor.nbytes,
                notes=len(self.notes),
                wrap=wrap,
            )
        )
        return Handle(self, len(self.saves) - 1)

    def keep(self, output: Any) -> Any:
        """An output that the replay will be answered with."""
        return self._packed(output) if isinstance(output, torch.Tensor) else output

    def hold(self, output: Any) -> Any:
        """What communication gives: it may not have come yet, and may be written over."""
        if not isinstance(output, torch.Tensor) or address(output) is None:
            return output
        plain, needs = output.detach(), bool(output.requires_grad)
        packed = Packed(plain, None, plain._version, needs, Shape.of(plain), plain)
        self.held.append(packed)
        return packed

    def wants_note(self, index: int) -> bool:
        """Whether a replay needs this note, as far as is known."""
        if self.plan is not None and index in self.plan.keeping.dropped:
            return False
        return bool(index < self.layer.notes_wanted(self))

    def kept(self, output: Any) -> Any:
        """The way back."""
        return output.get() if isinstance(output, Packed) else output

    @property
    def looks_at_changes(self) -> bool:
        """Whether it matters what operators write into."""
        return self.first == 0 or self.origins is not None

    def changes(self, changed: list[Any]) -> None:
        """These are to be written into. What communication gave is copied before.

        What a product or a sum gave is forgotten, and computed again. Versions do not tell: what a
        layer is given may be a tensor of its own over the bytes.
        """
        plain = [it for it in changed if address(it) is not None]
        parts = [(it.data_ptr(), it.data_ptr() + span_of(it)) for it in plain]
        for packed in self.held:
            at, end = packed.value.data_ptr(), packed.value.data_ptr() + span_of(packed.value)
            if any(start < end and at < stop for start, stop in parts):
                packed.copy()
        for note in self.notes if self.first == 0 else ():
            if note.name in COMPUTED and note.outputs is not None:
                at = note.outputs.tensor.data_ptr()
                end = at + note.outputs.tensor.nbytes
                if any(start < end and at < stop for start, stop in parts):
                    note.outputs = note.like = None

    def meets(self, kind: str, name: str) -> None:
        """An operator that must not run twice."""
        self.met.append((kind, name, self.layer.running()))

    @property
    def is_in_function(self) -> bool:
        """Whether a function of autograd runs."""
        return self.origins is not None and self.origins.function is not None

    def hears(self, name: str, args: tuple[Any, ...], kwargs: Any) -> bool:
        """An operator communicates: whether a replay can be answered with what it gives."""
        if self.origins is None:
            return False
        self.origins.is_heard = True
        is_sound = self.origins.is_of_the_input(name, args, kwargs)
        if self.origins.function is not None:
            self.origins.function.communicates = True
            self.origins.function.is_sound &= is_sound
        return is_sound

    def function(self, name: str, run: Any, given: list[Any]) -> Any:
        """Applies a function of autograd. One that communicates is noted, and nothing within it."""
        origins = self.origins
        if origins is None or origins.function is not None or self.is_in_opaque:
            return run()
        origins.function, origins.functions = Function(), origins.functions + 1
        notes, saves = len(self.notes), len(self.saves)
        try:
            outputs = run()
            ran = origins.function
        finally:
            origins.function = None
        if not ran.communicates or not ran.is_sound:
            return outputs
        tensors = {it: one for it, one in enumerate(given) if address(one) is not None}
        changed = {it for it, one in tensors.items() if start_of(one) in ran.changed}
        if ran.changed - {start_of(tensors[it]) for it in changed}:
            # Into memory of the program's: who reads that cannot be told.
            self.meets("collective", name)
            return outputs
        del self.notes[notes:]
        note = Note(name, (), communicates=True, function=origins.functions - 1)
        note.outputs = tree_map(self.hold, outputs)
        held = {place(it.tensor): it for it in _packed_of(note)}
        note.changed = {
            it: held.get(place(tensors[it])) or self.hold(tensors[it]) for it in changed
        }
        note.saves = len(self.saves)
        places = {place(one): it for it, one in tensors.items() if it not in changed}
        for index in range(saves, note.saves):
            save = self.saves[index]
            save.notes = notes + 1
            if save.is_fixed:
                continue
            argument = places.get(save.place)
            save.is_fixed = argument is None
            if argument is not None:
                one: Any = tensors[argument]
                save.is_fixed = (one.shape, one.stride()) != (save.shape, save.stride)
                if not save.is_fixed:
                    note.own[index] = argument
        self.notes.append(note)
        return outputs

    def opaque(self, name: str, run: Any) -> Any:
        """Runs a module that a replay will be answered for."""
        if self.is_in_opaque:
            return run()
        note = Note(name, ())
        self.notes.append(note)
        self.opaque_depth += 1
        try:
            outputs = run()
        finally:
            self.opaque_depth -= 1
        note.outputs = tree_map(self.keep, outputs)
        note.saves = len(self.saves)
        return outputs

    # ---- the end of the forward pass

    def drop_products(self) -> None:
        """Lets go of those that no replay comes to."""
        for note in self.notes[self.layer.notes_wanted(self) :]:
            if note.name in COMPUTED:
                note.outputs = None

    def close(self, layouts: list[Layout | None]) -> None:
        """Cuts what can be cut. From now on only what is kept is there."""
        self.drop_products()
        if not self.bases:
            self.bases = dict.fromkeys(self.kept_anyway(), KEPT_ANYWAY)
        for index, (save, layout) in enumerate(zip(self.saves, layouts, strict=True)):
            if save.tensor is not None:
                self.cut(index, save, layout)
        self.is_cut = self.bytes_cut > 0
        self._settle()
        self.sizes = self._sizes()
        for save in self.saves:
            save.tensor = None
        for packed in self._all_packed():
            packed.tensor = None

    def _settle(self) -> None:
        """Keeps what communication gave, as far as a replay comes to it.

        Memory that it came into may be used for the next to come, which no version tells: what
        autograd does not hold itself is copied.
        """
        last = max((save.notes for save in self.saves if save.whole is None), default=0)
        for note in self.notes[last:]:
            if note.communicates:
                note.outputs, note.changed = None, {}
        saved = {(save.place, save.version) for save in self.saves if save.tensor is not None}
        kept = [it for note in self.notes[:last] if note.communicates for it in _packed_of(note)]
        for packed in {id(it): it for it in kept}.values():
            if (place(packed.tensor), packed.version) not in saved:
                packed.copy()
            self._pack_around(packed)
        self.held.clear()

    def kept_anyway(self) -> set[tuple[Any, ...]]:
        """Where inputs are, and what attention, products and opaque modules gave."""
        given = [it for it in self.leaves if isinstance(it, Packed)]
        for note in self.notes:
            given += _packed_of(note)
        return {place(it.tensor) for it in given}

    def cut(self, index: int, save: Save, layout: Layout | None) -> None:
        """Cuts one tensor where its tokens are known; else keeps it whole."""
        tensor, bases = save.tensor, self.bases
        if save.is_fixed:
            save.whole = self._packed(tensor, save.version)
            return
        base = bases.setdefault(save.place, index) if is_dense(tensor) else index
        is_changed = tensor._version != save.version
        is_cut = layout is not None and self.first < self.tokens
        if not is_cut or not is_apart(tensor) or is_changed or base == KEPT_ANYWAY:
            save.whole = self._packed(tensor, save.version)
            return
        if base != index and self.saves[base].whole is not None:
            save.whole = self._packed(tensor, save.version)
            return
        save.offset = tensor.storage_offset()
        save.storage = storage_of(tensor)
        low, high = self.extents.get(save.storage, (save.offset, 0))
        high = max(high, save.offset + span(save.shape, save.stride))
        self.extents[save.storage] = (min(low, save.offset), high)
        if base != index:
            # The same bytes are there under another shape.
            return
        assert layout is not None
        save.layout = layout
        self.bytes_cut += tensor.nbytes
        if self.first > 0:
            save.kept = self._packed(layout.rows(tensor, 0, self.first, self.tokens).clone())

    def _sizes(self) -> tuple[int, int]:
        """Bytes that autograd saved, and bytes that are kept: each place once."""
        saved = {it.place: it.bytes for it in self.saves}
        weights = {it.place for it in self.saves if it.bytes == 0}
        kept = {place(it.tensor): it.tensor.nbytes for it in self._all_packed()}
        return sum(saved.values()), sum(size for it, size in kept.items() if it not in weights)

    def _all_packed(self) -> Iterator[Packed]:
        for leaf in self.leaves:
            if isinstance(leaf, Packed):
                yield leaf
        for note in self.notes:
            yield from _packed_of(note)
        for save in self.saves:
            for packed in (save.whole, save.kept):
                if packed is not None:
                    yield packed

    def _pack_around(self, packed: Packed) -> None:
        if self.pack_around is not None:
            packed.value, packed.unpack = self.pack_around(packed.value), self.unpack_around

    def _packed(self, tensor: Any, version: int | None = None) -> Packed:
        detached, needs = tensor.detach(), bool(tensor.requires_grad)
        version = detached._version if version is None else version
        if self.pack_around is None or detached._version != version:
            return Packed(detached, None, version, needs, Shape.of(detached), detached)
        value, like = self.pack_around(detached), Shape.of(detached)
        return Packed(value, self.unpack_around, version, needs, like, detached)

    def _is_of_the_module(self, tensor: Any) -> bool:
        start = address(tensor)
        if start is None:
            return False
        at = bisect.bisect_right(self.fixed, (start, 1 << 64)) - 1
        return at >= 0 and start < self.fixed[at][1]

    # ---- the backward pass

    def get(self, index: int) -> Any:
        """The tensor that was saved. If it was cut, it is put together now, and others with it."""
        plain, wrap = self._plain(index), self.saves[index].wrap
        return plain if wrap is None else wrap(plain)

    def _plain(self, index: int) -> Any:
        save = self.saves[index]
        if save.whole is not None:
            return save.whole.get()
        if save.storage not in self.put_together:
            self._put_together(save.storage)
        view = self._view(save)
        wanted = self.wanted[save.storage]
        wanted.discard(index)
        if not wanted:
            del self.put_together[save.storage]
            self.used.add(save.storage)
        return view

    def _view(self, save: Save) -> Any:
        low, _ = self.extents[save.storage]
        base = self.put_together[save.storage]
        return base.as_strided(save.shape, save.stride, base.storage_offset() + save.offset - low)

    def _put_together(self, storage: Storage) -> None:
        """What autograd has not asked for yet of those that come from the same operators.

        Where it is not known where they come from, that is all; where there is no memory for it, a
        part. A pass asks for what was saved last first: a part that ends before the end of the
        layer is there after a shorter replay.
        """
        if storage in self.used:
            # Another backward pass.
            self.used.clear()
        while True:
            storages, group = self._group(storage)
            try:
                self._put_together_group(storages, group)
                return
            except torch.OutOfMemoryError:
                if len(storages) == 1:
                    raise
            except (OutOfStep, Exception):
                # This pass went another way than the one that was traced, or met what nobody wrote.
                if group is None:
                    raise
                self.layer.forget(self)
                self.trace = None
                continue
            # Not within `except`, which holds on to all that the replay had made. The layer will
            # not fit the next time either.
            self.layer.parts *= 2

    def _group(self, storage: Storage) -> tuple[list[Storage], Group | None]:
        places: dict[Storage, int] = {}
        for index, save in enumerate(self.saves):
            if save.layout is not None:
                places.setdefault(save.storage, index)
        group = None if self.trace is None else self.trace.group_of(places[storage])
        if group is not None:
            places = {it: index for it, index in places.items() if index in group.places}
        most = -(-len(places) // self.layer.parts)
        known = self.used | self.put_together.keys()
        left = [it for it in places if it != storage and it not in known]
        # Those that were saved before it, from the last on; then the others.
        left.sort(key=lambda it: (places[it] > places[storage], -places[it]))
        return [storage, *left][:most], group

    def _put_together_group(self, storages: list[Storage], group: Group | None) -> None:
        cut = set()
        for storage in storages:
            self.wanted[storage] = set()
        for index, save in enumerate(self.saves):
            if save.whole is None and save.storage in storages:
                self.wanted[save.storage].add(index)
                if save.layout is not None:
                    cut.add(index)
        self.replays += 1
        try:
            self.replay(self.first, cut, self._take, group)
        except BaseException:
            # What is there of it would be taken for all of it.
            for storage in storages:
                self.put_together.pop(storage, None)
            raise
        finally:
            self.complete.clear()

    def _take(self, index: int, rows: Any) -> bool:
        """What a replay saves of one tensor: its rows go where they belong, and are let go of."""
        save = self.saves[index]
        assert save.layout is not None
        low, high = self.extents[save.storage]
        is_there = save.storage in self.put_together
        if save.storage in self.complete:
            return True
        if self.first == 0 and not is_there and self._is_all_of_it(save, rows, high - low):
            self.put_together[save.storage] = rows
            self.complete.add(save.storage)
            return True
        if not is_there:
            _, dtype, device = save.storage
            self.put_together[save.storage] = torch.empty(high - low, dtype=dtype, device=device)
        whole, rest = self._view(save), self.tokens - self.first
        if save.kept is not None:
            save.layout.rows(whole, 0, self.first, self.tokens).copy_(save.kept.get())
        again = save.layout.rows(rows, 0, rest, rest)
        save.layout.rows(whole, self.first, self.tokens, self.tokens).copy_(again)
        return True

    def _is_all_of_it(self, save: Save, rows: Any, elements: int) -> bool:
        """Whether all that is wanted of a storage can be views of these rows as they are."""
        is_whole = is_dense(rows) and rows.numel() == elements
        return is_whole and rows.shape == save.shape and rows.stride() == save.stride

    def replay(
        self,
        first: int,
        wanted: set[int],
        take: Take,
        group: Group | None = None,
        *,
        is_proof: bool = False,
    ) -> Replay:
        """Runs the layer over the tokens from `first` on, and hands over what it saves of `wanted`.

        Of a `group` of the trace only what that comes from; with `is_proof` all else is no number.

        Raises:
            OutOfStep: if the trace is of another way through the layer.
            ReplayError: if it does something else than in the forward pass.
        """
        state = generator_state(self.device)
        replay = Replay(self, first, wanted, take)
        if group is not None:
            assert self.trace is not None
            replay.only(self.trace, group, is_proof=is_proof)
        try:
            replay.run()
        finally:
            set_generator_state(self.device, state)
        return replay


def _packed_of(note: Note) -> list[Packed]:
    leaves, _ = tree_flatten((note.outputs, note.changed))
    return [it for it in leaves if isinstance(it, Packed)]


def unpack(handle: Handle) -> Any:
    """Autograd uses what it saved."""
    return handle.call.get(handle.index)
