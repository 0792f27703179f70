// Turns the statuses of girih.h into PyTorch's exceptions.
#ifndef GIRIH_SHIM_ERROR_H
#define GIRIH_SHIM_ERROR_H

#include "compat.h"

#include <string>

namespace girih {

// Throws c10::OutOfMemoryError (torch.OutOfMemoryError) with `text`. Programs look for the words
// "CUDA out of memory" in it, so they are put in front where they are missing.
[[noreturn]] inline void throw_out_of_memory(const std::string& text) {
  const bool named = text.find("CUDA out of memory") != std::string::npos;
  C10_THROW_ERROR(OutOfMemoryError, named ? text : "CUDA out of memory. " + text);
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
  TORCH_CHECK(false, text);
}

} // namespace girih

#endif
