"""Whether a layer that ran again over some tokens saved what it had saved before."""

from __future__ import annotations

from typing import Any

import torch

from girih._long.layout import Layout, candidates


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
