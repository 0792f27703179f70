// Blocks: how they come, go, and fail to come. See allocator.h.
//
// The usual request finds no flag set and nobody watching: then it costs the current device, the
// current stream and one call into the heap, and its free one call. No lock of the shim's is taken.
#include "allocator.h"

#include "error.h"
#include "profiler.h"
#include "sources.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <thread>

namespace girih {

namespace {

// No device has this much; a request for it is a size that has overflowed.
constexpr size_t kOneExbibyte = size_t{1} << 60;

// True if somebody listens to allocations who is not a flag of ours: the profiler of this thread,
// or Python's hooks of the CUDA sanitizer.
bool is_watched() {
  return c10::memoryProfilingEnabled() || c10::impl::GPUTrace::get_trace() != nullptr;
}

void trace_allocation(void* address) {
  if (const auto* interpreter = c10::impl::GPUTrace::get_trace()) {
    (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
  }
}

// Memory that the cache does not know, for as long as the program has switched it off.
void* take_uncached(size_t size) {
  void* address = nullptr;
  C10_CUDA_CHECK(cudaMalloc(&address, size));
  trace_allocation(address);
  return address;
}

void trace_deallocation(void* address) {
  if (const auto* interpreter = c10::impl::GPUTrace::get_trace()) {
    (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
  }
}

// Lets other parts of the process give back what they hold of ours, such as tensors that another
// process is done with.
void run_free_callbacks() {
  for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
    c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
  }
}

// For frees from destructors, which must not throw.
void warn_of_lost_block(void* address, const std::string& reason) noexcept {
  try {
    TORCH_WARN_ONCE(
        "Girih could not take back the block at ", address, ": ", reason,
        " (Its memory is lost to this process. This warning is given once.)");
  } catch (...) {
    // A warning that a filter turned into an error: there is no one to throw it to.
  }
}

void warn_of_tracker(void* address, const std::string& reason) noexcept {
  try {
    TORCH_WARN_ONCE(
        "A tracker of CUDA memory threw while the block at ", address, " was freed: ", reason,
        " (The block is free. This warning is given once.)");
  } catch (...) {
    // As above.
  }
}

} // namespace

// CUDA IPC's callback is always there, and has nothing to give back in a process that shares no memory.
bool has_free_callbacks() {
  const auto names = c10::FreeCudaMemoryCallbacksRegistry()->Keys();
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name != "cuda_ipc_collect";
  });
}

c10::DeviceIndex GirihAllocator::current_device() {
  c10::DeviceIndex device = 0;
  const cudaError_t error = c10::cuda::GetDevice(&device);
  // The check is a call even when nothing is wrong, and this is the hot path.
  if (C10_UNLIKELY(error != cudaSuccess)) {
    C10_CUDA_CHECK(error);
  }
  return device;
}

cudaStream_t GirihAllocator::current_stream(c10::DeviceIndex device) {
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
  see(stream);
  return stream.stream();
}

void GirihAllocator::see(const c10::cuda::CUDAStream& stream) {
  // torch's own streams live as long as the process. A stream that came from outside has its handle for an
  // id; whoever made it may destroy it.
  const auto handle = to_girih(stream.stream());
  if (C10_UNLIKELY(handle != 0 && static_cast<uint64_t>(stream.id()) == handle)) {
    check(girih_see_stream(stream.device_index(), handle));
  }
}

// ---- blocks come ----

c10::DataPtr GirihAllocator::allocate(size_t size) {
  const c10::DeviceIndex device = current_device();
  const c10::Device where(c10::DeviceType::CUDA, device);
  if (C10_UNLIKELY(size == 0)) {
    return {nullptr, nullptr, raw_deleter(), where};
  }
  if (C10_UNLIKELY((flags() & kUncached) != 0)) {
    void* address = take_uncached(size);
    return {address, address, &release_uncached, where};
  }
  return own(take(device, size, current_stream(device)), where);
}

c10::DataPtr GirihAllocator::own(void* address, c10::Device device) {
  return {address, address, &release, device};
}

bool GirihAllocator::is_own(const c10::DataPtr& data) {
  return data.get_deleter() == &release && data.get_context() == data.get();
}

void* GirihAllocator::raw_alloc(size_t size) {
  if (size == 0) {
    return nullptr;
  }
  if (C10_UNLIKELY((flags() & kUncached) != 0)) {
    return take_uncached(size);
  }
  const c10::DeviceIndex device = current_device();
  return take(device, size, current_stream(device));
}

void* GirihAllocator::raw_alloc_with_stream(size_t size, cudaStream_t stream) {
  if (size == 0) {
    return nullptr;
  }
  if (C10_UNLIKELY((flags() & kUncached) != 0)) {
    return take_uncached(size);
  }
  // Nobody says whose stream it is.
  const c10::DeviceIndex device = current_device();
  if (stream != nullptr) {
    check(girih_see_stream(device, to_girih(stream)));
  }
  return take(device, size, stream);
}

