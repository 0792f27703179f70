// What a program asks of the allocator by other words in each release of torch.
#ifndef GIRIH_SHIM_TESTS_PROGRAM_H
#define GIRIH_SHIM_TESTS_PROGRAM_H

#include "../compat.h"

#include <string>
#include <vector>

namespace testing {

inline void empty_cache() {
#if GIRIH_TORCH_FROM(2, 8)
  girih::torch_cuda::get()->emptyCache({0, 0});
#else
  girih::torch_cuda::get()->emptyCache();
#endif
}

// Starts the history anew, with contexts of `recorder`. Releases before 2.11 skip no actions.
inline void record_history(
    girih::CreateContextFn recorder,
    size_t max_entries,
    girih::RecordContext when,
    [[maybe_unused]] const std::vector<std::string>& skipped = {}) {
#if GIRIH_TORCH_FROM(2, 11)
  girih::torch_cuda::get()->recordHistory(true, recorder, max_entries, when, true, skipped);
#elif GIRIH_TORCH_FROM(2, 8)
  girih::torch_cuda::get()->recordHistory(true, recorder, max_entries, when, true);
#else
  girih::torch_cuda::get()->recordHistory(true, recorder, max_entries, when);
#endif
}

// Stops it. Its entries stay.
inline void stop_history() {
  const auto never = girih::RecordContext::NEVER;
#if GIRIH_TORCH_FROM(2, 11)
  girih::torch_cuda::get()->recordHistory(false, nullptr, 1, never, false, {});
#elif GIRIH_TORCH_FROM(2, 8)
  girih::torch_cuda::get()->recordHistory(false, nullptr, 1, never, false);
#else
  girih::torch_cuda::get()->recordHistory(false, nullptr, 1, never);
#endif
}

} // namespace testing

#endif
