"""Numbers for people, as the command writes them: bytes in powers of 1024, thousands apart."""

from __future__ import annotations


def size(count_of_bytes: int) -> str:
    """Bytes with three digits that count."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count_of_bytes >= 1 << shift:
            amount = count_of_bytes / (1 << shift)
            digits = 2 if amount < 10 else 1 if amount < 100 else 0
            return f"{amount:.{digits}f} {unit}"
    return f"{count_of_bytes} B"


def count(number: int) -> str:
    """A number of things."""
    return f"{number:,}"


def percent(part: int, whole: int) -> str:
    """A part of a whole, never rounded up to all of it."""
    shown = 10_000 * part // whole / 100 if part < whole else 100 * part / whole
    return f"{shown:.2f} %"
