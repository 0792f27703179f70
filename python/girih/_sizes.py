"""Sizes as people write them: the spellings of the command `girih`, with its binary units."""

from __future__ import annotations

import re

from girih._errors import GirihError

_SHIFTS = {None: 0, "k": 10, "m": 20, "g": 30, "t": 40}
_MOST = 1 << 50


def parse(what: str, size: int | str) -> int:
    """The bytes of a size: a number, or a text such as `60GiB`, `1.5 TB`, `12g`, `123B`.

    Units are binary, and `GB` and `GiB` are the same, as on the box of a GPU. `what` names the size
    in errors.
    """
    if isinstance(size, int) and not isinstance(size, bool):
        if size > 0:
            return size
        raise GirihError(f"write a number of bytes above 0, or a text like 60GiB: {what} is {size}")
    found = re.fullmatch(
        r"(\d+\.?\d*|\.\d+)\s*(?:([kmgt])(?:i?b)?|b)", str(size).strip(), re.IGNORECASE
    )
    if found is not None:
        shift = _SHIFTS[found[2] and found[2].lower()]
        count = int(float(found[1]) * (1 << shift))
        if 1 <= count <= _MOST:
            return count
    raise GirihError(f"write a size like 60GiB, 1500MB or 123B: {what} is `{size}`")
