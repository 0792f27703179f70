"""The command `girih`: the program beside this package, which the wheel has laid into `bin`.

`python -m girih why` and `girih why` are the same program: this process becomes it, so that
signals, pipes and the exit status are the command's own.
"""

from __future__ import annotations

import importlib.metadata
import os
import sysconfig
from pathlib import Path
from typing import NoReturn

from girih._errors import GirihError


def find() -> Path:
    """The file of the command.

    Raises:
        GirihError: if it is not there. The text says what to do.
    """
    beside = Path(__file__).parent.parent / "bin"  # of `pip install --target`
    folders = [beside, Path(sysconfig.get_path("scripts"))]
    candidates = [*_installed(), *(folder / "girih" for folder in folders)]
    for path in candidates:
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise GirihError(
        "install the package again (pip install --force-reinstall girih), or build the command "
        "(cargo build --profile dist -p girih-cli): girih is not beside this package"
    )


def become(words: list[str]) -> NoReturn:
    """Makes this process the command with these words."""
    path = find()
    os.execv(path, [str(path), *words])


def _installed() -> list[Path]:
    """What pip has noted: wherever it was told to install, `bin` included."""
    try:
        files = importlib.metadata.files("girih") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [
        Path(os.path.normpath(str(file.locate())))
        for file in files
        if file.name in ("girih", "girih.exe") and file.parent.name in ("bin", "Scripts")
    ]
