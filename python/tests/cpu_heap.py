"""A CPU in the place of the GPU: torch's own tensors in Girih's heap, whose bytes do go.

The memory of the simulated device is only addresses. Here there are bytes behind them, torch's
allocator for the CPU is the heap, and `tensors.cpp` and `storages.cpp` of the shim look at tensors
and take bytes out of storages, as on a GPU. What is taken out is kept aside and written over where
it was: so is what is freed. Who reads a tensor that is away finds none, and who reads its old bytes
finds no numbers.

    python cpu_heap.py FOLDER GPU auto NAME ...

runs the programs of `GPU/checks/kinds_*.py` with these names in a mode, and prints a line of JSON
for each: what it learnt where nothing goes, and with so much of the memory taken by another that it
has SHARE of what it needs. Everything is done at once: that copies and kernels come in the right
order is not seen here.
"""

import ctypes
import gc
import json
import random
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

MIB = 1 << 20
BUDGET = 256 * MIB
# What swapping leaves free of it: `room` in crates/girih-torch/src/swap/settings.rs.
ROOM = BUDGET - BUDGET // 100 - 32 * MIB
SHARE = 0.6

# In the place of the shim's header, which needs CUDA's.
ALLOCATOR = r"""
#pragma once
#include "girih.h"
#include <c10/core/Allocator.h>
#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/csrc/api/include/torch/version.h>
#endif
#define GIRIH_TORCH_FROM(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||    \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))
namespace girih {
struct GirihAllocator final : c10::Allocator {
  static GirihAllocator& instance();
  c10::DataPtr allocate(size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, size_t count) const override;
};
}
"""

HEAP = r"""
#include "storages.cpp"
#include "tensors.cpp"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>
#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace girih {
namespace {

// Where the simulated device has its addresses.
constexpr uintptr_t kPlaces[][2] = {{0x1000000000, 1ull << 38}, {0x400000000000, 1ull << 44}};
// No number in any type of floating point.
constexpr int kPoison = 0xff;
// What is larger is given back to the system, for an address may never come again.
constexpr size_t kPoisonMost = 64 << 20;

std::mutex mutex;
std::unordered_map<uintptr_t, size_t> sizes;
std::unordered_map<uint64_t, std::vector<char>> away;
std::atomic<uint64_t> in_use, peak, taken, given;
c10::Allocator* before;
pid_t process;

bool is_ours(uintptr_t address) {
  for (const auto& place : kPlaces) {
    if (address >= place[0] && address - place[0] < place[1]) {
      return true;
    }
  }
  return false;
}

// Of the heap's bytes; whoever calls frees them.
size_t forget(uintptr_t address) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = sizes.find(address);
  const size_t size = found->second;
  sizes.erase(found);
  in_use -= size;
  return size;
}

void note(uintptr_t address, size_t size) {
  const std::lock_guard<std::mutex> lock(mutex);
  sizes[address] = size;
  in_use += size;
  peak = std::max(peak.load(), in_use.load());
}

void spoil(void* address, size_t size) {
  if (size <= kPoisonMost) {
    std::memset(address, kPoison, size);
  } else {
    const uintptr_t from = (reinterpret_cast<uintptr_t>(address) + 4095) & ~uintptr_t{4095};
    madvise(reinterpret_cast<void*>(from), size - 4096, MADV_DONTNEED);
  }
}

void delete_bytes(void* address) {
  if (address == nullptr || getpid() != process) {
    return;
  }
  spoil(address, forget(reinterpret_cast<uintptr_t>(address)));
  girih_free(address);
}

bool look_here(uint64_t tensor, girih_tensor* seen) {
  if (!look(tensor, seen)) {
    return false;
  }
  const bool is_away = seen->address == 0 && seen->size > 0;
  const bool may_be_ours = is_away && tensor_at(tensor)->device().is_cpu();
  seen->device = is_ours(seen->address) || may_be_ours ? 0 : -1;
  return true;
}

uint64_t take_here(uint64_t storage) {
  const uint64_t at = take(storage);
  const size_t size = forget(at);
  char* bytes = reinterpret_cast<char*>(at);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    away[storage].assign(bytes, bytes + size);
  }
  spoil(bytes, size);
  ++taken;
  return at;
}

void give_here(uint64_t storage, uint64_t address) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    const std::vector<char>& bytes = away.at(storage);
    std::memcpy(reinterpret_cast<char*>(address), bytes.data(), bytes.size());
  }
  note(address, storage_at(storage)->nbytes());
  {
    const std::lock_guard<std::mutex> lock(mutex);
    away.erase(storage);
  }
  give(storage, address);
  ++given;
}

uint64_t no_stream(int32_t) {
  return 0;
}

} // namespace

GirihAllocator& GirihAllocator::instance() {
  static auto* const one = new GirihAllocator();
  return *one;
}

c10::DataPtr GirihAllocator::allocate(size_t size) {
  if (size == 0 || getpid() != process) {
    return size == 0 ? c10::DataPtr(nullptr, nullptr, &c10::detail::deleteNothing, c10::kCPU)
                     : before->allocate(size);
  }
  void* address = nullptr;
  const girih_status status = girih_alloc(0, size, 0, girih_pool{0, 0}, &address);
  if (status == GIRIH_OUT_OF_MEMORY) {
    C10_THROW_ERROR(OutOfMemoryError, girih_last_error());
  }
  TORCH_CHECK(status == GIRIH_OK, girih_last_error());
  TORCH_CHECK(is_ours(reinterpret_cast<uintptr_t>(address)), "there are no bytes at ", address);
  note(reinterpret_cast<uintptr_t>(address), size);
  return {address, address, &delete_bytes, c10::kCPU};
}

c10::DeleterFnPtr GirihAllocator::raw_deleter() const {
  return &delete_bytes;
}

void GirihAllocator::copy_data(void* to, const void* from, size_t count) const {
  default_copy_data(to, from, count);
}

} // namespace girih

#define SHOWN extern "C" __attribute__((visibility("default")))

SHOWN bool set_up() {
  using namespace girih;
  process = getpid();
  for (const auto& place : kPlaces) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    void* wanted = reinterpret_cast<void*>(place[0]);
    if (mmap(wanted, place[1], PROT_READ | PROT_WRITE, flags, -1, 0) != wanted) {
      return false;
    }
  }
  girih_set_storages(&of_tensor, &owners, &address, &take_here, &give_here);
  girih_set_tensors(&look_here, &version, &share_version, &no_stream);
  before = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&GirihAllocator::instance(), 255);
  return true;
}

SHOWN uint64_t bytes_in_use() { return girih::in_use; }
SHOWN uint64_t bytes_peak(bool reset) {
  const uint64_t found = girih::peak;
  if (reset) { girih::peak = girih::in_use.load(); }
  return found;
}
SHOWN uint64_t times_taken() { return girih::taken; }
"""


