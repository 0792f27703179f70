// Turns the statuses of girih.h into PyTorch's exceptions.
#ifndef GIRIH_SHIM_ERROR_H
#define GIRIH_SHIM_ERROR_H

#include "compat.h"

#include <c10/cuda/CUDAException.h>

#include <cstdlib>
#include <string>

namespace girih {

// Throws c10::OutOfMemoryError (torch.OutOfMemoryError) with `text`. Programs look for the words
// "CUDA out of memory" in it, so they are put in front where they are missing.
[[noreturn]] inline void throw_out_of_memory(const std::string& text) {
  const bool named = text.find("CUDA out of memory") != std::string::npos;
  C10_THROW_ERROR(OutOfMemoryError, named ? text : "CUDA out of memory. " + text);
}

// The number of an error in the driver's words, "CUDA_ERROR_ASSERT (710), ..."; 0 if there is none.
inline int driver_error_in(const std::string& text) {
  const size_t name = text.find("CUDA_ERROR");
  const size_t number = name == std::string::npos ? name : text.find('(', name);
  return number == std::string::npos ? 0 : std::atoi(text.c_str() + number + 1);
}

// True of the errors after which a process cannot use the device any more: a kernel failed, or the device.
// The runtime has the same numbers for them.
inline bool is_lasting(int error) {
  return error == cudaErrorECCUncorrectable || error == cudaErrorIllegalAddress ||
      error == cudaErrorLaunchTimeout || error == cudaErrorAssert ||
      (error >= cudaErrorHardwareStackError && error <= cudaErrorLaunchFailure);
}

// Throws what went wrong for another reason than memory. A kernel that failed before is told as whatever
// call of CUDA meets it in PyTorch would tell it (torch.AcceleratorError, with the number).
[[noreturn]] inline void throw_failure(const std::string& text) {
  const int error = driver_error_in(text);
  if (is_lasting(error)) {
    C10_CUDA_CHECK(static_cast<cudaError_t>(error));
  }
  C10_THROW_ERROR(Error, text);
}

// Returns if `status` is GIRIH_OK, and throws the text of girih_last_error otherwise:
// c10::OutOfMemoryError if memory was short, c10::Error for everything else.
inline void check(girih_status status) {
  if (C10_LIKELY(status == GIRIH_OK)) {
    return;
  }
  const std::string text = girih_last_error();
  if (status == GIRIH_OUT_OF_MEMORY) {
    throw_out_of_memory(text);
  }
  throw_failure(text);
}

} // namespace girih

#endif
