// An allocator that a pool may be given, in every release. raw_alloc and raw_delete alone are ever
// called; the rest is there because the class has it, and ends the test.
#ifndef GIRIH_SHIM_TESTS_OWN_ALLOCATOR_H
#define GIRIH_SHIM_TESTS_OWN_ALLOCATOR_H

#include "../compat.h"

#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace testing {

class OwnAllocator final : public girih::torch_cuda::CUDAAllocator {
  using Device = c10::DeviceIndex;
  using Pool = girih::MempoolId_t;
  [[noreturn]] static void unwanted() {
    throw std::logic_error("a pool's allocator was asked for something else than memory");
  }

 public:
  // Runs inside raw_alloc, if there is something.
  std::function<void()> while_asked;
  std::vector<void*> given;
  std::vector<void*> taken;

  void* raw_alloc(size_t size) override {
    if (while_asked != nullptr) {
      while_asked();
    }
    given.push_back(std::aligned_alloc(512, size));
    return given.back();
  }
  void raw_delete(void* address) override {
    taken.push_back(address);
    std::free(address);
  }

  // clang-format off
  c10::DataPtr allocate(size_t) override { unwanted(); }
  void copy_data(void*, const void*, std::size_t) const override { unwanted(); }
  void* raw_alloc_with_stream(size_t, cudaStream_t) override { unwanted(); }
  using girih::torch_cuda::CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr&, c10::cuda::CUDAStream) override { unwanted(); }
  void* getBaseAllocation(void*, size_t*) override { unwanted(); }
  std::string name() override { unwanted(); }
  void init(int) override { unwanted(); }
  bool initialized() override { unwanted(); }
  void enable(bool) override { unwanted(); }
  bool isEnabled() const override { unwanted(); }
  double getMemoryFraction(Device) override { unwanted(); }
  void setMemoryFraction(double, Device) override { unwanted(); }
  void cacheInfo(Device, size_t*) override { unwanted(); }
  girih::DeviceStats getDeviceStats(Device) override { unwanted(); }
  void resetAccumulatedStats(Device) override { unwanted(); }
  void resetPeakStats(Device) override { unwanted(); }
  void beginAllocateToPool(Device, Pool, std::function<bool(cudaStream_t)>) override { unwanted(); }
  void endAllocateToPool(Device, Pool) override { unwanted(); }
  void releasePool(Device, Pool) override { unwanted(); }
  std::shared_ptr<girih::torch_cuda::AllocatorState> getCheckpointState(Device, Pool) override { unwanted(); }
  girih::torch_cuda::CheckpointDelta setCheckpointPoolState(Device, std::shared_ptr<girih::torch_cuda::AllocatorState>) override { unwanted(); }
  void enablePeerAccess(Device, Device) override { unwanted(); }
  cudaError_t memcpyAsync(void*, int, const void*, int, size_t, cudaStream_t, bool) override { unwanted(); }
  girih::torch_cuda::ShareableHandle shareIpcHandle(void*) override { unwanted(); }
  std::shared_ptr<void> getIpcDevPtr(std::string) override { unwanted(); }
  void attachOutOfMemoryObserver(girih::torch_cuda::OutOfMemoryObserver) override { unwanted(); }
  void attachAllocatorTraceTracker(girih::AllocatorTraceTracker) override { unwanted(); }
#if GIRIH_TORCH_FROM(2, 8)
  void emptyCache(Pool) override { unwanted(); }
#else
  void emptyCache() override { unwanted(); }
#endif
#if GIRIH_TORCH_FROM(2, 11)
  girih::SnapshotInfo snapshot(Pool, bool) override { unwanted(); }
  void recordHistory(bool, girih::CreateContextFn, size_t, girih::RecordContext, bool, const std::vector<std::string>&) override { unwanted(); }
#elif GIRIH_TORCH_FROM(2, 8)
  girih::SnapshotInfo snapshot(Pool) override { unwanted(); }
  void recordHistory(bool, girih::CreateContextFn, size_t, girih::RecordContext, bool) override { unwanted(); }
#else
  girih::SnapshotInfo snapshot() override { unwanted(); }
  void recordHistory(bool, girih::CreateContextFn, size_t, girih::RecordContext) override { unwanted(); }
#endif
#if GIRIH_TORCH_FROM(2, 10)
  std::vector<girih::torch_cuda::StreamSegmentSize> getExpandableSegmentSizes(Device) override { unwanted(); }
#endif
#if GIRIH_TORCH_FROM(2, 12)
  void attachOomRejectionObserver(girih::torch_cuda::OomRejectionObserver) override { unwanted(); }
#endif
  // clang-format on
};

} // namespace testing

#endif
