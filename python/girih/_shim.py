"""The shim for the torch that is installed: the wheel's, or compiled once and kept.

The shim is the C++ class that torch calls. For releases of torch that are on PyPI the wheel brings
it compiled (`_prebuilt`). Its source travels inside `_native` too; for any other torch it is
compiled against the headers that are installed, into the user's cache:

    ~/.cache/girih/shim/2.11.0+cu130-5f0c.../girih_shim.so
                        torch        hash of source, compiler and flags

Ranks that start together compile once: the first takes a lock, the others wait and find the file. A
file appears under its name only when it is whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from girih import _prebuilt, _settings
from girih._errors import GirihError
from girih._toolchain import (
    CRT_SUBSTITUTES,
    OLDEST_TORCH,
    Compiler,
    Torch,
    compile_flags,
    find_compiler,
    find_cuda_headers,
    link_flags,
)

log = logging.getLogger("girih")

Sources = Sequence[tuple[str, str]]

_COMPILE_SECONDS_MAX = 600
# Beside the sources: includes them all.
_WHOLE = "whole.cpp"


@dataclasses.dataclass(frozen=True)
class Built:
    """A compiled shim."""

    path: Path
    seconds: float
    """What compiling took; 0 if it was there."""
    why_compiled: str | None = None
    """Why it is not the wheel's; None if it is."""


def get(torch: Torch, sources: Sources) -> Built:
    """The shim for this torch: the wheel's if it has one, else from the cache, or compiled."""
    _refuse_unfit(torch)
    found = _prebuilt.find(torch, sources)
    if found.path is not None:
        return Built(found.path, 0.0)
    return dataclasses.replace(build(torch, sources), why_compiled=found.why_not)


def build(torch: Torch, sources: Sources, *, cache: Path | None = None) -> Built:
    """The shim for this torch: found in the cache, or compiled."""
    _refuse_unfit(torch)
    recipe = _Recipe(
        sources, find_compiler(), compile_flags(torch, find_cuda_headers(torch)), link_flags(torch)
    )
    folder = writable(cache) / "shim" / f"{torch.version}-{recipe.digest(torch)}"
    library = folder / "girih_shim.so"
    if library.is_file():
        return Built(library, 0.0)
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder / "lock"):
        if library.is_file():
            return Built(library, 0.0)
        start = time.perf_counter()
        _compile(folder, library, recipe)
        seconds = time.perf_counter() - start
    log.info("compiled the shim for torch %s in %.1f s: %s", torch.version, seconds, library)
    return Built(library, seconds)


def _refuse_unfit(torch: Torch) -> None:
    if torch.cuda is None:
        raise GirihError(
            "install a build with CUDA (https://pytorch.org/get-started/locally): "
            f"torch {torch.version} is built without CUDA"
        )
    if torch.release < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise GirihError(f"install torch {oldest} or later: {torch.version} is too old for Girih")


def forget(built: Built) -> None:
    """Removes a shim that does not load, so that it is compiled anew."""
    with contextlib.suppress(FileNotFoundError):
        built.path.unlink()


def writable(cache: Path | None = None) -> Path:
    """The cache folder if files can be made in it; else this user's in the temporary one."""
    wanted = cache or _settings.cache_dir()
    for folder in (wanted, Path(tempfile.gettempdir()) / f"girih-{os.getuid()}"):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Code is loaded from here: nobody else may own the folder.
            if folder.stat().st_uid not in (os.getuid(), 0):
                continue
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    raise GirihError(
        "name a folder for compiled files in $GIRIH_CACHE: neither "
        f"{wanted} nor the temporary folder can be written to"
    )


@dataclasses.dataclass(frozen=True)
class _Recipe:
    """How a shim is made."""

    sources: Sources
    compiler: Compiler
    compile_flags: Sequence[str]
    link_flags: Sequence[str]

    def digest(self, torch: Torch) -> str:
        """What the compiled file depends on, in 16 hexadecimal digits."""
        known = (torch, CRT_SUBSTITUTES, self)
        return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


def _compile(folder: Path, library: Path, recipe: _Recipe) -> None:
    """Writes the sources to `folder`, and compiles them there."""
    source = folder / "source"
    for name, text in (*recipe.sources, *CRT_SUBSTITUTES.items()):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    # As one, which reads torch's headers once: a quarter of the time of a processor.
    units = [name for name, _ in recipe.sources if name.endswith(".cpp")]
    (source / _WHOLE).write_text("".join(f'#include "{name}"\n' for name in units))
    # Under this name until it is whole. The process's number keeps hosts without locks apart.
    partial = folder / f"partial-{os.getpid()}.so"
    # The substitutes for CUDA's files come last: real ones go first.
    flags = ["-I.", *recipe.compile_flags, "-idirafter."]
    try:
        _call(
            [*recipe.compiler.command, *flags, _WHOLE, *recipe.link_flags, "-o", str(partial)],
            source,
            recipe.compiler,
        )
        partial.replace(library)
    finally:
        partial.unlink(missing_ok=True)


def _call(command: Sequence[str], source: Path, compiler: Compiler) -> None:
    """Calls the compiler in the folder of the sources."""
    try:
        result = subprocess.run(
            command,
            cwd=source,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMPILE_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise GirihError(f"look at the compiler ($CXX), it does not run: {error}") from error
    if result.returncode != 0:
        whole = source.parent / "errors.txt"
        whole.write_text(f"{' '.join(command)}\n{result.stderr}")
        raise GirihError(
            f"look into {whole}: {compiler.version} does not compile the shim. It begins:\n"
            + "\n".join(_first_errors(result.stderr))
        )


def _first_errors(text: str) -> list[str]:
    lines = text.splitlines()
    return [line for line in lines if "error" in line][:5] or lines[:5]


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process of this machine at a time. Where files cannot be locked, by none."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            log.debug("%s cannot be locked: %s", path, error)
        yield
