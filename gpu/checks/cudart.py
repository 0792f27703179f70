"""CUDA's runtime library as torch has it loaded, for calls that torch does not make itself."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from checks.registry import Skip, equal

# cudaStreamCaptureMode.
THREAD_LOCAL, RELAXED = 1, 2


def runtime_path() -> str:
    """The file of the runtime library in this process."""
    torch.cuda.init()
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if "libcudart.so" in line}
    if not paths:
        raise Skip("the CUDA runtime is not loaded as a library of its own")
    return min(paths)


def call(name: str, *arguments: object) -> None:
    """Calls a function of the runtime, which must succeed."""
    found = getattr(ctypes.CDLL(runtime_path()), name)(*arguments)
    equal(found, 0, f"the result of {name}")


def create_stream() -> int:
    """The handle of a new stream that torch does not know."""
    handle = ctypes.c_void_p()
    # cudaStreamNonBlocking: it does not wait for the legacy default stream.
    call("cudaStreamCreateWithFlags", ctypes.byref(handle), ctypes.c_uint(1))
    assert handle.value is not None
    return handle.value


def destroy_stream(handle: int) -> None:
    """Ends a stream that `create_stream` gave."""
    call("cudaStreamDestroy", ctypes.c_void_p(handle))


def begin_capture(stream: torch.cuda.Stream, mode: int) -> None:
    """Starts a capture that torch is not told of."""
    call("cudaStreamBeginCapture", ctypes.c_void_p(stream.cuda_stream), ctypes.c_int(mode))


def end_capture(stream: torch.cuda.Stream) -> None:
    """Ends it, and throws the graph away."""
    graph = ctypes.c_void_p()
    call("cudaStreamEndCapture", ctypes.c_void_p(stream.cuda_stream), ctypes.byref(graph))
    assert graph.value is not None, "the capture gave no graph"
    call("cudaGraphDestroy", graph)
