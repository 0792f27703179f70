"""Names of files that several processes and devices write, each its own.

`{rank}` and `{device}` in a name stand for those numbers. A name without them gets them before its
suffix where they are needed: `run.girih` becomes `run.rank3.girih` if there are several ranks, and
`run.dev1.girih` for every device but the first.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from pathlib import Path


def absolute(path: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> str:
    """A path to read: absolute, with this process's rank for `{rank}`."""
    return str(Path(str(path).replace("{rank}", environ.get("RANK", "0"))).absolute())


def own(path: str, device: int | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """A path to write: of this process, and of one device if it is given."""
    path = _fill(path, "rank", environ.get("RANK"), is_needed=environ.get("WORLD_SIZE", "1") != "1")
    is_child = multiprocessing.parent_process() is not None and "RANK" not in environ
    if is_child:
        # Processes that a program starts without numbering them.
        path = _fill(path, "pid", str(os.getpid()), is_needed=True)
    if device is not None:
        path = _fill(path, "device", str(device), is_needed=device != 0, short="dev")
    return path


def _fill(path: str, name: str, value: str | None, *, is_needed: bool, short: str = "") -> str:
    placeholder = "{" + name + "}"
    if placeholder in path:
        return path.replace(placeholder, value or "0")
    if value is None or not is_needed:
        return path
    parts = Path(path)
    return str(parts.with_name(f"{parts.stem}.{short or name}{value}{parts.suffix}"))
