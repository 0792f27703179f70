// Blocks, failures, limits and statistics over Girih's heaps.
#include "support.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>

using namespace heaps;

namespace {

// Freed when the process ends, after the heaps were told to finish.
c10::DataPtr g_held_to_the_end;

// Another part of the process that gives back what it holds when memory is short.
c10::DataPtr* g_spare = nullptr;

} // namespace

namespace c10 {
namespace {

struct GivesTheSpareBack : FreeMemoryCallback {
  bool Execute() override {
    if (g_spare == nullptr) {
      return false;
    }
    g_spare->clear();
    g_spare = nullptr;
    return true;
  }
};

REGISTER_FREE_MEMORY_CALLBACK(girih_tests_over_heaps_spare, GivesTheSpareBack)

} // namespace
} // namespace c10

TEST("a block comes from the heap of the current device and goes back to it") {
  const int64_t before[] = {allocated(0), allocated(1)};
  {
    const c10::cuda::CUDAGuard guard(1);
    const c10::DataPtr block = get()->allocate(700);
    EXPECT(block.get() != nullptr);
    EXPECT(block.device() == c10::Device(c10::DeviceType::CUDA, 1));
    EXPECT_EQ(allocated(0), before[0]);
    EXPECT_EQ(allocated(1), before[1] + 1024);
  }
  EXPECT_EQ(allocated(1), before[1]);
}

TEST("blocks that live at once share no byte") {
  std::vector<c10::DataPtr> blocks;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const size_t size : {size_t{1}, size_t{700}, kMiB, 3 * kMiB, 20 * kMiB, 70 * kMiB + 1}) {
    blocks.push_back(get()->allocate(size));
    ranges.emplace_back(number(blocks.back().get()), number(blocks.back().get()) + size);
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    EXPECT(ranges[i - 1].second <= ranges[i].first);
  }
}

TEST("what is freed is found again for the same request on the same stream") {
  void* first = get()->raw_alloc_with_stream(5 * kMiB, stream(0x10));
  get()->raw_delete(first);
  void* second = get()->raw_alloc_with_stream(5 * kMiB, stream(0x10));
  EXPECT(second == first);
  void* other = get()->raw_alloc_with_stream(5 * kMiB, stream(0x20));
  EXPECT(other != first);
  get()->raw_delete(second);
  get()->raw_delete(other);
}

TEST("a block that another stream was recorded on stays active until that stream is done") {
  const int64_t before = active();
  c10::DataPtr block = get()->allocate(5 * kMiB);
  get()->recordStream(block, c10::cuda::getStreamFromExternal(stream(0x90), 0));
  block.clear();
  EXPECT_EQ(active(), before + static_cast<int64_t>(5 * kMiB));
  // Simulated streams are done at once; the heap notices at the next request.
  get()->allocate(1);
  EXPECT_EQ(active(), before);
}

TEST("an address that is no block's is refused, or ignored where others' may come") {
  c10::DataPtr block = get()->allocate(2 * kMiB);
  void* inside = static_cast<char*>(block.get()) + 512;
  EXPECT_THROWS(c10::Error, "invalid device pointer", get()->raw_delete(inside));
  int foreign = 0;
  EXPECT_THROWS(c10::Error, "invalid device pointer", get()->raw_delete(&foreign));
  EXPECT_THROWS(c10::Error, "invalid device pointer", get()->getBaseAllocation(&foreign, nullptr));
  const c10::DataPtr view(&foreign, block.device());
  get()->recordStream(view, c10::cuda::getStreamFromExternal(stream(0x90), 0));
  void* freed = block.get();
  block.clear();
  EXPECT_THROWS(c10::Error, "invalid device pointer", get()->raw_delete(freed));
}

TEST("a block lies within the memory that its base is of") {
  const c10::DataPtr first = get()->allocate(3 * kMiB);
  const c10::DataPtr second = get()->allocate(3 * kMiB);
  for (const c10::DataPtr* block : {&first, &second}) {
    size_t size = 0;
    const uint64_t base = number(get()->getBaseAllocation(block->get(), &size));
    EXPECT(base <= number(block->get()));
    EXPECT(number(block->get()) + 3 * kMiB <= base + size);
  }
}

