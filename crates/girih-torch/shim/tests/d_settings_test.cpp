// Settings: what a program sets reaches the heaps, and torch's configuration follows them.
#include "../allocator.h"
#include "fake_heap.h"
#include "testing.h"

#include <c10/util/Exception.h>

#include <string>

namespace {

using girih::torch_cuda::AllocatorConfigInfo;

bool torch_says_expandable() {
#if GIRIH_TORCH_FROM(2, 10)
  return c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments();
#else
  return girih::torch_cuda::CUDAAllocatorConfig::expandable_segments();
#endif
}

AllocatorConfigInfo shown() {
#if GIRIH_TORCH_FROM(2, 11)
  return girih::torch_cuda::get()->snapshot({0, 0}, true).config_metadata;
#elif GIRIH_TORCH_FROM(2, 8)
  return girih::torch_cuda::get()->snapshot({0, 0}).config_metadata;
#else
  return girih::torch_cuda::get()->snapshot().config_metadata;
#endif
}

TEST("torch's configuration says that segments are expandable where they are") {
  EXPECT(fake::heap().settings.expandable_segments);
  EXPECT(torch_says_expandable());
}

TEST("a snapshot shows the settings of the heaps") {
  const AllocatorConfigInfo info = shown();
  EXPECT_EQ(info.last_allocator_settings, std::string("of the beginning"));
  EXPECT_EQ(info.roundup_power2_divisions.size(), size_t{16});
  EXPECT_EQ(info.roundup_power2_divisions[2], size_t{4});
  EXPECT(info.expandable_segments);
  EXPECT(!info.release_lock_on_malloc);
  fake::heap().settings.release_lock_on_malloc = true;
  EXPECT(shown().release_lock_on_malloc);
  fake::heap().settings.release_lock_on_malloc = false;
#if GIRIH_TORCH_FROM(2, 9)
  EXPECT(!shown().graph_capture_record_stream_reuse);
  fake::heap().settings.graph_capture_record_stream_reuse = true;
  EXPECT(shown().graph_capture_record_stream_reuse);
  fake::heap().settings.graph_capture_record_stream_reuse = false;
#endif
}

#if GIRIH_TORCH_FROM(2, 10)
TEST("a text that a program sets goes through torch's own reader to the heaps") {
  const std::string text = "garbage_collection_threshold:0.5";
  girih::torch_cuda::setAllocatorSettings(text);
  EXPECT_EQ(fake::heap().texts.size(), size_t{1});
  EXPECT_EQ(fake::heap().texts.back(), text);
  EXPECT_EQ(shown().last_allocator_settings, text);
  // What torch has of its own goes on.
  girih::torch_cuda::setAllocatorSettings("pinned_num_register_threads:8");
  EXPECT_EQ(shown().pinned_num_register_threads, size_t{8});
}

TEST("what torch refuses does not reach the heaps") {
  const size_t texts = fake::heap().texts.size();
  EXPECT_THROWS(c10::ValueError, "foo", girih::torch_cuda::setAllocatorSettings("foo:1"));
  EXPECT_EQ(fake::heap().texts.size(), texts);
}

TEST("what the heaps refuse is torch's own kind of error, and torch's configuration stays true") {
  EXPECT_THROWS(
      c10::ValueError,
      "the fake heap cannot change that",
      girih::torch_cuda::setAllocatorSettings("expandable_segments:False"));
  EXPECT(torch_says_expandable());
  fake::heap().settings.expandable_segments = false;
  girih::torch_cuda::setAllocatorSettings("max_split_size_mb:64");
  EXPECT(!torch_says_expandable());
  EXPECT_EQ(
      c10::CachingAllocator::AcceleratorAllocatorConfig::max_split_size(), size_t{64} << 20);
  fake::heap().settings.expandable_segments = true;
}
#endif

} // namespace
