// What torch.profiler(profile_memory=True) is told of an allocation or a free.
//
// The profiler wants the bytes granted, which girih_alloc does not return. They are the change of
// the bytes allocated over the call. Threads that are profiled take turns, so that one does not see
// the other's; a thread that is not profiled may still get in between.
#ifndef GIRIH_SHIM_PROFILER_H
#define GIRIH_SHIM_PROFILER_H

#include "compat.h"

#include <mutex>

namespace girih {

class ProfiledCall {
 public:
  // Before the call into the heap of `device`.
  explicit ProfiledCall(c10::DeviceIndex device)
      : turn_(turns()), device_(device), allocated_before_(allocated(read())) {}

  // After it: reports the block at `address` as come or gone.
  void report(void* address) {
    const girih_stats now = read();
    turn_.unlock();
    c10::reportMemoryUsageToProfiler(
        address,
        allocated(now) - allocated_before_,
        static_cast<size_t>(allocated(now)),
        static_cast<size_t>(now.reserved_bytes[0].current),
        c10::Device(c10::DeviceType::CUDA, device_));
  }

 private:
  static std::mutex& turns() {
    // Never destroyed: blocks are freed until the process has ended.
    static auto* mutex = new std::mutex();
    return *mutex;
  }

  girih_stats read() const {
    girih_stats stats{};
    // If it fails the call that is measured fails too, and says why.
    girih_get_stats(device_, &stats);
    return stats;
  }

  static int64_t allocated(const girih_stats& stats) {
    return stats.allocated_bytes[0].current;
  }

  std::unique_lock<std::mutex> turn_;
  c10::DeviceIndex device_;
  int64_t allocated_before_;
};

} // namespace girih

#endif
