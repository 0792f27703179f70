// Pools with an allocator of their own: torch.cuda.MemPool(allocator).
//
// The heap shares out and counts the memory of such a pool as that of any other, and asks the pool's
// allocator for segments where it would ask the device:
//
//   allocate ─► girih_alloc ─► heap, locked ─► PoolSource::alloc ─► CUDAAllocator::raw_alloc
//   empty_cache, out of memory ─► heap, locked ─► PoolSource::free ─► CUDAAllocator::raw_delete
//
// PyTorch calls these allocators under its lock too, but that lock may be taken twice by one thread,
// and the heap's may not. An allocator that runs Python may free tensors, by the garbage collector:
// such frees are put off until the heap is free again. It must not ask for memory of PyTorch's.
#ifndef GIRIH_SHIM_SOURCES_H
#define GIRIH_SHIM_SOURCES_H

#include "compat.h"

#include <memory>

namespace girih {

class PoolSource {
 public:
  using Allocator = std::shared_ptr<torch_cuda::CUDAAllocator>;

  // The pool takes its memory from `allocator` from now on. Before its first request; again with the
  // same allocator it does nothing.
  static void attach(c10::DeviceIndex device, girih_pool pool, Allocator allocator);

  // True while an allocator of a pool runs on this thread: the heap is locked.
  static bool is_running();
  // Frees a block as soon as no allocator of a pool runs.
  static void put_off(void* address);
  // Frees what was put off. Not while an allocator of a pool runs on this thread.
  static void catch_up();

  // What an allocator throws cannot pass through the heap, to which it is memory that there is none of.
  // forget() is for the beginning of a request, rethrow() for its failure.
  static void forget();
  static void rethrow();

 private:
  explicit PoolSource(Allocator allocator) : allocator_(std::move(allocator)) {}

  static PoolSource* of(Allocator allocator);
  static void* alloc(void* user, uint64_t size) noexcept;
  static void free(void* user, void* address) noexcept;

  Allocator allocator_;
};

} // namespace girih

#endif
