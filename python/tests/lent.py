"""The part of the shim that looks at tensors, compiled against a torch without CUDA and lent.

`python lent.py FOLDER test_saved_torch.py ...` runs tests with it, whatever they are; they are in a
process of their own, for what is lent stays.
"""

import ctypes
import subprocess
import sys
from pathlib import Path

LEND = """
#include "tensors.cpp"
namespace { uint64_t no_stream(int32_t) { return 0; } }
extern "C" __attribute__((visibility("default"))) void lend() { girih::lend_tensors(&no_stream); }
"""


def lend(folder):
    """From now on hooks look at tensors as under the shim."""
    import torch

    from girih import _native, _toolchain

    for name, text in _native.shim_sources():
        (folder / name).write_text(text)
    (folder / "lend.cpp").write_text(LEND)
    here = _toolchain.torch_of(torch)
    libraries = here.folder / "lib"
    flags = [*_toolchain.compile_flags(here, [folder]), "-shared", f"-L{libraries}", "-lc10"]
    subprocess.run(
        [
            *_toolchain.find_compiler().command,
            *(str(folder / "lend.cpp"), "-o", str(folder / "lend.so")),
            *flags,
            f"-Wl,-rpath,{libraries}",
        ],
        check=True,
    )
    # Its girih_* are the extension's.
    ctypes.CDLL(_native.__file__, mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(folder / "lend.so")).lend()


if __name__ == "__main__":
    import pytest

    lend(Path(sys.argv[1]))
    sys.exit(pytest.main(sys.argv[2:]))
