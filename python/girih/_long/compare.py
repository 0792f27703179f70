"""Whether a layer that ran again over some tokens saved what it had saved before."""

from __future__ import annotations

from typing import Any

import torch

from girih._long.layout import Layout, candidates, storage_of

CHUNK = 1 << 24
"""Elements of which a digest is made at once: so many times 16 bytes are taken for it."""
MULTIPLIER = 0x5851F42D4C957F2D
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def compare(full: Any, part: Any, tokens: int, first: int) -> tuple[Layout | None, bool]:
    """Where the tokens of a tensor are, if anywhere; and whether the rows of `part` are its own."""
    if full.dtype != part.dtype:
        return None, False
    if full.shape == part.shape:
        return None, _is_equal(full, part)
    rows = tokens - first
    square = [dim for dim in range(full.ndim) if full.shape[dim] != part.shape[dim]]
    if len(square) == 2 and full.ndim == part.ndim:
        # Tokens by tokens, as a mask is: right, and nothing that could be cut.
        corner = full
        for dim in square:
            if full.shape[dim] != tokens or part.shape[dim] != rows:
                return None, False
            corner = corner.narrow(dim, first, rows)
        return None, _is_equal(corner, part)
    for layout in candidates(tuple(full.shape), tuple(part.shape), tokens, rows):
        if _is_equal(layout.rows(full, first, tokens, tokens), layout.rows(part, 0, rows, rows)):
            return layout, True
    return None, False


def _is_equal(a: Any, b: Any) -> bool:
    # Not a number is equal to itself here: it is the bits that are meant.
    return bool(torch.equal(a, b)) or bool(
        a.is_floating_point() and torch.equal(a.nan_to_num(), b.nan_to_num())
    )


class Found:
    """What a replay gave and was equal: enough of it to compare another replay with."""

    def __init__(self) -> None:
        self.storages: dict[Any, list[int]] = {}
        """The saves of each storage of the pass."""
        self.sizes: dict[Any, int] = {}
        """Their bytes."""
        self._digests: dict[int, tuple[Any, ...]] = {}

    def add(self, index: int, rows: Any, save: Any) -> None:
        """A tensor that was equal. `save` still has the whole of it."""
        storage = storage_of(save.tensor)
        self.storages.setdefault(storage, []).append(index)
        self.sizes[storage] = max(self.sizes.get(storage, 0), save.tensor.nbytes)
        self._digests[index] = digest(rows)

    def is_same(self, index: int, rows: Any) -> bool:
        """Whether another replay gave the same."""
        return self._digests[index] == digest(rows)


def digest(tensor: Any) -> tuple[Any, ...]:
    """Of a tensor's bits and where they stand: other bits give another, but for a rare chance."""
    bits, place = 0, 0
    flat = tensor.detach().contiguous().flatten()
    if flat.is_complex():
        flat = torch.view_as_real(flat).flatten()
    for chunk in flat.split(CHUNK):
        whole = chunk.view(BITS[chunk.element_size()]).to(torch.int64)
        # Odd multipliers, none of them twice within a chunk; sums are modulo 2 to the 64.
        factors = torch.arange(place, place + whole.numel(), device=whole.device)
        factors.mul_(MULTIPLIER).bitwise_or_(1)
        bits += int(factors.mul_(whole).sum())
        place += whole.numel()
    return tuple(tensor.shape), tensor.dtype, bits % (1 << 64)
