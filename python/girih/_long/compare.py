"""Whether a layer that ran again over some tokens saved what it had saved before."""

from __future__ import annotations

from typing import Any

import torch

from girih._long.layout import Layout, candidates, storage_of

WIDTHS = (4096, 4093)
"""In rows of so many words of 8 bytes a tensor is summed up for its digest. What two changes hide
from each other in rows of one width shows in those of the other."""
MULTIPLIER = 0x5851F42D4C957F2D


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
        """A tensor that was equal. `save` still has the whole of it, or has let go of it."""
        storage = save.storage or storage_of(save.tensor)
        self.storages.setdefault(storage, []).append(index)
        self.sizes[storage] = max(self.sizes.get(storage, 0), save.bytes)
        self._digests[index] = digest(rows)

    def is_same(self, index: int, rows: Any) -> bool:
        """Whether another replay gave the same."""
        return self._digests[index] == digest(rows)


def digest(tensor: Any) -> tuple[Any, ...]:
    """Of a tensor's bits and where they stand: other bits give another, but for a rare chance.

    Its words are summed up in columns and rows, and the sums again, each by a factor of its own,
    modulo 2 to the 64. That takes a dozen launches and next to no memory, which is short when
    layers are compared. The device is asked once.
    """
    words, rest = _words(tensor.detach().contiguous().flatten())
    sums: list[Any] = []
    for width in WIDTHS:
        many = len(words) // width
        rows, left = words[: many * width].view(many, width), words[many * width :]
        sums += [rows.sum(0), left] if sums else [rows.sum(0), left, rows.sum(1)]
    factors = _factors(max(map(len, sums)), tensor.device)
    totals = torch.stack([(factors[: len(one)] * one).sum() for one in sums])
    return tuple(tensor.shape), tensor.dtype, *totals.tolist(), bytes(rest.tolist())


def _factors(count: int, device: Any) -> Any:
    """Odd numbers, by chance: between multiples of a number what is moved would not show."""
    factors = torch.arange(1, count + 1, device=device)
    for shift in (32, 29):
        factors.mul_(MULTIPLIER).bitwise_xor_(factors >> shift)
    return factors.mul_(MULTIPLIER).bitwise_or_(1)


def _words(flat: Any) -> tuple[Any, Any]:
    """The bytes of a tensor as words of 8, and those that are left."""
    if flat.is_complex():
        flat = torch.view_as_real(flat).flatten()
    offset = flat.storage_offset() * flat.element_size()
    raw = (flat.clone() if offset % 8 else flat).view(torch.uint8)
    whole = len(raw) // 8 * 8
    return raw[:whole].view(torch.int64), raw[whole:]
