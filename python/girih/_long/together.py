"""The backward pass of a layer: what was cut is put together again."""

from __future__ import annotations

from typing import Any

import torch

from girih._long.layout import is_dense
from girih._long.packed import Save, Storage, check_version
from girih._long.replay import Replay, Take, generator_state, set_generator_state
from girih._long.trace import Group, OutOfStep, Trace


class Together:
    """What a pass of a layer saved, as its backward pass asks for it."""

    def __init__(self, layer: Any, tokens: int, first: int, device: Any) -> None:
        self.layer = layer
        self.tokens = tokens
        self.first = first
        """The first token that is computed again."""
        self.device = device
        self.saves: list[Save] = []
        self.trace: Trace | None = None
        """Where what it saves comes from, as far as that is known."""
        self.extents: dict[Storage, tuple[int, int]] = {}
        """Of each storage that is put together: the first element that is used, and the end."""
        self.put_together: dict[Storage, Any] = {}
        self.versions: dict[Storage, int] = {}
        """Of those that are a replay's own tensors: it may change them after they were saved."""
        self.complete: set[Storage] = set()
        """Those of which one tensor of a replay is all."""
        self.replays = 0
        self.wanted: dict[Storage, set[int]] = {}
        """What of each storage autograd has not asked for yet."""
        self.used: set[Storage] = set()
        """Those that this backward pass has done with."""

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
            self.versions.pop(save.storage, None)
            self.used.add(save.storage)
        return view

    def _view(self, save: Save) -> Any:
        low, _ = self.extents[save.storage]
        base = self.put_together[save.storage]
        check_version(base, self.versions.get(save.storage, base._version))
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
                self.versions.pop(storage, None)
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
            self.versions[save.storage] = rows._version
            self.complete.add(save.storage)
            return True
        if not is_there:
            _, dtype, device, *_ = save.storage
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
