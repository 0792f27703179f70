"""Sizes as people write them."""

from __future__ import annotations

import re

from girih._errors import GirihError

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}


def parse(what: str, size: int | str) -> int:
    """The bytes of a size: a number, or a text such as `60GiB`, `1.5 TB`, `123B`.

    `what` names it in errors.
    """
    if isinstance(size, int) and not isinstance(size, bool):
        if size > 0:
            return size
        raise GirihError(f"write a number of bytes above 0, or a text like 60GiB: {what} is {size}")
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B)\s*", str(size).upper())
    if found is None or not (size := round(float(found[1]) * _UNITS.get(found[2], 0))):
        raise GirihError(f"write a size like 60GiB, 1500MB or 123B: {what} is `{size}`")
    return size
