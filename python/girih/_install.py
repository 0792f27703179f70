"""Puts Girih under torch: the shim if it can be had, else torch's own door for allocators.

The shim finds the heaps by name: the dynamic linker resolves its `girih_*` symbols, for which those
of `_native` must be visible to all. Python loads extensions privately; loading the same file again
with RTLD_GLOBAL makes its symbols public, and shares its state.
"""

from __future__ import annotations

import ctypes
import logging
import os
import warnings
from pathlib import Path
from typing import Any

from girih import _shim
from girih._errors import GirihError, GirihWarning, UnavailableError
from girih._toolchain import torch_of

log = logging.getLogger("girih")

# What the fallback cannot do, in words for a user.
LOST = (
    "memory statistics (torch.cuda.memory_stats and its kind), memory snapshots and history, "
    "torch.cuda.MemPool, CUDA graphs with pools of their own (torch.compile's reduce-overhead), "
    "CUDA tensors shared between processes, and torch.OutOfMemoryError: a request that fails ends "
    "in a CUDA error"
)

# Setters of torch's CUDAPluggableAllocator, and the functions of _native for them.
_HOOKS = {
    "set_init_fn": "girih_plug_init",
    "set_reset_fn": "girih_plug_reset",
    "set_memory_fraction_fn": "girih_plug_fraction",
    "set_base_alloc_fn": "girih_plug_base",
    "set_record_stream_fn": "girih_plug_record_stream",
}


def install(torch: Any) -> str:
    """Makes Girih the allocator of this process. Gives the door's name: "shim" or "plug"."""
    from girih import _native

    native = ctypes.CDLL(_native.__file__, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    try:
        shim, path = _load_shim(torch, _native.shim_sources())
    except GirihError as error:
        _install_plug(torch, native, str(_native.__file__), reason=str(error))
        return "plug"
    call_install(shim, path)
    log.info("torch %s takes its GPU memory through the shim %s", torch.__version__, path)
    return "shim"


def _load_shim(torch: Any, sources: _shim.Sources) -> tuple[Any, Path]:
    """The shim for this torch, loaded, and its file."""
    built = _shim.get(torch_of(torch), sources)
    try:
        return ctypes.CDLL(str(built.path), mode=os.RTLD_NOW), built.path
    except OSError as error:
        if built.seconds > 0:
            raise GirihError(_does_not_load(error)) from error
        # Damaged, or from another machine with the same home folder; the wheel's: a libstdc++ that
        # is older than any that the wheel is for.
        log.debug("compiling the shim again: %s", error)
    if built.why_compiled is not None:
        _shim.forget(built)
    built = _shim.build(torch_of(torch), sources)
    try:
        return ctypes.CDLL(str(built.path), mode=os.RTLD_NOW), built.path
    except OSError as error:
        raise GirihError(_does_not_load(error)) from error


def _does_not_load(error: OSError) -> str:
    return f"look at the compiler ($CXX): the shim was compiled and does not load: {error}"


def call_install(shim: Any, path: Path) -> None:
    """Has the loaded shim put itself into torch."""
    text = ctypes.create_string_buffer(1024)
    shim.girih_shim_install.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    shim.girih_shim_install.restype = ctypes.c_int
    if shim.girih_shim_install(text, len(text)) != 0:
        reason = text.value.decode(errors="replace") or "it does not say why"
        raise GirihError(f"the shim {path} cannot be installed: {reason}")


def _install_plug(torch: Any, native: Any, library: str, *, reason: str) -> None:
    """Installs Girih as a CUDAPluggableAllocator, with every hook that it has."""
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        library, "girih_plug_alloc", "girih_plug_free"
    )
    for setter, function in _HOOKS.items():
        pointer = ctypes.cast(getattr(native, function), ctypes.c_void_p).value
        set_hook = getattr(allocator.allocator(), setter, None)
        if set_hook is None:
            # Without this hook a tensor that two streams use could be overwritten.
            if setter == "set_record_stream_fn":
                raise UnavailableError(
                    f"torch {torch.__version__} has no {setter}, and without the shim nothing can "
                    f"stand in for it. The shim is not there because {reason}"
                )
            continue
        set_hook(pointer)
    torch.cuda.memory.change_current_allocator(allocator)
    warnings.warn(
        f"Girih runs without its shim: {reason}. It saves memory all the same, but these do not "
        f"work: {LOST}. `python -m girih doctor` says more.",
        GirihWarning,
        stacklevel=4,
    )