TEST("a request that the device cannot serve is torch.OutOfMemoryError, and observers are told") {
  static std::vector<size_t> told;
  get()->attachOutOfMemoryObserver([](int64_t device, size_t asked, size_t total, size_t free) {
    told = {static_cast<size_t>(device), asked, total, free};
  });
  const int64_t failed_before = get()->getDeviceStats(0).num_ooms;
  EXPECT_THROWS(
      c10::OutOfMemoryError, "CUDA out of memory. Tried to allocate 2.00 GiB",
      get()->allocate(2 * kCapacity));
  EXPECT_EQ(told.size(), size_t{4});
  EXPECT_EQ(told[0], size_t{0});
  EXPECT_EQ(told[1], 2 * kCapacity);
  EXPECT_EQ(told[2], kCapacity);
  EXPECT_EQ(told[3], kCapacity - static_cast<size_t>(reserved()));
  EXPECT_EQ(get()->getDeviceStats(0).num_ooms, failed_before + 1);
  // The heap works on.
  const c10::DataPtr block = get()->allocate(kCapacity / 2);
  EXPECT(block.get() != nullptr);
}

TEST("a request is served from what a callback gives back") {
  c10::DataPtr spare = get()->allocate(700 * kMiB);
  g_spare = &spare;
  const c10::DataPtr block = get()->allocate(700 * kMiB);
  EXPECT(block.get() != nullptr);
  EXPECT(spare.get() == nullptr && g_spare == nullptr);
}

TEST("a share of the device is a limit, with words of its own") {
  empty_cache();
  get()->setMemoryFraction(0.25, 0);
  EXPECT_EQ(get()->getMemoryFraction(0), 0.25);
  EXPECT_THROWS(
      c10::OutOfMemoryError, "set_per_process_memory_fraction", get()->allocate(300 * kMiB));
  get()->setMemoryFraction(1.0, 0);
  EXPECT(get()->allocate(300 * kMiB).get() != nullptr);
}

TEST("an empty cache holds nothing, and all of the device is free") {
  get()->allocate(100 * kMiB);
  EXPECT_EQ(allocated(), int64_t{0});
  EXPECT(reserved() > 0);
  empty_cache();
  EXPECT_EQ(reserved(), int64_t{0});
  size_t largest = 0;
  get()->cacheInfo(0, &largest);
  EXPECT_EQ(largest, kCapacity);
}

TEST("statistics count what was asked for, and begin anew when they are told to") {
  get()->resetAccumulatedStats(0);
  get()->resetPeakStats(0);
  const int64_t requested = get()->getDeviceStats(0).requested_bytes[0].current;
  {
    const c10::DataPtr small = get()->allocate(1000);
    const c10::DataPtr large = get()->allocate(3 * kMiB);
    const auto stats = get()->getDeviceStats(0);
    EXPECT_EQ(stats.allocation[0].allocated, int64_t{2});
    EXPECT_EQ(stats.allocation[1].allocated, int64_t{1});
    EXPECT_EQ(stats.allocation[2].allocated, int64_t{1});
    EXPECT_EQ(stats.requested_bytes[0].current, requested + 1000 + int64_t{3 * kMiB});
    EXPECT(stats.reserved_bytes[0].current >= stats.allocated_bytes[0].current);
  }
  const auto stats = get()->getDeviceStats(0);
  EXPECT_EQ(stats.allocation[0].freed, int64_t{2});
  EXPECT(stats.allocated_bytes[0].peak >= stats.allocated_bytes[0].current + int64_t{3 * kMiB});
  get()->resetPeakStats(0);
  get()->resetAccumulatedStats(0);
  const auto anew = get()->getDeviceStats(0);
  EXPECT_EQ(anew.allocation[0].allocated, int64_t{0});
  EXPECT_EQ(anew.allocated_bytes[0].peak, anew.allocated_bytes[0].current);
}

TEST("the profiler hears of the bytes granted and of the same bytes freed") {
  struct Reporter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t total, size_t, c10::Device) override {
      changes.push_back(bytes);
      last_total = static_cast<int64_t>(total);
    }
    bool memoryProfilingEnabled() const override {
      return true;
    }
    std::vector<int64_t> changes;
    int64_t last_total = 0;
  };
  const auto reporter = std::make_shared<Reporter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, reporter);
  {
    const c10::DataPtr block = get()->allocate(700);
    EXPECT(reporter->changes == std::vector<int64_t>{1024});
    EXPECT_EQ(reporter->last_total, allocated());
  }
  EXPECT((reporter->changes == std::vector<int64_t>{1024, -1024}));
}

TEST("memory that no other process can have is refused with the reason") {
  const c10::DataPtr block = get()->allocate(kMiB);
  EXPECT_THROWS(c10::Error, "another process", get()->shareIpcHandle(block.get()));
  EXPECT_THROWS(c10::Error, "another process", get()->getIpcDevPtr("a handle"));
  get()->enablePeerAccess(0, 1);
}

TEST("a block may be held to the very end of the process") {
  g_held_to_the_end = get()->allocate(64);
}
