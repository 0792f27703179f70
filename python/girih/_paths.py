"""Names of files that several processes and devices write, each its own.

`{rank}` and `{device}` in a name stand for those numbers. A name without them gets them before its
suffix where they are needed: `run.girih` becomes `run.rank3.girih` if there are several ranks, and
`run.dev1.girih` for every device but the first. Processes that a program starts without numbering
them are told apart by their process's number: `run.pid4711.girih`.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TextIO

from girih import _ranks

# Who was asked to write: the process of `python -m girih run`, for those that it starts.
_LAUNCHED = "GIRIH_PID"


def absolute(path: str | os.PathLike[str], environ: Mapping[str, str] = os.environ) -> str:
    """A path to read: absolute, with this process's rank for `{rank}`."""
    rank = _ranks.rank(environ)
    return str(Path(str(path).replace("{rank}", str(rank.number if rank else 0))).absolute())


def own(path: str, device: int | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """A path to write: of this process, and of one device if it is given."""
    rank = _ranks.rank(environ)
    if rank is not None:
        path = _fill(path, "rank", str(rank.number), is_needed=not rank.is_alone)
    else:
        path = _fill(path, "rank", None, is_needed=False)
        if _is_child(environ):
            path = _fill(path, "pid", str(os.getpid()), is_needed=True)
    if device is not None:
        path = _fill(path, "device", str(device), is_needed=device != 0, short="dev")
    return path


def launch(environ: MutableMapping[str, str]) -> None:
    """The processes that this one starts have names of their own for what it writes."""
    environ[_LAUNCHED] = str(os.getpid())


def _is_child(environ: Mapping[str, str]) -> bool:
    launched = environ.get(_LAUNCHED, str(os.getpid()))
    return multiprocessing.parent_process() is not None or launched != str(os.getpid())


def write_whole(path: str, text: str) -> None:
    """Writes a file whole or not at all. Of processes that write the same one, one wins."""
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        # A device or a pipe: there is nothing to replace.
        target.write_text(text)
        return
    unfinished, file = _beside(target)
    try:
        with file:
            file.write(text)
        unfinished.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def _beside(target: Path) -> tuple[Path, TextIO]:
    """A new file in the same folder, which no other process has."""
    for number in itertools.count():
        path = target.with_name(f"{target.name}.{os.getpid()}-{number}.unfinished")
        # Another machine's process may have our number, and a dead one may have left its file.
        with contextlib.suppress(FileExistsError):
            return path, path.open("x")
    raise AssertionError("there is always another number")


def _fill(path: str, name: str, value: str | None, *, is_needed: bool, short: str = "") -> str:
    placeholder = "{" + name + "}"
    if placeholder in path:
        return path.replace(placeholder, value or "0")
    if value is None or not is_needed:
        return path
    parts = Path(path)
    return str(parts.with_name(f"{parts.stem}.{short or name}{value}{parts.suffix}"))