#if GIRIH_TORCH_FROM(2, 13)
c10::DataPtr GirihAllocator::allocateWithAddress(size_t size, void* address) {
  TORCH_CHECK(
      false,
      "Girih cannot allocate ", size, " bytes at the address ", address,
      " that was asked for: it decides itself where a block goes. Run without Girih where this is "
      "needed.");
}
#endif

void* GirihAllocator::take(c10::DeviceIndex device, size_t size, cudaStream_t stream) {
  const uint32_t flags_now = flags();
  const Request request{device, size, stream, kDefaultPool};
  if (C10_UNLIKELY(flags_now != 0 || size >= kOneExbibyte || is_watched())) {
    return take_watched(request, flags_now);
  }
  void* address = nullptr;
  const girih_status status = girih_alloc(device, size, to_girih(stream), kDefaultPool, &address);
  if (C10_UNLIKELY(status != GIRIH_OK)) {
    return after_failure(status, request);
  }
  return address;
}

void* GirihAllocator::take_watched(Request request, uint32_t flags_now) {
  if (request.size >= kOneExbibyte) {
    throw_out_of_memory("CUDA out of memory. Tried to allocate more than 1EB memory.");
  }
  TORCH_CHECK(
      !PoolSource::is_running(),
      "The allocator of a torch.cuda.MemPool asked for memory of PyTorch's while it was asked for "
      "memory itself. Let it take what it needs from CUDA.");
  PoolSource::forget();
  if ((flags_now & kSources) != 0) {
    PoolSource::catch_up();
  }
  if ((flags_now & kScopes) != 0) {
    request.pool = scopes_.pool_for(request.device, request.stream);
  }
  // With no lock held: they free blocks of ours.
  if ((flags_now & kFreeCallbacks) != 0 && would_miss(request)) {
    run_free_callbacks();
  }
  std::optional<History::Call> call;
  if ((flags_now & kHistory) != 0) {
    call.emplace(history_, RecordContext::STATE);
  }
  void* address = nullptr;
  const girih_status status = ask(request, &address);
  if (C10_UNLIKELY(status != GIRIH_OK)) {
    address = after_failure(status, request);
  }
  if (call.has_value() && call->failed()) {
    girih_free(address);
    call->rethrow();
  }
  trace_allocation(address);
  return address;
}

// True if a request will make the heap take memory of the device. With a heap that cannot tell, each
// one may.
bool GirihAllocator::would_miss(const Request& request) {
  bool has_room = false;
  const girih_status status = girih_has_room(
      request.device, request.size, to_girih(request.stream), request.pool, &has_room);
  return status != GIRIH_OK || !has_room;
}

// One try, which the profiler is told of.
girih_status GirihAllocator::ask(const Request& request, void** address) {
  std::optional<ProfiledCall> profiled;
  if (c10::memoryProfilingEnabled()) {
    profiled.emplace(request.device);
  }
  const girih_status status =
      girih_alloc(request.device, request.size, to_girih(request.stream), request.pool, address);
  if (profiled.has_value() && status == GIRIH_OK) {
    profiled->report(*address);
  }
  return status;
}

// Tells those who want to know, and throws.
void* GirihAllocator::after_failure(girih_status status, const Request& request) {
  std::string text = girih_last_error();
  if (status == GIRIH_OUT_OF_MEMORY && (flags() & kFreeCallbacks) == 0 && has_free_callbacks()) {
    // They came with a library that was loaded after CUDA had started.
    set_flag(kFreeCallbacks, true);
    run_free_callbacks();
    void* address = nullptr;
    status = ask(request, &address);
    if (status == GIRIH_OK) {
      return address;
    }
    text = girih_last_error();
  }
  if (status != GIRIH_OUT_OF_MEMORY) {
    throw_failure(text);
  }
  PoolSource::rethrow();
  girih_oom oom{};
  girih_last_oom(&oom);
  if (oom.is_rejection) {
    tell_of_rejection(request, oom);
    throw_out_of_memory(text);
  }
  c10::reportOutOfMemoryToProfiler(
      static_cast<int64_t>(request.size),
      oom.allocated,
      oom.reserved,
      c10::Device(c10::DeviceType::CUDA, request.device));
  // The declaration calls the second argument `allocated` and the third `device_total`. PyTorch's own
  // allocator gives what it wanted of the device, and what it may hold, and observers have come to
  // expect that.
  oom_observers_.call(
      int64_t{request.device},
      static_cast<size_t>(oom.needed),
      static_cast<size_t>(oom.limit),
      static_cast<size_t>(oom.device_free));
  throw_out_of_memory(text);
}

