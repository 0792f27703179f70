"""What compiles the shim: a C++ compiler, the headers of torch, and those of CUDA.

torch's wheels bring all headers but two. CUDA's runtime headers include `crt/host_defines.h` and
`crt/host_config.h`, which come with the compiler nvcc, in a package of their own. Where they are
missing, substitutes serve: to a host compiler they say little more than that `__host__` and its
like mean nothing.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from girih._errors import GirihError

# Oldest torch whose allocator interface the shim knows.
OLDEST_TORCH = (2, 6)
# From here on torch's headers are C++20.
_CXX20_TORCH = (2, 9)

# By name. All that the headers of the runtime need of them under a host compiler.
CRT_SUBSTITUTES = {
    "crt/host_defines.h": """\
// Substitute for this file of the CUDA toolkit, for host compilers.
#ifndef GIRIH_CRT_HOST_DEFINES_H
#define GIRIH_CRT_HOST_DEFINES_H
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __host__
#define __device__
#define __device_builtin__
#define __device_builtin_surface_type__
#define __device_builtin_texture_type__
#define __cudart_builtin__
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDART_CB
#endif
""",
    "crt/host_config.h": """\
// Substitute for this file of the CUDA toolkit, which checks that nvcc knows the host compiler.
#include "crt/host_defines.h"
""",
}


@dataclasses.dataclass(frozen=True)
class Torch:
    """The torch to compile against."""

    version: str
    """As in `torch.__version__`, with the local part."""
    folder: Path
    """Its package: `include` and `lib` are in it."""
    cuda: str | None
    """The CUDA release that it was built with; None for a build without CUDA."""
    cxx11_abi: bool
    """Which of libstdc++'s two ABIs it was built with."""

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor number."""
        return release_of(self.version)


def release_of(version: str) -> tuple[int, int]:
    """Major and minor number of a version; (0, 0) if it has none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def torch_of(module: ModuleType) -> Torch:
    """What there is to know of an imported torch."""
    return Torch(
        version=str(module.__version__),
        folder=Path(str(module.__file__)).parent,
        cuda=module.version.cuda,
        cxx11_abi=bool(getattr(module._C, "_GLIBCXX_USE_CXX11_ABI", True)),
    )


@dataclasses.dataclass(frozen=True)
class Compiler:
    """A C++ compiler."""

    command: tuple[str, ...]
    version: str
    """The first line of what it says of itself."""


def find_compiler(environ: Mapping[str, str] = os.environ) -> Compiler:
    """$CXX if it is set, else the first of g++, clang++ and c++ that answers."""
    named = environ.get("CXX")
    candidates = [named] if named else ["g++", "clang++", "c++"]
    for candidate in candidates:
        command = tuple(candidate.split())
        if not command or shutil.which(command[0], path=environ.get("PATH")) is None:
            continue
        try:
            answer = subprocess.run(
                [*command, "--version"], capture_output=True, text=True, timeout=30, check=True
            )
        except (OSError, subprocess.SubprocessError):
            continue
        return Compiler(command, (answer.stdout.splitlines() or [""])[0])
    if named:
        raise GirihError(f"unset $CXX, or name a C++ compiler: it is {named}, which does not run")
    raise GirihError(
        "install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; "
        "conda: conda install gxx), or name one in $CXX: there is no C++ compiler"
    )


def find_cuda_headers(torch: Torch, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """The folders with `cuda_runtime_api.h` and, if it is anywhere, `crt/host_defines.h`.

    Those of torch's own release are taken before others. Without the latter file the caller
    supplies `CRT_SUBSTITUTES`.
    """
    folders = [folder for folder in _header_candidates(torch, environ) if folder.is_dir()]
    major = release_of(torch.cuda or "")[0]
    fitting = [folder for folder in folders if _cuda_major(folder) == major]
    if not fitting:
        looked = ", ".join(map(str, folders)) or "no folder at all"
        raise GirihError(
            f"{_header_package(major)}, or name a CUDA toolkit in $CUDA_HOME: "
            f"the headers of CUDA {major} are nowhere (looked in {looked})"
        )
    found = fitting[:1]
    if not (found[0] / "crt/host_defines.h").is_file():
        found += [
            folder
            for folder in folders
            if (folder / "crt/host_defines.h").is_file() and folder in (*fitting, *_crt(folders))
        ][:1]
    return found


def _crt(folders: Iterable[Path]) -> list[Path]:
    """Folders that hold nothing of the runtime, so that their release cannot clash."""
    return [folder for folder in folders if _cuda_major(folder) is None]


def _header_package(major: int) -> str:
    name = "nvidia-cuda-runtime-cu12" if major == 12 else "nvidia-cuda-runtime"
    return f"pip install {name}"


def _header_candidates(torch: Torch, environ: Mapping[str, str]) -> Iterator[Path]:
    major = release_of(torch.cuda or "")[0]
    # pip: the packages that torch's wheel depends on, beside it or where Python finds them.
    for site in _nvidia_packages(torch):
        yield site / f"cu{major}" / "include"
        yield site / "cuda_runtime" / "include"
        yield site / "cuda_nvcc" / "include"
    # A toolkit: the one that is named, the one of nvcc, the usual place.
    homes = [environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    if nvcc := shutil.which("nvcc", path=environ.get("PATH")):
        homes.append(str(Path(nvcc).resolve().parent.parent))
    homes += [f"/usr/local/cuda-{torch.cuda}", f"/usr/local/cuda-{major}", "/usr/local/cuda"]
    if conda := environ.get("CONDA_PREFIX"):
        homes.append(conda)
    for home in filter(None, homes):
        yield Path(home) / "include"
        yield Path(home) / "targets" / f"{_cuda_machine()}-linux" / "include"
    yield Path("/usr/include")


def _cuda_machine() -> str:
    return {"aarch64": "sbsa"}.get(platform.machine(), platform.machine())


def _nvidia_packages(torch: Torch) -> list[Path]:
    folders = [torch.folder.parent / "nvidia"]
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.submodule_search_locations is not None:
        folders += map(Path, spec.submodule_search_locations)
    return list(dict.fromkeys(folders))


def _cuda_major(folder: Path) -> int | None:
    """The major release of the CUDA runtime headers in a folder; None if there are none."""
    try:
        text = (folder / "cuda_runtime_api.h").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
    return int(found[1]) // 1000 if found else None


def compile_flags(torch: Torch, includes: Iterable[Path]) -> list[str]:
    """What the compiler is told besides the name of a file."""
    standard = "c++20" if torch.release >= _CXX20_TORCH else "c++17"
    return [
        f"-std={standard}",
        "-O2",
        "-DNDEBUG",
        "-fPIC",
        "-fvisibility=hidden",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.cxx11_abi)}",
        *(f"-isystem{folder}" for folder in (torch.folder / "include", *includes)),
    ]


def link_flags(torch: Torch) -> list[str]:
    """What the linker is told besides the names of the files. The girih_* come from _native."""
    lib = torch.folder / "lib"
    return [
        "-shared",
        f"-L{lib}",
        f"-Wl,-rpath,{lib}",
        # Their names must be in the file though the linker may think that nothing needs them: they
        # bring the CUDA runtime that torch uses.
        "-Wl,--no-as-needed",
        "-lc10",
        "-lc10_cuda",
    ]
