"""What of a pass can be cut: found by running it again, and comparing to the bit."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from girih._long.call import KEPT_ANYWAY, Call
from girih._long.compare import Found, compare, digest
from girih._long.keep import Keeping
from girih._long.layout import WHOLE, Layout
from girih._long.replay import Replay, generator_state, set_generator_state
from girih._long.trace import OutOfStep, Trace


def learn(call: Call, first: int) -> tuple[list[Layout | None], str | None, str | None]:
    """What of a pass can be cut: it runs again from the token `first` on, and is compared.

    To be called before `close`. Gives a layout or None for each save; the module within the
    layer that the first difference came up in, empty if it is the layer itself, None if there
    was no difference; and what was raised there, in a line.

    Raises:
        torch.OutOfMemoryError: if there is no memory for it. What was equal by then is
            `learnt`, and let go of: there is more the next time.
    """
    layouts = [call.learnt.get(index) for index in range(len(call.saves))]
    free = {index for index, save in enumerate(call.saves) if not save.is_fixed}
    digests = call.digests or {}
    free = {it for it in free if call.saves[it].tensor is not None or it in digests}
    differs: list[str] = []
    call.bases = call.bases or dict.fromkeys(call.kept_anyway(), KEPT_ANYWAY)
    found = Found()

    def take(index: int, rows: Any) -> bool:
        save = call.saves[index]
        if save.tensor is None:
            # It was let go of, when it was saved.
            layout, is_same = None, digests[index] == digest(rows)
        elif save.tensor._version != save.version:
            # Changed in place since; it stays whole, and what comes of it is compared.
            return True
        else:
            layout, is_same = compare(save.tensor, rows, call.tokens, first)
        if not is_same:
            # What comes after may depend on it, whatever its values are today.
            differs.append(save.module)
            return False
        call.learnt[index] = layouts[index] = layout if first else WHOLE
        if layouts[index] is not None and call.bases.get(save.place, index) == index:
            found.add(index, rows, save)
        _let_go(call, index, layouts[index])
        return True

    if not free:
        return layouts, None, None
    state = generator_state(call.device)
    replay = Replay(call, first, free, take)
    replay.replayer.is_learning = True
    replay.replayer.learns = trace = Trace()
    try:
        replay.run()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        # Whatever a part of the tokens makes a layer raise: nothing of it is cut.
        where = replay.running[-1] if replay.running else ""
        said = next(iter(str(error).splitlines()), type(error).__name__)
        return [None] * len(call.saves), where, said
    finally:
        set_generator_state(call.device, state)
    call.notes_answered = replay.replayer.at
    if not differs and trace.is_usable:
        trace.close()
        _prove(call, first, trace, found)
    return layouts, next(iter(differs), None), None


def _let_go(call: Call, index: int, layout: Layout | None) -> None:
    """Cuts a tensor that was compared, so that the replay has its memory.

    Not what an input or a note has anyway, nor what another save keeps whole.
    """
    save = call.saves[index]
    base = call.bases.get(save.place, index)
    if save.tensor is None:
        return
    if layout is None or base == KEPT_ANYWAY or (base != index and not call.saves[base].storage):
        return
    call.cut(index, save, layout)
    if save.whole is None:
        save.tensor = None


def _prove(call: Call, first: int, trace: Trace, found: Found) -> None:
    """Has each group put together alone, where all else is no number, and compares again."""
    storages, keeping = found.storages, Keeping(frozenset(), frozenset())
    if call.keeps_products:
        keeping = trace.keeps(storages)
    kept = {it: places for it, places in storages.items() if places[0] in keeping.places}
    rest = {it: places for it, places in storages.items() if it not in kept}
    groups = trace.grouped(rest, found.sizes)
    if len(groups) < 2 and not keeping.dropped and not trace.leaves_out(groups):
        return
    # This pass has let go of what later ones keep: it is put together once more.
    groups += trace.grouped(kept, found.sizes)
    is_same = True

    def take(index: int, rows: Any) -> bool:
        nonlocal is_same
        is_same &= found.is_same(index, rows)
        return is_same

    call.trace = trace
    try:
        for group in groups:
            with contextlib.suppress(torch.OutOfMemoryError):
                call.replay(first, set(group.places), take, group, is_proof=True)
                if is_same:
                    trace.groups.append(group)
            is_same = True
    except (OutOfStep, Exception):
        # Whatever memory that nobody wrote makes a layer raise.
        trace.groups.clear()
    if len(trace.groups) == len(groups):
        trace.keeping = keeping
    call.trace = trace if trace.groups else None
