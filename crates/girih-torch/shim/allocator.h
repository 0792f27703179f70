// PyTorch's CUDA allocator, carried out by Girih's heaps.
//
// The class implements c10::cuda::CUDACachingAllocator::CUDAAllocator whole and hands every call to
// girih.h. It holds no memory and decides nothing about memory: what it adds is what only PyTorch
// knows. That is the current device and stream, the pool that a request belongs to, contexts for
// the memory history, the profiler, observers, and exceptions.
//
//   torch ─► GirihAllocator ─► girih.h ─► heap of the device
//               │ allocator.cpp   blocks, and the way they come and go
//               │ state.cpp       statistics, limits, pools, peers, checkpoints
//               │ snapshot.cpp    what is and what was
//               └ history, pools, sources, ipc: their own files
//
// One object, made by install.cpp, that is never destroyed: tensors are freed until the very end of
// the process.
#ifndef GIRIH_SHIM_ALLOCATOR_H
#define GIRIH_SHIM_ALLOCATOR_H

#include "compat.h"
#include "flags.h"
#include "history.h"
#include "ipc.h"
#include "observers.h"
#include "pools.h"
#include "sources.h"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace girih {

// True if the process has callbacks that may free memory (FreeCudaMemoryCallbacksRegistry).
bool has_free_callbacks();

class GirihAllocator final : public torch_cuda::CUDAAllocator {
 public:
  // The object of this process.
  static GirihAllocator& instance();

  // A block of a heap as `allocate` gives it; and true if it still is one. PyTorch puts others in its place: over a
  // block that another process has (CUDA IPC), or that several storages share (copy on write), which are told by their
  // deleters.
  static c10::DataPtr own(void* address, c10::Device device);
  static bool is_own(const c10::DataPtr& data);

  // The stream of the calling thread. The heap is told of one that the program may destroy.
  static cudaStream_t current_stream(c10::DeviceIndex device);

  // ---- blocks: c10::Allocator and CUDAAllocator ----
  c10::DataPtr allocate(size_t size) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* destination, const void* source, std::size_t count) const override;
  void* raw_alloc(size_t size) override;
  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override;
  void raw_delete(void* address) override;
  using torch_cuda::CUDAAllocator::recordStream;
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
  void* getBaseAllocation(void* address, size_t* size) override;
#if GIRIH_TORCH_FROM(2, 13)
  c10::DataPtr allocateWithAddress(size_t size, void* address) override;
#endif

  // ---- life and limits ----
  std::string name() override {
    return "girih";
  }
  void init(int device_count) override;
  bool initialized() override;
  void enable(bool value) override;
  bool isEnabled() const override;
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
#if GIRIH_TORCH_FROM(2, 8)
  void emptyCache(MempoolId_t pool) override {
    empty_cache(to_girih(pool));
  }
#else
  void emptyCache() override {
    empty_cache(kDefaultPool);
  }
#endif
  void cacheInfo(c10::DeviceIndex device, size_t* largest_block) override;

  // ---- statistics ----
  DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;

  // ---- pools and graphs ----
  void beginAllocateToPool(
      c10::DeviceIndex device,
      MempoolId_t pool,
      std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) override;
  void releasePool(c10::DeviceIndex device, MempoolId_t pool) override;
  int getPoolUseCount(c10::DeviceIndex device, MempoolId_t pool) override;
  bool checkPoolLiveAllocations(
      c10::DeviceIndex device,
      MempoolId_t pool,
      const std::unordered_set<void*>& expected) override;
#if GIRIH_TORCH_FROM(2, 13)
  void markCaptureBegin(c10::DeviceIndex device) override {
    scopes_.capture_begins(device);
  }
  void markCaptureEnd(c10::DeviceIndex device) override {
    scopes_.capture_ends(device);
  }
#endif
#if GIRIH_TORCH_FROM(2, 11)
  void createOrIncrefPool(
      c10::DeviceIndex device,
      MempoolId_t pool,
      std::shared_ptr<CUDAAllocator> allocator) override {
    create_pool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(c10::DeviceIndex device, MempoolId_t pool, bool use_on_oom) override {
    set_use_on_oom(device, pool, use_on_oom);
  }
#elif GIRIH_TORCH_FROM(2, 8)
  void createOrIncrefPool(
      c10::DeviceIndex device,
      MempoolId_t pool,
      CUDAAllocator* allocator) override {
    // Whoever makes the pool keeps the allocator alive.
    create_pool(device, pool, PoolSource::Allocator(std::shared_ptr<void>(), allocator));
  }
  void setUseOnOOM(c10::DeviceIndex device, MempoolId_t pool) override {
    set_use_on_oom(device, pool, true);
  }
#else
  void ensureExistsAndIncrefPool(c10::DeviceIndex device, MempoolId_t pool) override {
    create_pool(device, pool, nullptr);
  }
#endif
#if GIRIH_TORCH_FROM(2, 10)
  void setNoSplit(c10::DeviceIndex device, MempoolId_t pool) override;
#endif
  std::shared_ptr<torch_cuda::AllocatorState> getCheckpointState(
      c10::DeviceIndex device,
      MempoolId_t pool) override;
  torch_cuda::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device,
      std::shared_ptr<torch_cuda::AllocatorState> state) override;

  // ---- other devices, other processes ----
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex owner) override;
  cudaError_t memcpyAsync(
      void* destination,
      int destination_device,
      const void* source,
      int source_device,
      size_t count,
      cudaStream_t stream,
      bool p2p_enabled) override;
  torch_cuda::ShareableHandle shareIpcHandle(void* address) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;

  // ---- what is and what was ----
