"""Puts the shim over Girih's heaps as the package does, on simulated devices, and tests it there.

    shim_over_heaps.py MODE LIBRARY TORCH CUDA TESTS

MODE is a mode of the heaps and LIBRARY the library that has them; TORCH is the torch of the shim,
as JSON (its fields in _toolchain.Torch), CUDA an object with the tests' own CUDA runtime, and TESTS
one with the tests. The shim must be in the cache ($GIRIH_CACHE) already. One process for each mode:
settings are chosen once.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import shim_package

CAPACITY = 1 << 30


def main() -> int:
    mode, library, torch, cuda, tests = sys.argv[1:]
    shim_package.make(Path(library))
    from girih import _install, _native, _shim

    known = json.loads(torch)
    # What the package asks of the module that `import torch` gives.
    torch = SimpleNamespace(
        __version__=known["version"],
        __file__=f"{known['folder']}/__init__.py",
        version=SimpleNamespace(cuda=known["cuda"]),
        _C=SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=known["cxx11_abi"]),
    )
    # The first that has a name is the one that is called: before libcudart, which the shim brings.
    ctypes.CDLL(cuda, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    simulated = {"capacity": CAPACITY}
    _native.configure(json.dumps({"mode": mode, "torch": torch.__version__, "sim": simulated}))
    built = _shim.build(_install.torch_of(torch), _native.shim_sources())
    if built.seconds > 0:
        raise SystemExit("the library carries another source of the shim than the one beside it")
    door = _install.install(torch)
    if door != "shim":
        raise SystemExit(f"the package installed its {door}")
    failed = ctypes.CDLL(tests, mode=os.RTLD_NOW).girih_run_tests(mode.encode())
    report = json.loads(_native.report())
    if report["mode"] != mode or len(report["devices"]) != 2:
        raise SystemExit(f"the tests ran over other heaps: {report}")
    # As the package does when Python ends; what is freed later must do no harm.
    _native.finish()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
