// What the driver's calls cost that make a block of chunks (GMLake, Table 1 and Fig. 6): reserve addresses, create, map, set
// access, and the way back; beside them cuMemAlloc and cudaMalloc of the whole block. Takes rounds, then pairs of MiB: the block
// and the chunk. Prints one JSON object a line: microseconds of the host for all calls of a kind that the block needs, the
// median of the rounds. The driver is loaded at run time, so nothing is linked.
//
//   g++ -O2 -std=c++17 -I$CUDA/include -o calls gpu/facts/calls.cpp -ldl && ./calls 9 2048 2 2048 128 2048 1024
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace {

#define TEXT_OF(word) #word
// The header may mean a later version of a call than its plain name.
#define TEXT(word) TEXT_OF(word)
#define CALL(name) const auto p_##name = reinterpret_cast<decltype(&name)>(symbol(TEXT(name)))

void* driver = nullptr;

void* symbol(const char* name) {
  void* found = dlsym(driver, name);
  if (found == nullptr) {
    std::fprintf(stderr, "use a newer driver: this one has no %s\n", name);
    std::exit(1);
  }
  return found;
}

void must(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    std::fprintf(stderr, "%s returned %d\n", what, static_cast<int>(result));
    std::exit(1);
  }
}
#define MUST(call) must((call), #call)

// Microseconds that the work takes on the host.
template <class Work>
double timed(Work&& work) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

using Rounds = std::map<std::string, std::vector<double>>;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print(size_t block, size_t chunk, const Rounds& rounds) {
  std::printf("{\"block\": %zu, \"chunk\": %zu, \"us\": {", block, chunk);
  const char* between = "";
  for (const auto& [name, values] : rounds) {
    std::printf("%s\"%s\": %.2f", between, name.c_str(), median(values));
    between = ", ";
  }
  std::printf("}}\n");
  std::fflush(stdout);
}

// The CUDA runtime's malloc and free, where a runtime can be found: cudaMalloc is what PyTorch calls.
struct Runtime {
  int (*allocate)(void**, size_t) = nullptr;
  int (*release)(void*) = nullptr;

  Runtime() {
    for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so"}) {
      if (void* library = dlopen(name, RTLD_NOW)) {
        allocate = reinterpret_cast<int (*)(void**, size_t)>(dlsym(library, "cudaMalloc"));
        release = reinterpret_cast<int (*)(void*)>(dlsym(library, "cudaFree"));
        return;
      }
    }
  }
};

} // namespace

int main(int count, char** words) {
  if (count < 4 || count % 2 != 0) {
    std::fprintf(stderr, "give rounds, then pairs of MiB, block and chunk: calls 9 2048 2\n");
    return 2;
  }
  driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) {
    std::fprintf(stderr, "run on a machine with an NVIDIA GPU: %s\n", dlerror());
    return 1;
  }
  CALL(cuInit);
  CALL(cuDeviceGet);
  CALL(cuDevicePrimaryCtxRetain);
  CALL(cuCtxSetCurrent);
  CALL(cuMemAlloc);
  CALL(cuMemFree);
  CALL(cuMemAddressReserve);
  CALL(cuMemAddressFree);
  CALL(cuMemCreate);
  CALL(cuMemRelease);
  CALL(cuMemMap);
  CALL(cuMemSetAccess);
  CALL(cuMemUnmap);

  MUST(p_cuInit(0));
  CUdevice device;
  CUcontext context;
  MUST(p_cuDeviceGet(&device, 0));
  MUST(p_cuDevicePrimaryCtxRetain(&context, device));
  MUST(p_cuCtxSetCurrent(context));
  Runtime runtime;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = 0;
  CUmemAccessDesc access{};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

  const int rounds = std::max(1, std::atoi(words[1]));
  std::map<size_t, bool> seen;
  for (int word = 2; word + 1 < count; word += 2) {
    const size_t block = std::strtoull(words[word], nullptr, 10) << 20;
    const size_t chunk = std::strtoull(words[word + 1], nullptr, 10) << 20;
    if (block == 0 || chunk == 0 || block % chunk != 0) {
      std::fprintf(stderr, "give a chunk that divides its block: %s and %s MiB\n", words[word + 1], words[word]);
      return 2;
    }
    if (!seen[block]) {
      seen[block] = true;
      Rounds whole;
      // The first round of all warms the driver up, and is not counted.
      for (int round = -1; round < rounds; ++round) {
        CUdeviceptr address = 0;
        const double taken = timed([&] { MUST(p_cuMemAlloc(&address, block)); });
        const double given = timed([&] { MUST(p_cuMemFree(address)); });
        void* pointer = nullptr;
        double malloc_us = 0, free_us = 0;
        if (runtime.allocate != nullptr && runtime.release != nullptr) {
          int failed = 0;
          malloc_us = timed([&] { failed = runtime.allocate(&pointer, block); });
          if (failed != 0) {
            // A runtime that is newer than the driver: as if there were none.
            runtime.allocate = nullptr;
            malloc_us = 0;
          } else {
            free_us = timed([&] { failed = runtime.release(pointer); });
            must(static_cast<CUresult>(failed), "cudaFree");
          }
        }
        if (round < 0) {
          continue;
        }
        whole["cuMemAlloc"].push_back(taken);
        whole["cuMemFree"].push_back(given);
        if (malloc_us > 0) {
          whole["cudaMalloc"].push_back(malloc_us);
          whole["cudaFree"].push_back(free_us);
        }
      }
      print(block, 0, whole);
    }

    const size_t chunks = block / chunk;
    std::vector<CUmemGenericAllocationHandle> handles(chunks);
    Rounds parts;
    for (int round = -1; round < rounds; ++round) {
      std::map<std::string, double> us;
      CUdeviceptr base = 0;
      const auto map = [&] {
        for (size_t k = 0; k < chunks; ++k) {
          MUST(p_cuMemMap(base + k * chunk, chunk, 0, handles[k], 0));
        }
      };
      us["reserve"] = timed([&] { MUST(p_cuMemAddressReserve(&base, block, 0, 0, 0)); });
      us["create"] = timed([&] {
        for (auto& handle : handles) {
          MUST(p_cuMemCreate(&handle, chunk, &prop, 0));
        }
      });
      us["map"] = timed(map);
      us["set_access"] = timed([&] {
        for (size_t k = 0; k < chunks; ++k) {
          MUST(p_cuMemSetAccess(base + k * chunk, chunk, &access, 1));
        }
      });
      us["unmap"] = timed([&] {
        for (size_t k = 0; k < chunks; ++k) {
          MUST(p_cuMemUnmap(base + k * chunk, chunk));
        }
      });
      // The same once more, with one call over the whole range each.
      map();
      us["set_access_at_once"] = timed([&] { MUST(p_cuMemSetAccess(base, block, &access, 1)); });
      us["unmap_at_once"] = timed([&] { MUST(p_cuMemUnmap(base, block)); });
      us["release"] = timed([&] {
        for (const auto handle : handles) {
          MUST(p_cuMemRelease(handle));
        }
      });
      us["unreserve"] = timed([&] { MUST(p_cuMemAddressFree(base, block)); });
      if (round >= 0) {
        for (const auto& [name, value] : us) {
          parts[name].push_back(value);
        }
      }
    }
    print(block, chunk, parts);
  }
  return 0;
}
