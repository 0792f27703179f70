// What differs from one torch release to the next, under one name each.
//
// PyTorch's interface of a CUDA allocator has changed in almost every release since 2.6: virtual
// functions came, went and got parameters, and types moved between namespaces. The other files ask
// GIRIH_TORCH_FROM(major, minor) where a function's very signature differs, and use the names below
// for everything else. A release that is newer than any known here is treated as the newest known.
#ifndef GIRIH_SHIM_COMPAT_H
#define GIRIH_SHIM_COMPAT_H

#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/csrc/api/include/torch/version.h>
#endif

// True if the headers are those of torch `major`.`minor` or later.
#define GIRIH_TORCH_FROM(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||    \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if !GIRIH_TORCH_FROM(2, 6)
#error "Girih needs torch 2.6 or later"
#endif

// Before 2.10 the header of the settings warns about expandable segments unless this is set, as it
// is in every build of torch for Linux.
#if !GIRIH_TORCH_FROM(2, 10) && !defined(PYTORCH_C10_DRIVER_API_SUPPORTED)
#define PYTORCH_C10_DRIVER_API_SUPPORTED 1
#endif

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>
#include <girih.h>

#include <memory>
#include <string>
#include <utility>

namespace girih {

namespace torch_cuda = c10::cuda::CUDACachingAllocator;

using c10::GatheredContext;
using c10::cuda::MempoolId_t;
using c10::CachingDeviceAllocator::DeviceStats;
using torch_cuda::AllocatorConfigInfo;
using torch_cuda::AllocatorTraceTracker;
using torch_cuda::BlockInfo;
using torch_cuda::CreateContextFn;
using torch_cuda::RecordContext;
using torch_cuda::SegmentInfo;
using torch_cuda::SnapshotInfo;
using torch_cuda::TraceEntry;
#if GIRIH_TORCH_FROM(2, 11)
using c10::CachingDeviceAllocator::AnnotationEntry;
#else
using torch_cuda::AnnotationEntry;
#endif

// The pool that a CUDAAllocator without a pool argument means.
inline constexpr girih_pool kDefaultPool{0, 0};

inline girih_pool to_girih(const MempoolId_t& id) {
  return girih_pool{id.first, id.second};
}

inline MempoolId_t to_torch(const girih_pool& pool) {
  return MempoolId_t{pool.first, pool.second};
}

inline bool operator==(const girih_pool& left, const girih_pool& right) {
  return left.first == right.first && left.second == right.second;
}

inline bool operator!=(const girih_pool& left, const girih_pool& right) {
  return !(left == right);
}

inline uint64_t to_girih(cudaStream_t stream) {
  return reinterpret_cast<uintptr_t>(stream);
}

inline cudaStream_t to_stream(uint64_t stream) {
  return reinterpret_cast<cudaStream_t>(static_cast<uintptr_t>(stream));
}

// Everything that a trace entry may carry in any release. 2.6 and 2.7 know neither pool nor compile
// context; user metadata came with 2.10.
struct EntryFields {
  TraceEntry::Action action;
  c10::DeviceIndex device;
  uint64_t address;
  uint64_t size;
  cudaStream_t stream;
  girih_pool pool;
  std::shared_ptr<GatheredContext> context;
  std::string compile_context;
  std::string user_metadata;
};

// The entry of this release, with the present time.
inline TraceEntry make_entry(EntryFields fields) {
  return TraceEntry(
      fields.action,
      fields.device,
      fields.address,
      fields.size,
      fields.stream,
#if GIRIH_TORCH_FROM(2, 8)
      to_torch(fields.pool),
#endif
      c10::getApproximateTime(),
      std::move(fields.context)
#if GIRIH_TORCH_FROM(2, 8)
          ,
      std::move(fields.compile_context)
#endif
#if GIRIH_TORCH_FROM(2, 10)
          ,
      std::move(fields.user_metadata)
#endif
  );
}

} // namespace girih

#endif
