// The doors of the shared object: what Python calls after it has loaded it.
//
// Installing puts the allocator where PyTorch looks for one. There are two such places: the CUDA
// code's own, and the registry by device type, which torch.accelerator asks. It must happen before
// CUDA starts, for a block is freed by whoever gave it and statistics do not move over.
#include "allocator.h"

#include "settings.h"
#include "storages.h"
#include "tensors.h"

#include <c10/cuda/CUDAStream.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

namespace girih {

GirihAllocator& GirihAllocator::instance() {
  // Never destroyed: tensors that live in static variables are freed after all destructors.
  static auto* allocator = new GirihAllocator();
  return *allocator;
}

namespace {

// Empty if the allocator may be installed now, and the reason why not otherwise.
std::string objection() {
  if (girih_abi() != GIRIH_ABI) {
    return "the shim was compiled for version " + std::to_string(GIRIH_ABI) +
        " of Girih's C interface, and the library that is loaded has version " +
        std::to_string(girih_abi()) + "; delete the cached shim, so that it is compiled again";
  }
  torch_cuda::CUDAAllocator* current = torch_cuda::allocator.load();
  if (current == nullptr) {
    return "torch has no CUDA allocator to replace; is this a build of torch with CUDA?";
  }
  if (current->initialized()) {
    return "CUDA has been started already, with the allocator \"" + current->name() +
        "\": what it has given out cannot be taken over. Enable Girih before the first use of "
        "CUDA, best right after `import torch`";
  }
  return "";
}

// Rust calls it, through which no exception may go.
uint64_t current_stream(int32_t device) noexcept {
  const auto index = static_cast<c10::DeviceIndex>(device);
  try {
    return to_girih(GirihAllocator::current_stream(index));
  } catch (...) {
    // A stream that the heap could not look at. What is done on it says so itself.
    return to_girih(c10::cuda::getCurrentCUDAStream(index).stream());
  }
}

void note_exit() {
  set_flag(kExiting, true);
}

void install() {
  GirihAllocator& allocator = GirihAllocator::instance();
  // As in PyTorch, any other value leaves the cache on.
  const char* without_cache = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
  if (without_cache != nullptr && std::strcmp(without_cache, "1") == 0) {
    allocator.enable(false);
  }
  std::atexit(&note_exit);
  follow_settings();
  lend_storages();
  lend_tensors(&current_stream);
  torch_cuda::allocator.store(&allocator);
  // 1 is above the priority of torch's own, which is there already.
  c10::SetAllocator(c10::DeviceType::CUDA, &allocator, 1);
}

} // namespace
} // namespace girih

#define GIRIH_STRING_OF(text) #text
#define GIRIH_STRING(value) GIRIH_STRING_OF(value)

extern "C" {

// "major.minor.patch" of the torch whose headers the shim was compiled with.
__attribute__((visibility("default"))) const char* girih_shim_torch_version() {
  return GIRIH_STRING(TORCH_VERSION_MAJOR) "." GIRIH_STRING(TORCH_VERSION_MINOR) "." GIRIH_STRING(
      TORCH_VERSION_PATCH);
}

// Makes Girih PyTorch's CUDA allocator. Returns 0 if it is, now or already, and 1 otherwise; then
// the reason is in `error`, cut off at `error_bytes` bytes with the closing zero.
__attribute__((visibility("default"))) int girih_shim_install(char* error, size_t error_bytes) {
  std::string reason;
  try {
    if (girih::torch_cuda::allocator.load() == &girih::GirihAllocator::instance()) {
      return 0;
    }
    reason = girih::objection();
    if (reason.empty()) {
      girih::install();
      return 0;
    }
  } catch (const std::exception& failure) {
    reason = failure.what();
  } catch (...) {
    reason = "an unknown exception was thrown";
  }
  if (error != nullptr && error_bytes > 0) {
    std::snprintf(error, error_bytes, "%s", reason.c_str());
  }
  return 1;
}

} // extern "C"
