"""What `import girih` does by itself: it obeys the launcher's environment.

`python -m girih run` reaches the Python processes that its program starts (the ranks of a launcher,
the children of `torch.multiprocessing`) by two variables: GIRIH_MODE and its like say what to do,
and PYTHONPATH begins with the folder `_site`, whose `sitecustomize` imports girih. The folder is a
thing of that one command: an installation adds nothing to the start of other Python processes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from girih import _process, _settings

SITE = Path(__file__).parent / "_site"


def obey_environment() -> None:
    """Arms Girih if GIRIH_MODE is set. Not in `python -m girih` itself, which has its own word."""
    if is_command():
        return
    settings = _settings.from_environ()
    if settings is not None:
        _process.arm(settings, is_strict=False)


def is_command() -> bool:
    """True while Python looks for the module of `python -m girih`."""
    if getattr(sys, "argv", [])[:1] != ["-m"]:
        return False
    words = sys.orig_argv[1:]
    return any(
        word in ("-mgirih", "-mgirih.__main__")
        or (word in ("girih", "girih.__main__") and words[index - 1 : index] == ["-m"])
        for index, word in enumerate(words)
    )


def reach_children() -> None:
    """Puts the folder of `sitecustomize` into the environment of processes that this one starts."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if str(SITE) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *paths])