def compile_heap(folder):
    """The library, compiled against this torch."""
    import torch

    from girih import _native, _toolchain

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in _native.shim_sources():
        if name in ("girih.h", "storages.h", "storages.cpp", "tensors.h", "tensors.cpp"):
            (folder / name).write_text(text)
    (folder / "allocator.h").write_text(ALLOCATOR)
    (folder / "heap.cpp").write_text(HEAP)
    here = _toolchain.torch_of(torch)
    libraries = here.folder / "lib"
    flags = [*_toolchain.compile_flags(here, [folder]), "-shared", f"-L{libraries}", "-lc10"]
    library = folder / "heap.so"
    subprocess.run(
        [
            *_toolchain.find_compiler().command,
            *(str(folder / "heap.cpp"), "-o", str(library)),
            *flags,
            f"-Wl,-rpath,{libraries}",
        ],
        check=True,
    )
    return library


class _Pool(ctypes.Structure):
    _fields_ = (("first", ctypes.c_uint64), ("second", ctypes.c_uint64))


class Heap:
    """The heap that all tensors of this process come from, from now on."""

    def __init__(self, library, *, mode="auto", capacity=1 << 34, **options):
        from girih import _native, _settings

        options |= {"sim": {"capacity": capacity}}
        self.settings = _settings.make(mode, plan_dir=False, options=options)
        import torch

        self.torch, self.native = torch, _native
        version = str(torch.__version__).partition("+")[0]
        _native.configure(self.settings.for_heaps(key="", torch=version))
        # The library's girih_* are the extension's.
        symbols = ctypes.CDLL(_native.__file__, mode=ctypes.RTLD_GLOBAL)
        assert symbols.girih_init(1) == 0
        self.library = ctypes.CDLL(str(library))
        for name in ("bytes_in_use", "bytes_peak", "times_taken"):
            getattr(self.library, name).restype = ctypes.c_uint64
        assert self.library.set_up(), "the addresses of the simulated device are taken"
        self._symbols = symbols
        symbols.girih_empty_cache.argtypes = [_Pool]
        self.capacity = capacity

    def swap(self):
        """From now on saved tensors and states of optimizers may go."""
        from girih import _process

        self.watch = _process._set_hooks(self.settings)

    def give_back(self):
        """What is free goes back to the device."""
        assert self._symbols.girih_empty_cache(_Pool(0, 0)) == 0

    @property
    def in_use(self):
        return self.library.bytes_in_use()

    def peak(self, reset=False):
        return self.library.bytes_peak(reset)

    @property
    def taken(self):
        return self.library.times_taken()

    def stats(self):
        return json.loads(self.native.report(0))


def run(heap, program):
    """What came of a program, the most bytes that it had, those that are left, and its error."""
    from checks.kinds_common import Notes

    heap.torch.manual_seed(7)
    random.seed(7)
    gc.collect()
    before, taken, note, error = heap.in_use, heap.taken, Notes(), None
    heap.peak(reset=True)
    try:
        program(note)
    except Exception:
        error = traceback.format_exc()
    peak = heap.peak() - before
    gc.collect()
    return {
        "digests": note.digests,
        "peak": peak,
        "left": heap.in_use - before,
        "taken": heap.taken - taken,
        "error": error,
    }


def main(folder, gpu, mode, *names):
    """Runs the programs of these names, each in both ways."""
    sys.path.insert(0, gpu)
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    library = compile_heap(Path(folder))
    heap = Heap(library, mode=mode, gpu_budget=BUDGET, host_budget=4 * BUDGET)
    from checks import kinds_models, kinds_runs, kinds_ways

    known = {it.__name__: it for of in (kinds_models, kinds_ways, kinds_runs) for it in of.PROGRAMS}
    plain = {name: run(heap, known[name]) for name in names}
    heap.swap()
    for name in names:
        heap.give_back()
        free = ROOM - heap.in_use - int(SHARE * plain[name]["peak"])
        others = torch.empty(max(1, free), dtype=torch.uint8)
        found = run(heap, known[name])
        del others
        print(json.dumps([name, plain[name], found, heap.stats()["swap"]]), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
