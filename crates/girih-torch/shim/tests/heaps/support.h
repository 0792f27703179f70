// What the tests over Girih's heaps share. These heaps lie on simulated devices of 1 GiB each, whose
// addresses nothing may be read from or written to.
#ifndef GIRIH_SHIM_TESTS_HEAPS_SUPPORT_H
#define GIRIH_SHIM_TESTS_HEAPS_SUPPORT_H

#include "../../compat.h"
#include "../program.h"
#include "../testing.h"

#include <c10/core/Device.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace heaps {

using girih::MempoolId_t;
using girih::RecordContext;
using girih::SegmentInfo;
using girih::SnapshotInfo;
using girih::TraceEntry;
using girih::torch_cuda::get;
using testing::empty_cache;

inline constexpr size_t kMiB = size_t{1} << 20;
inline constexpr size_t kCapacity = size_t{1} << 30;

// The mode that the heaps run in, as run_tests was told.
std::string& mode();

inline uint64_t number(const void* address) {
  return reinterpret_cast<uintptr_t>(address);
}

inline cudaStream_t stream(uint64_t handle) {
  return girih::to_stream(handle);
}

// Statistics of both pools together.
inline int64_t allocated(int device = 0) {
  return get()->getDeviceStats(static_cast<c10::DeviceIndex>(device)).allocated_bytes[0].current;
}
inline int64_t active(int device = 0) {
  return get()->getDeviceStats(static_cast<c10::DeviceIndex>(device)).active_bytes[0].current;
}
inline int64_t reserved(int device = 0) {
  return get()->getDeviceStats(static_cast<c10::DeviceIndex>(device)).reserved_bytes[0].current;
}

inline void create_pool(MempoolId_t pool) {
#if GIRIH_TORCH_FROM(2, 8)
  get()->createOrIncrefPool(0, pool, nullptr);
#else
  get()->ensureExistsAndIncrefPool(0, pool);
#endif
}

// Sends all requests of device 0 to a pool, for as long as it lives.
class Scope {
 public:
  explicit Scope(MempoolId_t pool) : pool_(pool) {
    get()->beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  }
  ~Scope() {
    get()->endAllocateToPool(0, pool_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  MempoolId_t pool_;
};

// A context, told from others by its number.
struct Frame : girih::GatheredContext {
  explicit Frame(int frame_number) : number(frame_number) {}
  int number;
};

// Starts the history of all entries, whose contexts are Frames.
void record(RecordContext when, size_t max_entries = 10000);

// The number of a context, or 0 if there is none.
inline int frame(const std::shared_ptr<girih::GatheredContext>& context) {
  return context == nullptr ? 0 : static_cast<const Frame&>(*context).number;
}

// The entries of device 0 about `address`, in order.
std::vector<TraceEntry> entries_of(uint64_t address);

// Fails unless the blocks of each segment tile it and its sums are theirs.
void check_tiling(const SnapshotInfo& snapshot);

} // namespace heaps

#endif
