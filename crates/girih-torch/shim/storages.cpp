// Taking the bytes out of a storage, and putting others in.
//
// A saved tensor's bytes go to the host while its storage stays: a c10::StorageImpl without data, to which all views of
// it still lead. Girih calls these functions for storages alone that nobody has but tensors that autograd keeps. They
// touch neither Python nor reference counts: raw pointers to objects that somebody keeps alive. Rust calls them, through
// which no exception may go.
#include "storages.h"

#include "allocator.h"

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace girih {

namespace {

c10::StorageImpl* storage_at(uint64_t storage) {
  return reinterpret_cast<c10::StorageImpl*>(static_cast<uintptr_t>(storage));
}

uint64_t of_tensor(uint64_t tensor, uint64_t* size) noexcept {
  const auto* found = reinterpret_cast<const c10::TensorImpl*>(static_cast<uintptr_t>(tensor));
  try {
    if (!found->has_storage() || !found->unsafe_storage()) {
      return 0;
    }
    *size = found->unsafe_storage().nbytes();
    return reinterpret_cast<uintptr_t>(found->unsafe_storage().unsafeGetStorageImpl());
  } catch (...) {
    // A tensor that is traced has a size that is no number.
    return 0;
  }
}

#if GIRIH_TORCH_FROM(2, 10)
// True if a storage has an object of Python, and nobody in Python has that: `untyped_storage()` made it once. Since 2.10
// it lives as long as the storage does, each an owner of the other, so that its count of references is 1 then.
//
// The count is read where every CPython with a GIL has it, as its stable ABI wants: in the first word, whose lower half is
// enough. No function is called for it: PyTorch's waits for the GIL, and whoever has that may wait for the heap.
bool has_idle_object(c10::StorageImpl* storage) {
  const void* object = storage->pyobj_slot()->load_pyobj();
  return object != nullptr && __atomic_load_n(static_cast<const uint32_t*>(object), __ATOMIC_ACQUIRE) == 1;
}
#endif

uint64_t owners(uint64_t storage) noexcept {
  c10::StorageImpl* found = storage_at(storage);
  const uint64_t all = c10::raw::intrusive_ptr::use_count(found);
#if GIRIH_TORCH_FROM(2, 10)
  if (all > 1 && has_idle_object(found)) {
    return all - 1;
  }
#endif
  return all;
}

uint64_t address(uint64_t storage) noexcept {
  try {
    const c10::DataPtr& bytes = storage_at(storage)->data_ptr();
    return GirihAllocator::is_own(bytes) ? reinterpret_cast<uintptr_t>(bytes.get()) : 0;
  } catch (...) {
    // A storage that was forbidden to tell, as those of CUDA graph trees are between runs.
    return 0;
  }
}

uint64_t take(uint64_t storage) noexcept {
  c10::StorageImpl* found = storage_at(storage);
  // The device stays: a storage without bytes is still one of the GPU.
  c10::DataPtr bytes = found->set_data_ptr(c10::DataPtr(nullptr, found->device()));
  void* address = bytes.get();
  // Girih frees them.
  bytes.release_context();
  return reinterpret_cast<uintptr_t>(address);
}

void give(uint64_t storage, uint64_t address) noexcept {
  c10::StorageImpl* found = storage_at(storage);
  void* bytes = reinterpret_cast<void*>(static_cast<uintptr_t>(address));
  found->set_data_ptr_noswap(GirihAllocator::own(bytes, found->device()));
}

} // namespace

void lend_storages() {
  girih_set_storages(&of_tensor, &owners, &address, &take, &give);
}

} // namespace girih
