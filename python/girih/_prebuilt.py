"""Shims that the wheel brings: compiled ahead, for the releases of torch that are on PyPI.

A shim is C++ against torch's headers, which promise nothing from one release to the next. So each
minor release has its own, and `index.json` lists for which releases, by all three numbers, the
compiler made the same of it; any other torch (a later patch, a nightly, a vendor's) has its shim
compiled on the spot.

    girih/_shims/index.json
                 torch-2.11.so
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from girih._toolchain import Torch, release_of

FOLDER = Path(__file__).parent / "_shims"


@dataclasses.dataclass(frozen=True)
class Found:
    """A prebuilt shim, or why there is none."""

    path: Path | None
    why_not: str = ""


def digest_of(sources: Sequence[tuple[str, str]]) -> str:
    """What tells one source of the shim from another, in 16 hexadecimal digits."""
    return hashlib.sha256(repr(sorted(sources)).encode()).hexdigest()[:16]


def find(torch: Torch, sources: Sequence[tuple[str, str]], *, folder: Path = FOLDER) -> Found:
    """The shim of the wheel for this torch, made of these sources."""
    index = _index(folder)
    if index is None:
        return Found(None, "this installation brings no compiled shims")
    number, _, local = torch.version.partition("+")
    known = [shim for shim in index["shims"] if number in shim["releases"]]
    cuda = release_of(torch.cuda or "")[0]
    abi = "new" if torch.cxx11_abi else "old"
    if index.get("machine") != platform.machine():
        why_not = f"the shims of the wheel are for {index.get('machine')}"
    elif index.get("sources") != digest_of(sources):
        why_not = "the shims of the wheel are of another version of Girih"
    elif not known:
        why_not = f"there is no prebuilt shim for torch {number} ({releases(folder)})"
    elif local and not re.fullmatch(r"cu\d+", local):
        why_not = f"torch {torch.version} is no build of its publishers"
    else:
        for shim in known:
            path = folder / shim["file"]
            is_for = shim["cxx11_abi"] == torch.cxx11_abi and cuda in shim["cuda"]
            if is_for and path.is_file():
                return Found(path)
        why_not = f"the wheel has none for torch {number} with CUDA {cuda} and the {abi} C++ ABI"
    return Found(None, why_not)


def releases(folder: Path = FOLDER) -> str:
    """The releases of torch that the wheel has shims for, for people; empty if for none."""
    index = _index(folder) or {"shims": []}
    minors = sorted({release_of(name) for shim in index["shims"] for name in shim["releases"]})
    if not minors:
        return ""
    first, last = (".".join(map(str, minor)) for minor in (minors[0], minors[-1]))
    return f"the wheel has {first} to {last}" if len(minors) > 1 else f"the wheel has {first}"


def _index(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / "index.json").read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