#if GIRIH_TORCH_FROM(2, 11)
  SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) override {
    return take_snapshot(to_girih(pool), include_traces);
  }
  void recordHistory(
      bool enabled,
      CreateContextFn recorder,
      size_t max_entries,
      RecordContext when,
      bool clear,
      const std::vector<std::string>& skip_actions) override;
#elif GIRIH_TORCH_FROM(2, 8)
  SnapshotInfo snapshot(MempoolId_t pool) override {
    return take_snapshot(to_girih(pool), true);
  }
  void recordHistory(
      bool enabled,
      CreateContextFn recorder,
      size_t max_entries,
      RecordContext when,
      bool clear) override {
    history_.record(enabled, recorder, max_entries, when, clear, 0);
  }
#else
  SnapshotInfo snapshot() override {
    return take_snapshot(kDefaultPool, true);
  }
  void recordHistory(
      bool enabled,
      CreateContextFn recorder,
      size_t max_entries,
      RecordContext when) override {
    history_.record(enabled, recorder, max_entries, when, false, 0);
  }
#endif
  bool isHistoryEnabled() override {
    return history_.recording();
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& metadata) override {
    history_.annotate(metadata);
  }
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
    history_.attach(std::move(tracker));
  }
  void attachOutOfMemoryObserver(torch_cuda::OutOfMemoryObserver observer) override {
    oom_observers_.attach(std::move(observer));
  }
#if GIRIH_TORCH_FROM(2, 8)
  void pushCompileContext(std::string& context) override {
    History::push_compile_context(context);
  }
  void popCompileContext() override {
    History::pop_compile_context();
  }
#endif
#if GIRIH_TORCH_FROM(2, 10)
  std::vector<torch_cuda::StreamSegmentSize> getExpandableSegmentSizes(
      c10::DeviceIndex device) override;
  void setUserMetadata(const std::string& metadata) override {
    History::set_user_metadata(metadata);
  }
  std::string getUserMetadata() override {
    return History::user_metadata();
  }
#endif
#if GIRIH_TORCH_FROM(2, 12)
  std::shared_ptr<GatheredContext> getContextForPointer(const void* address) override;
  // Told of requests that were refused before anything was given back for them
  // (throw_on_cudamalloc_oom).
  void attachOomRejectionObserver(torch_cuda::OomRejectionObserver observer) override {
    oom_rejection_observers_.attach(std::move(observer));
  }
#endif
#if GIRIH_TORCH_FROM(2, 14)
  bool supportsUserMetadata() override {
    return true;
  }
  void annotateMemory(const void* address, const std::string& metadata) override;
#endif

 private:
  struct Request {
    c10::DeviceIndex device;
    size_t size;
    cudaStream_t stream;
    girih_pool pool;
  };

  GirihAllocator() = default;

  // allocator.cpp
  static void release(void* address);
  static void release_uncached(void* address);
  static c10::DeviceIndex current_device();
  static void see(const c10::cuda::CUDAStream& stream);
  void* take(c10::DeviceIndex device, size_t size, cudaStream_t stream);
  void* take_watched(Request request, uint32_t flags);
  static girih_status ask(const Request& request, void** address);
  void* after_failure(girih_status status, const Request& request);
  void tell_of_rejection(const Request& request, const girih_oom& oom);
  static bool would_miss(const Request& request);
  girih_status give_back(void* address);
  girih_status give_back_watched(void* address, uint32_t flags);
  static girih_status free_and_report(void* address);

  // state.cpp
  void empty_cache(girih_pool pool);
  void create_pool(c10::DeviceIndex device, MempoolId_t pool, PoolSource::Allocator allocator);
  void set_source(c10::DeviceIndex device, MempoolId_t pool, PoolSource::Allocator allocator);
  void set_use_on_oom(c10::DeviceIndex device, MempoolId_t pool, bool use_on_oom);

  // snapshot.cpp
  SnapshotInfo take_snapshot(girih_pool pool, bool include_traces);
  std::vector<SegmentInfo> segments(c10::DeviceIndex device, girih_pool pool);

  History history_;
  Scopes scopes_;
  IpcCache ipc_;
  Observers<torch_cuda::OutOfMemoryObserver> oom_observers_;
#if GIRIH_TORCH_FROM(2, 12)
  Observers<torch_cuda::OomRejectionObserver> oom_rejection_observers_;
#endif
  std::atomic<int> device_count_{0};
};

} // namespace girih

#endif
