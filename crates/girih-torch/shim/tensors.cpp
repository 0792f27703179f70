// Looking at a tensor without Python.
//
// A hook is called for each tensor that autograd saves, most of which are too small to be worth anything. Asked in
// Python, what decides that costs more than all else: a look-up and an object for each question. Here it is one call.
// It includes nothing of CUDA, so that it can be tried where there is none.
#include "tensors.h"

#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>

namespace girih {

namespace {

c10::TensorImpl* tensor_at(uint64_t tensor) {
  return reinterpret_cast<c10::TensorImpl*>(static_cast<uintptr_t>(tensor));
}

// Behind these is more than a storage: a wrapper's, or a batch that a transform of functions sees as one row.
const c10::DispatchKeySet kNotPlain({
    c10::DispatchKey::Python,
    c10::DispatchKey::FuncTorchBatched,
    c10::DispatchKey::FuncTorchGradWrapper,
    c10::DispatchKey::Functionalize,
});

bool look(uint64_t tensor, girih_tensor* seen) {
  c10::TensorImpl* found = tensor_at(tensor);
  try {
    if (found->layout() != c10::kStrided || !found->has_storage() || !found->unsafe_storage() ||
        found->is_inference() || found->key_set().has_any(kNotPlain)) {
      return false;
    }
    const c10::Storage& storage = found->unsafe_storage();
    seen->storage = reinterpret_cast<uintptr_t>(storage.unsafeGetStorageImpl());
    seen->size = storage.nbytes();
    seen->address = reinterpret_cast<uintptr_t>(storage.data());
    seen->version = found->version_counter().current_version();
    seen->device = found->is_cuda() ? found->device().index() : -1;
    seen->element_size = static_cast<uint32_t>(found->itemsize());
    seen->may_have_graph = found->requires_grad();
    const c10::IntArrayRef sizes = found->sizes();
    seen->dimensions = static_cast<uint32_t>(sizes.size());
    std::copy_n(sizes.begin(), std::min<size_t>(sizes.size(), GIRIH_SHAPE_MAX), seen->shape);
    return true;
  } catch (...) {
    // A tensor that is traced has sizes that are no numbers.
    return false;
  }
}

int64_t version(uint64_t tensor) {
  try {
    return tensor_at(tensor)->version_counter().current_version();
  } catch (...) {
    // One of inference has none, and is no tensor that was saved.
    return -1;
  }
}

void share_version(uint64_t tensor, uint64_t of) {
  tensor_at(tensor)->set_version_counter(tensor_at(of)->version_counter());
}

} // namespace

void lend_tensors(girih_current_stream current_stream) {
  girih_set_tensors(&look, &version, &share_version, current_stream);
}

} // namespace girih
