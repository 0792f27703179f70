"""`python -m girih doctor`: what works here, what does not, and why.

Each check is a function that gives findings. A finding is good, bad, or a note. Training on Girih
would work if nothing that is needed is bad; what merely makes it poorer is a note.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from girih import _command, _install, _prebuilt, _process, _settings, _shim
from girih._errors import GirihError
from girih._toolchain import (
    OLDEST_TORCH,
    find_compiler,
    find_cuda_headers,
    release_of,
    torch_of,
)
from girih._version import VERSION

_CHILD_SECONDS_MAX = 300


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Literal["good", "bad", "note"]
    text: str

    def line(self) -> str:
        """For people."""
        sign = {"good": "ok  ", "bad": "BAD ", "note": "note"}[self.verdict]
        text = self.text.replace("\n", "\n" + " " * 21)
        return f"{sign} {self.what:<15} {text}"


def main(words: list[str]) -> int:
    """Looks, prints, and gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m girih doctor",
        description="Says what works here and what does not, and why. "
        "Exits 0 if training on Girih would work, 1 otherwise.",
    )
    parser.add_argument("--json", action="store_true", help="prints one JSON object")
    options = parser.parse_args(words)
    findings = []
    for finding in examine():
        findings.append(finding)
        if not options.json:
            print(finding.line(), flush=True)
    works = all(finding.verdict != "bad" for finding in findings)
    if options.json:
        print(json.dumps({"works": works, "findings": [*map(dataclasses.asdict, findings)]}))
    elif works:
        print("\nTraining on Girih works here.")
    else:
        print("\nTraining on Girih does not work here; what is BAD above says why.")
        if any(finding.what == "command" and finding.verdict == "good" for finding in findings):
            print("Recordings can be read: girih why, stats, compare and plan need no GPU.")
    return 0 if works else 1


def examine() -> Iterator[Finding]:
    """Looks at everything. A check that fails itself is a bad finding, not an end."""
    torch = _import_torch()
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("girih", _girih),
        ("driver", _driver),
        ("torch", lambda: _torch(torch)),
        ("shim", lambda: _shim_of(torch)),
        ("settings", _settings_in_the_way),
        ("training", lambda: _trains(torch)),
    ]
    for what, check in checks:
        try:
            yield from check()
        except Exception as error:
            yield Finding(what, "bad", f"cannot be examined: {type(error).__name__}: {error}")


def _import_torch() -> Any:
    try:
        import torch
    except Exception as error:
        return error
    return torch


def _girih() -> Iterator[Finding]:
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    is_linux = sys.platform.startswith("linux")
    yield Finding(
        "machine",
        "good" if is_linux else "bad",
        machine + ("" if is_linux else "; Girih needs Linux"),
    )
    from girih import _native

    yield Finding("girih", "good", f"{VERSION}, interface {_native.abi()}, {_native.__file__}")
    try:
        yield Finding("command", "good", str(_command.find()))
    except GirihError as error:
        yield Finding("command", "note", str(error))
    cache = _settings.cache_dir()
    folder = _shim.writable()
    if folder == cache:
        yield Finding("cache", "good", str(cache))
    else:
        yield Finding(
            "cache", "note", f"{cache} cannot be written to; {folder} serves, until it is emptied"
        )


