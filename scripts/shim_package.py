"""The modules of the package that compile and load the shim, from the sources of this repository.

The package's own beginning is left out: it imports the package's library, which for most of what is
done here need not be built.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def make(library: Path | None = None) -> None:
    """From now on `girih._shim` and its like can be imported, and `girih._native` is `library`."""
    girih = types.ModuleType("girih")
    girih.__path__ = [str(ROOT / "python/girih")]
    sys.modules["girih"] = girih
    if library is not None:
        spec = importlib.util.spec_from_file_location("girih._native", library)
        girih._native = importlib.util.module_from_spec(spec)
        sys.modules["girih._native"] = girih._native
        spec.loader.exec_module(girih._native)
