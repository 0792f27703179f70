// Running the tests, and what they share. See support.h.
#include "support.h"

#include <atomic>
#include <cstdio>

namespace c10::cuda::_internal {
// libtorch_cuda tells libc10_cuda which devices have been used. It is not here, so the test does. No
// header declares it.
void setHasPrimaryContext(bool (*has)(DeviceIndex));
} // namespace c10::cuda::_internal

namespace heaps {

namespace {

std::atomic<int> g_frames{0};

std::shared_ptr<girih::GatheredContext> next_frame() {
  return std::make_shared<Frame>(++g_frames);
}

} // namespace

std::string& mode() {
  static std::string mode;
  return mode;
}

void record(RecordContext when, size_t max_entries) {
  testing::record_history(&next_frame, max_entries, when);
}

std::vector<TraceEntry> entries_of(uint64_t address) {
  std::vector<TraceEntry> about;
  const SnapshotInfo snapshot = get()->snapshot();
  for (const TraceEntry& entry : snapshot.device_traces.at(0)) {
    if (static_cast<uint64_t>(entry.addr_) == address) {
      about.push_back(entry);
    }
  }
  return about;
}

void check_tiling(const SnapshotInfo& snapshot) {
  for (const SegmentInfo& segment : snapshot.segments) {
    size_t total = 0;
    size_t allocated = 0;
    size_t active = 0;
    for (const girih::BlockInfo& block : segment.blocks) {
      EXPECT(block.size > 0);
      EXPECT(block.active || !block.allocated);
      total += block.size;
      allocated += block.allocated ? block.size : 0;
      active += block.active ? block.size : 0;
    }
    EXPECT_EQ(total, segment.total_size);
    EXPECT_EQ(allocated, segment.allocated_size);
    EXPECT_EQ(active, segment.active_size);
  }
}

} // namespace heaps

// Runs all tests over heaps in `mode`. Returns how many failed.
extern "C" int girih_run_tests(const char* mode) {
  heaps::mode() = mode;
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  heaps::get()->init(2);
  const int failed = testing::run_all();
  std::printf("heaps in mode %s: %zu tests, %d failed\n", mode, testing::tests().size(), failed);
  std::fflush(stdout);
  return failed;
}
