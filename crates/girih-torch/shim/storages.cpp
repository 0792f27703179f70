// Taking the bytes out of a storage, and putting others in.
//
// A saved tensor's bytes go to the host while its storage stays: a c10::StorageImpl without data, to which all views of
// it still lead. Girih calls these functions for storages alone that nobody has but tensors that autograd keeps. They
// touch neither Python nor reference counts: raw pointers to objects that somebody keeps alive.
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

uint64_t of_tensor(uint64_t tensor, uint64_t* size) {
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

uint64_t owners(uint64_t storage) {
  return c10::raw::intrusive_ptr::use_count(storage_at(storage));
}

uint64_t address(uint64_t storage) {
  return reinterpret_cast<uintptr_t>(storage_at(storage)->data());
}

uint64_t take(uint64_t storage) {
  c10::StorageImpl* found = storage_at(storage);
  // The device stays: a storage without bytes is still one of the GPU.
  c10::DataPtr bytes = found->set_data_ptr(c10::DataPtr(nullptr, found->device()));
  void* address = bytes.get();
  // Girih frees them.
  bytes.release_context();
  return reinterpret_cast<uintptr_t>(address);
}

void give(uint64_t storage, uint64_t address) {
  c10::StorageImpl* found = storage_at(storage);
  void* bytes = reinterpret_cast<void*>(static_cast<uintptr_t>(address));
  found->set_data_ptr_noswap(c10::DataPtr(
      bytes, bytes, GirihAllocator::instance().raw_deleter(), found->device()));
}

} // namespace

void lend_storages() {
  girih_set_storages(&of_tensor, &owners, &address, &take, &give);
}

} // namespace girih
