// See settings.h.
//
// torch keeps its settings in a configuration of its own, which it changes before anybody is told.
// From 2.10 on that configuration hands each text that is set to the reader of CUDA's own settings;
// Girih puts itself behind that. What torch refuses is refused before the heaps hear of it.
//
// Parts of torch ask the configuration, not the allocator, whether segments are expandable: NCCL's
// registration of all tensors, which hears of segments and not of their pages, does nothing then.
#include "settings.h"

#include "error.h"

#include <c10/util/Exception.h>

#include <iterator>
#include <string>

namespace girih {

namespace {

using CudaConfig = torch_cuda::CUDAAllocatorConfig;
#if GIRIH_TORCH_FROM(2, 10)
using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
#else
using Config = CudaConfig;
#endif

girih_settings settings_of_heaps() {
  girih_settings settings{};
  check(girih_get_settings(&settings));
  return settings;
}

bool torch_says_expandable() {
#if GIRIH_TORCH_FROM(2, 10)
  return Config::use_expandable_segments();
#else
  return Config::expandable_segments();
#endif
}

// Has torch's configuration say of segments what the heaps do. It reads the text that it was set to
// once more, for it would forget the rest of it otherwise.
void tell_torch() {
  const bool is_expandable = settings_of_heaps().expandable_segments;
  if (torch_says_expandable() == is_expandable) {
    return;
  }
  std::string text = Config::last_allocator_settings();
  text += text.empty() ? "" : ",";
  text += is_expandable ? "expandable_segments:True" : "expandable_segments:False";
  Config::instance().parseArgs(text.c_str());
}

#if GIRIH_TORCH_FROM(2, 10)
// Torch has read `text` already, and found nothing wrong with it.
void change_settings(const std::string& text) {
  const girih_status status = girih_change_settings(text.c_str());
  const std::string reason = status == GIRIH_OK ? "" : girih_last_error();
  tell_torch();
  TORCH_CHECK_VALUE(status != GIRIH_UNSUPPORTED, reason);
  TORCH_CHECK(status == GIRIH_OK, reason);
}
#endif

} // namespace

void follow_settings() {
#if GIRIH_TORCH_FROM(2, 10)
  // There is one hook, and it is the CUDA allocator's: this one does what that one does first.
  Config::registerDeviceConfigParserHook(
      [](const std::string& text) {
        CudaConfig::instance().parseArgs(text);
        change_settings(text);
      },
      {});
#endif
  tell_torch();
}

AllocatorConfigInfo settings_info() {
  const girih_settings settings = settings_of_heaps();
  AllocatorConfigInfo info{};
  info.garbage_collection_threshold = settings.garbage_collection_threshold;
  info.max_split_size = settings.max_split_size;
  info.expandable_segments = settings.expandable_segments;
  info.last_allocator_settings = girih_settings_text();
  info.roundup_power2_divisions.assign(
      std::begin(settings.roundup_power2_divisions), std::end(settings.roundup_power2_divisions));
  info.release_lock_on_malloc = settings.release_lock_on_malloc;
#if GIRIH_TORCH_FROM(2, 9)
  info.graph_capture_record_stream_reuse = settings.graph_capture_record_stream_reuse;
#endif
  // The host's memory is torch's own to share out.
  info.pinned_num_register_threads = CudaConfig::pinned_num_register_threads();
  info.pinned_use_host_register = CudaConfig::pinned_use_cuda_host_register();
#if GIRIH_TORCH_FROM(2, 13)
  info.max_round_threshold = Config::pinned_max_round_threshold();
  info.max_cached_size = Config::pinned_max_cached_size();
#endif
  return info;
}

} // namespace girih