// On a thread of its own, as PyTorch does: the observer may take its time, or ask for memory.
void GirihAllocator::tell_of_rejection(const Request& request, const girih_oom& oom) {
#if GIRIH_TORCH_FROM(2, 12)
  if (oom_rejection_observers_.empty()) {
    return;
  }
  std::thread([this, request, oom] {
    try {
      oom_rejection_observers_.call(
          int64_t{request.device},
          static_cast<size_t>(oom.needed),
          static_cast<size_t>(oom.reserved),
          static_cast<size_t>(oom.device_total));
    } catch (const std::exception& error) {
      TORCH_WARN("An observer of rejected CUDA allocations threw: ", error.what());
    }
  }).detach();
#else
  (void)request;
  (void)oom;
#endif
}

// ---- blocks go ----

c10::DeleterFnPtr GirihAllocator::raw_deleter() const {
  return (flags() & kUncached) != 0 ? &release_uncached : &release;
}

void GirihAllocator::raw_delete(void* address) {
  if (address == nullptr || (flags() & kExiting) != 0) {
    return;
  }
  // While the cache is off, what no heap has given is taken for memory of cudaMalloc, as in PyTorch.
  int32_t device = 0;
  if (C10_UNLIKELY((flags() & kUncached) != 0) &&
      girih_device_of(address, &device) == GIRIH_UNKNOWN) {
    release_uncached(address);
    return;
  }
  const girih_status status = instance().give_back(address);
  TORCH_CHECK(status != GIRIH_UNKNOWN, "invalid device pointer: ", address);
  check(status);
}

// The deleter of every DataPtr that a heap gave. It runs in destructors, at any time: a failure is
// a warning, and at the end of the process nothing is done at all, for the driver may be gone.
void GirihAllocator::release(void* address) {
  if (address == nullptr || (flags() & kExiting) != 0) {
    return;
  }
  try {
    if (C10_UNLIKELY(instance().give_back(address) != GIRIH_OK)) {
      warn_of_lost_block(address, girih_last_error());
    }
  } catch (const std::exception& error) {
    warn_of_tracker(address, error.what());
  } catch (...) {
    warn_of_tracker(address, "not a std::exception");
  }
}

void GirihAllocator::release_uncached(void* address) {
  if (address == nullptr || (flags() & kExiting) != 0) {
    return;
  }
  trace_deallocation(address);
  if (cudaFree(address) != cudaSuccess) {
    // Taken, so that the next check of the program does not find it.
    (void)cudaGetLastError();
  }
}

girih_status GirihAllocator::give_back(void* address) {
  const uint32_t flags_now = flags();
  if (C10_UNLIKELY((flags_now & (kHistory | kSources)) != 0 || is_watched())) {
    return give_back_watched(address, flags_now);
  }
  return girih_free(address);
}

girih_status GirihAllocator::give_back_watched(void* address, uint32_t flags_now) {
  if ((flags_now & kSources) != 0) {
    if (PoolSource::is_running()) {
      PoolSource::put_off(address);
      return GIRIH_OK;
    }
    PoolSource::catch_up();
  }
  std::optional<History::Call> call;
  if ((flags_now & kHistory) != 0) {
    try {
      call.emplace(history_, RecordContext::ALL);
    } catch (const std::exception&) {
      // A block is freed even if nobody can say where from.
    }
  }
  trace_deallocation(address);
  const girih_status status = free_and_report(address);
  if ((flags_now & kHistory) != 0) {
    history_.settle();
  }
  if (call.has_value()) {
    call->rethrow();
  }
  return status;
}

girih_status GirihAllocator::free_and_report(void* address) {
  int32_t device = 0;
  if (!c10::memoryProfilingEnabled() || girih_device_of(address, &device) != GIRIH_OK) {
    return girih_free(address);
  }
  ProfiledCall profiled(static_cast<c10::DeviceIndex>(device));
  const girih_status status = girih_free(address);
  if (status == GIRIH_OK) {
    profiled.report(address);
  }
  return status;
}

// ---- what is done with blocks ----

void GirihAllocator::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  // An empty tensor has no block. Memory of another process, or of no cache, has another deleter
  // and is not ours to keep.
  if (data.get() == nullptr || data.get_deleter() != &release) {
    return;
  }
  see(stream);
  const girih_status status =
      girih_record_stream(data.get(), stream.device_index(), to_girih(stream.stream()));
  if (status != GIRIH_UNKNOWN) {
    check(status);
  }
}

void GirihAllocator::copy_data(void* destination, const void* source, std::size_t count) const {
  C10_CUDA_CHECK(cudaMemcpy(destination, source, count, cudaMemcpyDeviceToDevice));
}

void* GirihAllocator::getBaseAllocation(void* address, size_t* size) {
  void* base = nullptr;
  uint64_t bytes = 0;
  const girih_status status = girih_base(address, &base, &bytes);
  TORCH_CHECK(status != GIRIH_UNKNOWN, "invalid device pointer: ", address);
  check(status);
  if (size != nullptr) {
    *size = bytes;
  }
  return base;
}

} // namespace girih
