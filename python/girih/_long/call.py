"""The forward pass of a layer: what autograd saves of it, cut by the token."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import is_tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from girih._errors import GirihError
from girih._long import hooks
from girih._long.communicate import Function, Origins, unwrapped, watching
from girih._long.compare import digest
from girih._long.layout import (
    WHOLE,
    Layout,
    address,
    is_apart,
    is_dense,
    span,
    span_of,
    storage_of,
)
from girih._long.notes import Note
from girih._long.own import Own, effects
from girih._long.packed import Packed, Places, Save, place
from girih._long.part import Part
from girih._long.picture import Picture
from girih._long.replay import Recorder
from girih._long.tiles import Tiled
from girih._long.together import Together
from girih._long.trace import Shape, Trace, start_of


@dataclasses.dataclass
class Handle:
    """What autograd holds in place of a tensor."""

    call: Call
    index: int


KEPT_ANYWAY = -1
"""In place of a save's index: the bytes are those of an input, or of what attention gave."""


class Unplanned(BaseException):
    """A pass that lets go early meets what must not run twice. No handler of a program takes it."""


class Call(Together):
    """One pass of a layer."""

    def __init__(
        self,
        layer: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tokens: int,
        part: Part,
        *,
        lets_go: bool | None = None,
    ) -> None:
        tensors = [it for it in tree_leaves((args, kwargs)) if isinstance(it, torch.Tensor)]
        super().__init__(layer, tokens, part.first, tensors[0].device)
        self.keeps_products = part.products
        self.places = Places()
        self.notes: list[Note] = []
        self.opaque_names = layer.opaque_names(part.first)
        self.opaque_depth = 0
        self.is_aside = False
        """What runs is Girih's own: nothing of it is noted."""
        self.in_tiles: dict[str, Tiled] = {}
        """Modules that ran in tiles."""
        self.saved_in_tiles = 0.0
        """Bytes that modules in tiles would have saved."""
        self.met: list[tuple[str, str, str]] = []
        self.pack_around, self.unpack_around = hooks_around()
        leaves, self.spec = tree_flatten((args, kwargs))
        self.leaves = [self.keep(leaf) for leaf in leaves]
        self.fixed = sorted(
            (at, at + it.nbytes)
            for one in [*layer.module.parameters(), *layer.module.buffers()]
            if (at := address(it := unwrapped(one)[0]))
        )
        self.own: Own = layer.own(tensors)
        self.has_hooks = hooks.are_there(layer.module)
        self.hooks, self.is_in_hook = 0, False
        """Of the program's, those that ran; and whether one runs."""
        self.autocast = autocast_of(self.device.type)
        self.notes_answered = 0
        """Of the notes, how many a replay was seen to need."""
        self.sizes = (0, 0)
        self.bytes_cut = 0
        self.is_cut = False
        self.bases: dict[tuple[Any, ...], int] = {}
        """By where bytes are, the save that keeps them; `KEPT_ANYWAY` where something else does."""
        self.learnt: dict[int, Layout | None] = {}
        """What was compared of this pass and equal, and where its tokens are."""
        self.plan: Trace | None = layer.plan_of(self)
        """What of its products it keeps; None if that is not known, or is to be found out again."""
        self.noted = 0
        """Of the notes, those whose bytes are among `bases`, where a pass lets go early."""
        self.lets_go: bool = layer.lets_go(self) if lets_go is None else lets_go
        """What will be computed again is let go of as soon as autograd saves it: all that a layer
        saves is never there at once."""
        self.digests: dict[int, Any] | None = {} if layer.is_to_learn(self) else None
        """Of what was let go of, where the pass is to be compared."""
        self.is_lost = False
        """It was compared, and what was let go of does not come again."""
        if self.lets_go:
            self.bases = dict.fromkeys(self.kept_anyway(), KEPT_ANYWAY)
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
        packs = torch.autograd.graph.saved_tensors_hooks(self.pack, unpack)
        handler = self.function if self.origins is not None else None
        around = watching(handler) if handler else contextlib.nullcontext()
        by = hooks.replaced(self.layer.module, self._hook)
        with by if self.has_hooks else contextlib.nullcontext(), around, packs, Recorder(self):
            yield
        self.origins = None if self.origins is None else self.origins.ended()

    def watched(self, handler: Any) -> Any:
        """Around a replay: functions of autograd go through `handler`, where any communicated."""
        has_any = any(note.function is not None for note in self.notes)
        return watching(handler) if has_any else contextlib.nullcontext()

    def pack(self, tensor: Any) -> Handle:
        """Autograd saves a tensor."""
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
                self.places.of(tensor),
                0 if self._is_of_the_module(tensor) else tensor.nbytes,
                notes=len(self.notes),
                wrap=wrap,
            )
        )
        index = len(self.saves) - 1
        if self.lets_go and not is_fixed and not self.is_in_function:
            self._let_go(index)
        return Handle(self, index)

    def _let_go(self, index: int) -> None:
        """Lets go of a tensor that will be computed again, unless it is kept."""
        save = self.saves[index]
        for note in self.notes[self.noted :]:
            self.bases |= dict.fromkeys(map(self._place_of, _packed_of(note)), KEPT_ANYWAY)
        self.noted = len(self.notes)
        is_kept = self.plan is not None and index in self.plan.keeping.places
        if not self._cuts(index, save, None if is_kept else WHOLE):
            return
        if self.digests is not None:
            with self.aside():
                self.digests[index] = digest(save.tensor)
        save.tensor = None

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
            if note.is_computed and note.outputs is not None:
                at = note.outputs.tensor.data_ptr()
                end = at + note.outputs.tensor.nbytes
                if any(start < end and at < stop for start, stop in parts):
                    note.outputs = note.like = None

    def meets(self, kind: str, name: str) -> None:
        """An operator that must not run twice, and has not yet.

        Raises:
            Unplanned: if what came before it is to run again, but not it.
            GirihError: if that cannot be undone.
        """
        if self.lets_go and kind != "dynamic":
            if self.has_acted:
                raise GirihError(
                    f"{self.layer.name} does what it had not done before, and must not do twice "
                    f"({name}), when some of its pass is let go of: start with a pass that does it"
                )
            raise Unplanned
        self.met.append((kind, name, self.layer.running()))

    @property
    def has_acted(self) -> bool:
        """Whether something was done by now that must not be done twice."""
        once = self.opaque_names
        is_said = self.origins is not None and self.origins.is_heard
        return is_said or any(it.communicates or it.name in once for it in self.notes)

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
        held = {self._place_of(it): it for it in _packed_of(note)}
        note.changed = {
            it: held.get(self.places.of(tensors[it])) or self.hold(tensors[it]) for it in changed
        }
        note.saves = len(self.saves)
        places = {self.places.of(one): it for it, one in tensors.items() if it not in changed}
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
        note, before = Note(name, ()), Picture(self.layer.module)
        self.notes.append(note)
        self.opaque_depth += 1
        self.own.wrote = []
        try:
            outputs = run()
            wrote = self.own.wrote
        finally:
            self.opaque_depth -= 1
            self.own.wrote = None
        note.outputs = tree_map(self.keep, outputs)
        note.saves = len(self.saves)
        with self.aside():
            note.effects = effects(before, self.own.undo, wrote)
        return outputs

    def _hook(self, name: str, hook: hooks.Hook) -> hooks.Hook:
        """In place of a hook of the program's: it is answered like a module that is opaque."""

        def runs(*args: Any, **kwargs: Any) -> Any:
            if self.is_in_opaque or self.is_aside:
                return hook(*args, **kwargs)
            self.hooks += 1
            given = [(it, it._version) for it in tree_leaves((args[1:], kwargs)) if is_tensor(it)]
            self.is_in_hook = True
            try:
                outputs = self.opaque(name, lambda: hook(*args, **kwargs))
            finally:
                self.is_in_hook = False
            if any(it._version != version for it, version in given):
                self.met.append(("hook", name, self.layer.running()))
            return outputs

        return runs

    def tiled(self, name: str, tiled: Tiled, fails: Any, x: Any) -> Any:
        """Runs a module in tiles: it saves what it was given, and a replay goes past it."""
        note, place = Note(name, (), is_tiled=True), len(self.saves)
        before, wrote = Picture(tiled.module), len(self.own.undo.was)
        with self.aside():
            outputs = tiled.apply(x, self.autocast, fails)
            if before.restore() or len(self.own.undo.was) > wrote:
                # Once for every tile.
                self.own.undo.restore(wrote)
                self.own.undo.forget(wrote)
                del self.saves[place:]
                return None
        if self.origins is not None:
            self.origins.note(x, outputs, ())
        self.in_tiles[name] = tiled
        self.saved_in_tiles += tiled.plan.saved * self.tokens
        if len(self.saves) > place and not self.saves[place].is_fixed:
            note.own[place] = 0
        note.saves = len(self.saves)
        if self.wants_note(len(self.notes)):
            note.outputs = self.keep(outputs)
        self.notes.append(note)
        return outputs

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Around what is Girih's own."""
        before, self.is_aside = self.is_aside, True
        try:
            yield
        finally:
            self.is_aside = before

    # ---- the end of the forward pass

    def drop_products(self) -> None:
        """Lets go of those that no replay comes to."""
        for note in self.notes[self.layer.notes_wanted(self) :]:
            if note.is_computed:
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
        self.own.picture.settle()
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
            if (self._place_of(packed), packed.version) not in saved:
                packed.copy()
            self._pack_around(packed)
        self.held.clear()

    def kept_anyway(self) -> set[tuple[Any, ...]]:
        """Where inputs are, and what attention, products and opaque modules gave."""
        given = [it for it in self.leaves if isinstance(it, Packed)]
        for note in self.notes:
            given += _packed_of(note)
        return {self._place_of(it) for it in given}

    def _place_of(self, packed: Packed) -> tuple[Any, ...]:
        return self.places.of(packed.tensor)

    def cut(self, index: int, save: Save, layout: Layout | None) -> None:
        """Cuts one tensor where its tokens are known; else keeps it whole."""
        if not self._cuts(index, save, layout):
            save.whole = self._packed(save.tensor, save.version)

    def _cuts(self, index: int, save: Save, layout: Layout | None) -> bool:
        """Cuts a tensor; false if it is to stay whole."""
        tensor, bases = save.tensor, self.bases
        if save.is_fixed:
            return False
        base = bases.setdefault(save.place, index) if is_dense(tensor) else index
        is_changed = tensor._version != save.version
        is_cut = layout is not None and self.first < self.tokens
        if not is_cut or not is_apart(tensor) or is_changed or base == KEPT_ANYWAY:
            return False
        if base != index and not self.saves[base].storage:
            return False
        save.offset = tensor.storage_offset()
        save.storage = (*storage_of(tensor), *save.place[3:])
        low, high = self.extents.get(save.storage, (save.offset, 0))
        high = max(high, save.offset + span(save.shape, save.stride))
        self.extents[save.storage] = (min(low, save.offset), high)
        if base != index:
            # The same bytes are there under another shape.
            return True
        assert layout is not None
        save.layout = layout
        self.bytes_cut += tensor.nbytes
        if self.first > 0:
            save.kept = self._packed(layout.rows(tensor, 0, self.first, self.tokens).clone())
        return True

    def _sizes(self) -> tuple[int, int]:
        """Bytes that autograd saved, and bytes that are kept: each place once."""
        saved = {it.place: it.bytes for it in self.saves}
        weights = {it.place for it in self.saves if it.bytes == 0}
        kept = {place(it.tensor): it.tensor.nbytes for it in self._all_packed()}
        whole = sum(saved.values()) + int(self.saved_in_tiles)
        written = self.own.undo.nbytes()
        return whole, written + sum(size for it, size in kept.items() if it not in weights)

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


def hooks_around() -> tuple[Any, Any]:
    """Those of saved tensors that are set where a layer is called, or none."""
    found: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return found or (None, None)


def autocast_of(device_type: str) -> dict[str, Any]:
    """What a replay is to run under."""
    return {
        "device_type": device_type,
        "enabled": torch.is_autocast_enabled(device_type),
        "dtype": torch.get_autocast_dtype(device_type),
        # Which weights have been cast by then is not the same in every replay.
        "cache_enabled": False,
    }


def _packed_of(note: Note) -> list[Packed]:
    leaves, _ = tree_flatten((note.outputs, note.changed))
    return [it for it in leaves if isinstance(it, Packed)]


def unpack(handle: Handle) -> Any:
    """Autograd uses what it saved."""
    return handle.call.get(handle.index)
