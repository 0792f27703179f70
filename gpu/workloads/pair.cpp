// Allocations and their frees as torch's operators make them: through c10's interface, with whatever
// allocator is in place. gpu/pair.py calls these functions.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>

namespace {

using Clock = std::chrono::steady_clock;

double nanoseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

void allocate_and_free(size_t bytes, size_t pairs) {
  c10::Allocator* allocator = c10::cuda::CUDACachingAllocator::get();
  for (size_t i = 0; i < pairs; ++i) {
    c10::DataPtr block = allocator->allocate(bytes);
  }
}

}  // namespace

// Nanoseconds that one pair takes, `pairs` of one size in a row.
extern "C" double one_size(size_t bytes, size_t pairs) {
  allocate_and_free(bytes, 1);
  const auto start = Clock::now();
  allocate_and_free(bytes, pairs);
  return nanoseconds_since(start) / static_cast<double>(pairs);
}

// Nanoseconds that `count` events take. A positive one is a request of so many bytes, which goes to
// the next slot, the first one to slot 1; a negative one frees the slot of its absolute value.
extern "C" double replay(const int64_t* events, size_t count, size_t requests) {
  c10::Allocator* allocator = c10::cuda::CUDACachingAllocator::get();
  std::vector<c10::DataPtr> slots(requests + 1);
  size_t next = 1;
  const auto start = Clock::now();
  for (size_t i = 0; i < count; ++i) {
    if (events[i] > 0) {
      slots[next++] = allocator->allocate(static_cast<size_t>(events[i]));
    } else {
      slots[static_cast<size_t>(-events[i])].clear();
    }
  }
  return nanoseconds_since(start);
}

// Nanoseconds of wall time for one pair in each of `threads` threads at once. What a thread's first
// call of CUDA costs is not part of it.
extern "C" double in_threads(size_t bytes, size_t pairs, size_t threads) {
  std::atomic<size_t> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> running;
  for (size_t i = 0; i < threads; ++i) {
    running.emplace_back([&] {
      allocate_and_free(bytes, 1);
      ++ready;
      while (!go) std::this_thread::yield();
      allocate_and_free(bytes, pairs);
    });
  }
  while (ready < threads) std::this_thread::yield();
  const auto start = Clock::now();
  go = true;
  for (auto& thread : running) thread.join();
  return nanoseconds_since(start) / static_cast<double>(pairs);
}
