// One word that says what an allocation has to look after.
//
// Nearly always the answer is nothing, and then an allocation costs one relaxed load here before it
// goes to the heap. Whatever is optional sets its bit while it is wanted: memory history and
// trackers, open pool scopes, the switched-off cache, callbacks that free memory, the end of the process.
#ifndef GIRIH_SHIM_FLAGS_H
#define GIRIH_SHIM_FLAGS_H

#include <atomic>
#include <cstdint>

namespace girih {

enum Flag : uint32_t {
  // Some scope of a pool is open: requests ask for their pool.
  kScopes = 1,
  // The events of the heaps are listened to: requests bring their context.
  kHistory = 2,
  // torch.cuda.caching_allocator_enable(False): requests go to cudaMalloc.
  kUncached = 4,
  // The process is at its end: what is freed is left to the driver.
  kExiting = 8,
  // Somebody may give memory back before the heap takes more: a request that would make it do so runs
  // the callbacks first.
  kFreeCallbacks = 16,
  // An allocator of a pool runs on some thread, or blocks wait to be freed after it.
  kSources = 32,
};

inline std::atomic<uint32_t> g_flags{0};

inline uint32_t flags() {
  return g_flags.load(std::memory_order_relaxed);
}

inline void set_flag(Flag flag, bool value) {
  if (value) {
    g_flags.fetch_or(flag, std::memory_order_release);
  } else {
    g_flags.fetch_and(~static_cast<uint32_t>(flag), std::memory_order_release);
  }
}

} // namespace girih

#endif
