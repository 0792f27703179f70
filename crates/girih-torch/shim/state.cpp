// Statistics, limits, pools, checkpoints, and other devices. See allocator.h.
#include "allocator.h"

#include "error.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <iterator>
#include <limits>

namespace girih {

namespace {

#if GIRIH_TORCH_FROM(2, 7)
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
#else
using c10::CachingDeviceAllocator::Stat;
using c10::CachingDeviceAllocator::StatArray;
#endif

Stat to_stat(const girih_stat& from) {
  Stat stat;
  stat.current = from.current;
  stat.peak = from.peak;
  stat.allocated = from.allocated;
  stat.freed = from.freed;
  return stat;
}

StatArray to_stats(const girih_stat (&from)[3]) {
  StatArray stats;
  std::transform(std::begin(from), std::end(from), stats.begin(), to_stat);
  return stats;
}

#if GIRIH_TORCH_FROM(2, 13)
// Called with the heap locked, out of which no exception may come: then a pool is left out.
void add_pool(void* user, girih_pool pool, const girih_stat reserved[3]) noexcept {
  StatArray stats;
  std::transform(reserved, reserved + 3, stats.begin(), to_stat);
  try {
    static_cast<DeviceStats*>(user)->reserved_bytes_by_private_pools[to_torch(pool)] = stats;
  } catch (const std::bad_alloc&) {
  }
}
#endif

// What getCheckpointState gives out.
struct CheckpointState final : torch_cuda::AllocatorState {
  explicit CheckpointState(girih_checkpoint* taken) : checkpoint(taken) {}
  CheckpointState(const CheckpointState&) = delete;
  CheckpointState& operator=(const CheckpointState&) = delete;
  ~CheckpointState() override {
    girih_checkpoint_drop(checkpoint);
  }
  girih_checkpoint* checkpoint;
};

// The addresses that a restore speaks of.
struct RestoredAddresses {
  std::vector<void*> freed;
  std::vector<void*> allocated;
};

void add_freed(void* user, void* address) noexcept {
  static_cast<RestoredAddresses*>(user)->freed.push_back(address);
}

void add_allocated(void* user, void* address) noexcept {
  static_cast<RestoredAddresses*>(user)->allocated.push_back(address);
}

} // namespace

// ---- life and limits ----

void GirihAllocator::init(int device_count) {
  check(girih_init(device_count));
  device_count_ = device_count;
  if (has_free_callbacks()) {
    set_flag(kFreeCallbacks, true);
  }
#if GIRIH_TORCH_FROM(2, 10)
  const double fraction = torch_cuda::CUDAAllocatorConfig::per_process_memory_fraction();
  if (fraction < 1.0) {
    for (int device = 0; device < device_count; ++device) {
      check(girih_set_memory_fraction(device, fraction));
    }
  }
#endif
}

bool GirihAllocator::initialized() {
  return girih_is_initialized();
}

void GirihAllocator::enable(bool value) {
  set_flag(kUncached, !value);
}

bool GirihAllocator::isEnabled() const {
  return (flags() & kUncached) == 0;
}

double GirihAllocator::getMemoryFraction(c10::DeviceIndex device) {
  double fraction = 1.0;
  check(girih_memory_fraction(device, &fraction));
  return fraction;
}

void GirihAllocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  TORCH_CHECK(
      0 <= fraction && fraction <= 1,
      "invalid fraction: ", fraction, ". A process may hold from 0 to 1 of a device's memory.");
  check(girih_set_memory_fraction(device, fraction));
}

void GirihAllocator::empty_cache(girih_pool pool) {
  // Also called by destructors of pools, which may outlive the driver.
  if ((flags() & kExiting) != 0) {
    return;
  }
  History::Call call(history_, RecordContext::ALL);
  check(girih_empty_cache(pool));
  call.rethrow();
}

void GirihAllocator::cacheInfo(c10::DeviceIndex device, size_t* largest_block) {
  uint64_t largest = 0;
  check(girih_largest_free(device, &largest));
  *largest_block = std::max<size_t>(*largest_block, largest);
}

// ---- statistics ----

DeviceStats GirihAllocator::getDeviceStats(c10::DeviceIndex device) {
  girih_stats from{};
  check(girih_get_stats(device, &from));
  DeviceStats stats;
  stats.allocation = to_stats(from.allocation);
  stats.segment = to_stats(from.segment);
  stats.active = to_stats(from.active);
  stats.inactive_split = to_stats(from.inactive_split);
  stats.allocated_bytes = to_stats(from.allocated_bytes);
  stats.reserved_bytes = to_stats(from.reserved_bytes);
  stats.active_bytes = to_stats(from.active_bytes);
  stats.inactive_split_bytes = to_stats(from.inactive_split_bytes);
  stats.requested_bytes = to_stats(from.requested_bytes);
  stats.oversize_allocations = to_stat(from.oversize_allocations);
  stats.oversize_segments = to_stat(from.oversize_segments);
  stats.num_alloc_retries = from.num_alloc_retries;
  stats.num_ooms = from.num_ooms;
  stats.num_sync_all_streams = from.num_sync_all_streams;
  stats.num_device_alloc = from.num_device_alloc;
  stats.num_device_free = from.num_device_free;
#if GIRIH_TORCH_FROM(2, 12)
  stats.num_oom_rejections = from.num_oom_rejections;
#endif
#if GIRIH_TORCH_FROM(2, 13)
  check(girih_visit_pools(device, &add_pool, &stats));
#endif
  stats.max_split_size = from.max_split_size;
  return stats;
}

void GirihAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  check(girih_reset_accumulated_stats(device));
}

void GirihAllocator::resetPeakStats(c10::DeviceIndex device) {
  check(girih_reset_peak_stats(device));
}

// ---- pools and graphs ----

void GirihAllocator::beginAllocateToPool(
    c10::DeviceIndex device,
    MempoolId_t pool,
    std::function<bool(cudaStream_t)> filter) {
  scopes_.begin(device, to_girih(pool), std::move(filter));
#if !GIRIH_TORCH_FROM(2, 8)
  // Before 2.8 a pool's own allocator is not handed to createOrIncrefPool; the pool is asked.
  auto* active = c10::cuda::MemPoolContext::getActiveMemPool();
  if (active != nullptr && active->id() == pool) {
    // Whoever made the pool keeps its allocator alive.
    set_source(device, pool, {std::shared_ptr<void>(), active->allocator()});
  }
#endif
}

void GirihAllocator::endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) {
  scopes_.end(device, to_girih(pool));
}

void GirihAllocator::releasePool(c10::DeviceIndex device, MempoolId_t pool) {
  if ((flags() & kExiting) == 0) {
    check(girih_pool_release(device, to_girih(pool)));
  }
}

int GirihAllocator::getPoolUseCount(c10::DeviceIndex device, MempoolId_t pool) {
  int32_t count = 0;
  check(girih_pool_use_count(device, to_girih(pool), &count));
  return count;
}

void GirihAllocator::create_pool(
    c10::DeviceIndex device,
    MempoolId_t pool,
    PoolSource::Allocator allocator) {
  check(girih_pool_create(device, to_girih(pool)));
  set_source(device, pool, std::move(allocator));
}

// The pool's own allocator, if it has one.
void GirihAllocator::set_source(
    c10::DeviceIndex device,
    MempoolId_t pool,
    PoolSource::Allocator allocator) {
  if (allocator != nullptr && allocator.get() != this) {
    PoolSource::attach(device, to_girih(pool), std::move(allocator));
  }
}

void GirihAllocator::set_use_on_oom(c10::DeviceIndex device, MempoolId_t pool, bool use_on_oom) {
  if ((flags() & kExiting) == 0) {
    check(girih_pool_use_on_oom(device, to_girih(pool), use_on_oom));
  }
}

#if GIRIH_TORCH_FROM(2, 10)
void GirihAllocator::setNoSplit(c10::DeviceIndex device, MempoolId_t pool) {
  check(girih_pool_no_split(device, to_girih(pool)));
}
#endif

std::shared_ptr<torch_cuda::AllocatorState> GirihAllocator::getCheckpointState(
    c10::DeviceIndex device,
    MempoolId_t pool) {
  girih_checkpoint* checkpoint = nullptr;
  check(girih_checkpoint_take(device, to_girih(pool), &checkpoint));
  return std::make_shared<CheckpointState>(checkpoint);
}

torch_cuda::CheckpointDelta GirihAllocator::setCheckpointPoolState(
    c10::DeviceIndex device,
    std::shared_ptr<torch_cuda::AllocatorState> state) {
  const auto* taken = dynamic_cast<const CheckpointState*>(state.get());
  TORCH_CHECK(
      taken != nullptr,
      "setCheckpointPoolState: the state was not taken by Girih, so it cannot be brought back");
  History::Call call(history_, RecordContext::STATE);
  RestoredAddresses restored;
  check(girih_checkpoint_restore(
      device, taken->checkpoint, &add_freed, &add_allocated, &restored));
  torch_cuda::CheckpointDelta delta;
  delta.ptrs_freed = std::move(restored.freed);
  for (void* address : restored.allocated) {
    delta.dataptrs_allocd.emplace_back(
        address, address, &release, c10::Device(c10::DeviceType::CUDA, device));
  }
  call.rethrow();
  return delta;
}

// ---- other devices, other processes ----

// `device` gets access to the memory of `owner`: through the CUDA runtime for what cudaMalloc gave,
// and in the heap for what is mapped.
void GirihAllocator::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex owner) {
  const c10::cuda::CUDAGuard guard(device);
  const cudaError_t error = cudaDeviceEnablePeerAccess(owner, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
  } else {
    C10_CUDA_CHECK(error);
  }
  check(girih_enable_peer(owner, device));
}

// Mapped memory of another device can be copied with cudaMemcpyAsync only if there is peer access.
cudaError_t GirihAllocator::memcpyAsync(
    void* destination,
    int destination_device,
    const void* source,
    int source_device,
    size_t count,
    cudaStream_t stream,
    bool p2p_enabled) {
  if (p2p_enabled || source_device == destination_device) {
    return cudaMemcpyAsync(destination, source, count, cudaMemcpyDeviceToDevice, stream);
  }
  return cudaMemcpyPeerAsync(
      destination, destination_device, source, source_device, count, stream);
}

torch_cuda::ShareableHandle GirihAllocator::shareIpcHandle(void* address) {
  // From now on there may be memory that the others are done with.
  set_flag(kFreeCallbacks, true);
  return IpcCache::share(address);
}

std::shared_ptr<void> GirihAllocator::getIpcDevPtr(std::string handle) {
  return ipc_.open(current_device(), handle);
}

} // namespace girih