def _driver() -> Iterator[Finding]:
    import ctypes

    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        yield Finding(
            "driver",
            "bad",
            f"install the NVIDIA driver, or pass the GPU into the container: {error}",
        )
        return
    code = driver.cuInit(0)
    if code != 0:
        yield Finding("driver", "bad", f"the driver does not start: {_driver_error(driver, code)}")
        return
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    yield Finding(
        "driver", "good", f"serves CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    )
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    for ordinal in range(count.value):
        name, total = ctypes.create_string_buffer(128), ctypes.c_size_t()
        driver.cuDeviceGetName(name, len(name), ordinal)
        driver.cuDeviceTotalMem_v2(ctypes.byref(total), ordinal)
        # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        maps = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(maps), 102, ordinal)
        text = f"{name.value.decode(errors='replace')}, {total.value / 2**30:.1f} GiB"
        if maps.value:
            yield Finding(f"device {ordinal}", "good", text)
        else:
            yield Finding(
                f"device {ordinal}",
                "note",
                text + "; no virtual memory: native serves in the place of the modes that map "
                "memory, and profile in that of phantom",
            )
    if count.value == 0:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = f"; CUDA_VISIBLE_DEVICES is {visible!r}" if visible is not None else ""
        yield Finding("device", "bad", f"the driver shows no device{hint}")


def _driver_error(driver: Any, code: int) -> str:
    import ctypes

    text = ctypes.c_char_p()
    driver.cuGetErrorString(code, ctypes.byref(text))
    return f"{(text.value or b'unknown error').decode(errors='replace')} ({code})"


def _torch(torch: Any) -> Iterator[Finding]:
    if isinstance(torch, Exception):
        yield Finding("torch", "bad", f"pip install torch: it cannot be imported: {torch}")
        return
    known = torch_of(torch)
    if known.cuda is None:
        yield Finding(
            "torch",
            "bad",
            f"{known.version} is built without CUDA (for the CPU, or for ROCm): a program runs on "
            "torch's own allocator; install a build with CUDA (https://pytorch.org/get-started)",
        )
    elif known.release < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        yield Finding(
            "torch", "bad", f"install {oldest} or later: {known.version} is too old for Girih"
        )
    else:
        yield Finding("torch", "good", f"{known.version} for CUDA {known.cuda}")


def _shim_of(torch: Any) -> Iterator[Finding]:
    """Without the shim training works too, through torch's own door."""
    from girih import _native

    sources = _native.shim_sources()
    if isinstance(torch, Exception) or torch.version.cuda is None:
        if has := _prebuilt.releases():
            yield Finding("shim", "note", f"none is needed without torch for CUDA; {has}")
        return
    known = torch_of(torch)
    found = _prebuilt.find(known, sources)
    if found.path is not None:
        yield Finding("shim", "good", f"the wheel's, for torch {known.version}: {found.path}")
        return
    yield Finding("prebuilt shim", "note", f"{found.why_not}; it is compiled here")
    try:
        compiler = find_compiler()
        yield Finding("compiler", "good", f"{' '.join(compiler.command)}: {compiler.version}")
        headers = find_cuda_headers(known)
        yield Finding("CUDA headers", "good", ", ".join(map(str, headers)))
        built = _shim.get(known, sources)
    except GirihError as error:
        yield Finding("shim", "note", f"{error}\nWithout it these do not work: {_install.LOST}")
        return
    how = f"compiled in {built.seconds:.1f} s" if built.seconds else "compiled before"
    yield Finding("shim", "good", f"{how}: {built.path}")


def _torch_release() -> tuple[int, int]:
    """The release of the torch that is installed; (0, 0) without one. It is not imported."""
    try:
        return release_of(importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        return (0, 0)


def _settings_in_the_way() -> Iterator[Finding]:
    conf = _settings.torch_conf(_torch_release())
    if "cudaMallocAsync" in conf:
        yield Finding(
            "PYTORCH conf",
            "bad",
            f"remove the backend from PYTORCH_CUDA_ALLOC_CONF: {conf!r} names another allocator",
        )
    elif conf:
        yield Finding(
            "PYTORCH conf",
            "note",
            f"pass conf='' (--conf '') to leave it aside: {conf!r} holds for Girih's caching too",
        )
    for name, text in {
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "torch asks for no caching; Girih caches all the same",
        "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "NCCL registers segments as they come",
        "CUDA_LAUNCH_BLOCKING": "every kernel is waited for; fine for a search, slow for training",
        "GIRIH_MODE": "Girih is enabled by `import girih` in every process that has this variable",
    }.items():
        if value := os.environ.get(name):
            yield Finding(name, "note", f"is {value!r}: {text}")


_PROOF = """
import girih, torch
girih.enable("native", plan_dir=False)
x = torch.ones(1 << 20, device="cuda", requires_grad=True)
(x * x).sum().backward()
assert x.grad.sum().item() == 2 << 20
print(girih.stats()["devices"][0]["allocated_peak"])
"""


def _trains(torch: Any) -> Iterator[Finding]:
    """The proof, in a process of its own: a gradient in Girih's memory."""
    if isinstance(torch, Exception) or not _process.has_driver():
        return
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIRIH_M")}
    result = subprocess.run(
        [sys.executable, "-c", _PROOF],
        capture_output=True,
        text=True,
        timeout=_CHILD_SECONDS_MAX,
        check=False,
        env=environ,
        cwd=Path(sys.prefix),
    )
    if result.returncode == 0:
        yield Finding(
            "training",
            "good",
            f"a gradient was computed in {result.stdout.strip()} bytes from Girih",
        )
    else:
        last = (result.stderr.strip().splitlines() or ["it said nothing"])[-1]
        yield Finding(
            "training", "bad", f"a first gradient fails (exit status {result.returncode}): {last}"
        )
