"""`torch.cuda.MemPool`: pools with an allocator of their own, and side streams inside a scope."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from checks.cudart import runtime_path
from checks.registry import MIB, Skip, alone, blank, equal, girih_mode

# The two functions of a pluggable allocator. They count the bytes that are out.
SOURCE = """
#include <atomic>
#include <cstddef>
extern "C" {
int cudaMalloc(void**, size_t);
int cudaFree(void*);
static std::atomic<long long> out{0}, calls{0};
long long bytes_out() { return out; }
long long times_called() { return calls; }
void* take(size_t size, int, void*) {
  void* address = nullptr;
  ++calls;
  if (cudaMalloc(&address, size) != 0) return nullptr;
  out += static_cast<long long>(size);
  return address;
}
void give(void* address, size_t size, int, void*) {
  if (cudaFree(address) == 0) out -= static_cast<long long>(size);
}
}
"""


def counting_allocator(folder: Path) -> Path:
    """The library of `SOURCE`, compiled."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise Skip("there is no C++ compiler")
    source, library = folder / "counting.cpp", folder / "counting.so"
    source.write_text(SOURCE)
    runtime = runtime_path()
    command = [compiler, "-std=c++17", "-shared", "-fPIC", str(source), runtime]
    command += [f"-Wl,-rpath,{Path(runtime).parent}", "-o", str(library)]
    subprocess.run(command, check=True)
    return library


@alone
def mem_pool_own_allocator() -> None:
    """MemPool(allocator.allocator()) takes from it inside, not outside, and gives back to it."""
    with tempfile.TemporaryDirectory() as folder:
        path = counting_allocator(Path(folder))
        counters = ctypes.CDLL(str(path))
        # The library stays loaded when its file has gone.
        allocator = torch.cuda.memory.CUDAPluggableAllocator(str(path), "take", "give")
    counters.bytes_out.restype = counters.times_called.restype = ctypes.c_longlong
    outside = blank(64)
    pool = torch.cuda.MemPool(allocator.allocator())
    equal(counters.bytes_out(), 0, "bytes of the allocator before anything is asked for")
    with torch.cuda.use_mem_pool(pool):
        inside = [torch.full((40 * MIB,), at, dtype=torch.uint8, device="cuda") for at in range(4)]
    held, calls = counters.bytes_out(), counters.times_called()
    assert held >= 160 * MIB, f"the allocator gave {held} bytes"
    outside_too = blank(64).fill_(9)
    equal(counters.times_called(), calls, "calls after what was allocated outside")
    for at, tensor in enumerate(inside):
        equal(tensor.unique().tolist(), [at], "a tensor of the pool")
    inside.clear()
    del tensor
    with torch.cuda.use_mem_pool(pool):
        again = blank(40)
    equal(counters.times_called(), calls, "calls after one that the pool has free")
    equal(outside_too.unique().tolist(), [9], "a tensor outside")
    del again, pool, outside, outside_too
    gc.collect()
    torch.cuda.empty_cache()
    equal(counters.bytes_out(), 0, "bytes of the allocator when the pool is gone")


@alone
def mem_pool_and_a_side_stream() -> None:
    """A use that is recorded inside a pool's scope counts, though the free is inside it too."""
    if girih_mode() in (None, "native", "gmlake"):
        raise Skip("PyTorch takes the scope for a capture, and forgets the use when it ends")
    side, pool = torch.cuda.Stream(), torch.cuda.MemPool()
    main = torch.cuda.current_stream()
    copy = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
    for value in range(1, 11):
        with torch.cuda.use_mem_pool(pool):
            source = torch.full((40 * MIB,), value, dtype=torch.uint8, device="cuda")
            side.wait_stream(main)
            with torch.cuda.stream(side):
                torch.cuda._sleep(20_000_000)
                copy.copy_(source)
            source.record_stream(side)
            del source
        with torch.cuda.use_mem_pool(pool):
            thief = torch.full((40 * MIB,), 100 + value, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        equal(copy.unique().tolist(), [value], "what the side stream read")
        equal(thief.unique().tolist(), [100 + value], "what was allocated afterwards")
        del thief
