// Memory history and snapshots over Girih's heaps.
#include "support.h"

#include <algorithm>

using namespace heaps;

namespace {

// The segment of a snapshot that `address` lies in.
const SegmentInfo& segment_around(const SnapshotInfo& snapshot, uint64_t address) {
  const auto found = std::find_if(
      snapshot.segments.begin(), snapshot.segments.end(), [&](const SegmentInfo& segment) {
        return segment.address <= address && address - segment.address < segment.total_size;
      });
  EXPECT(found != snapshot.segments.end());
  return *found;
}

size_t count(const std::vector<TraceEntry>& entries, TraceEntry::Action action) {
  return static_cast<size_t>(std::count_if(
      entries.begin(), entries.end(), [&](const TraceEntry& e) { return e.action_ == action; }));
}

} // namespace

TEST("a block's life is told with its address, its bytes and the stacks of its ends") {
  record(RecordContext::ALL);
  c10::DataPtr block = get()->allocate(3 * kMiB + 5);
  const uint64_t address = number(block.get());
  block.clear();
  const auto entries = entries_of(address);
  testing::stop_history();
  const auto begin = std::find_if(entries.begin(), entries.end(), [](const TraceEntry& entry) {
    return entry.action_ == TraceEntry::ALLOC;
  });
  EXPECT_EQ(entries.end() - begin, ptrdiff_t{3});
  EXPECT(begin[1].action_ == TraceEntry::FREE_REQUESTED);
  EXPECT(begin[2].action_ == TraceEntry::FREE_COMPLETED);
  for (ptrdiff_t i = 0; i < 3; ++i) {
    EXPECT_EQ(begin[i].size_, 3 * kMiB + 5);
    EXPECT(frame(begin[i].context_) > 0);
  }
  EXPECT(frame(begin[0].context_) < frame(begin[1].context_));
  EXPECT_EQ(frame(begin[1].context_), frame(begin[2].context_));
}

TEST("memory that the device gives and takes is told of, to the byte") {
  empty_cache();
  const int64_t before = reserved();
  record(RecordContext::ALLOC);
  get()->allocate(30 * kMiB);
  const int64_t held = reserved();
  EXPECT(held > before);
  empty_cache();
  int64_t came = 0;
  int64_t went = 0;
  const SnapshotInfo snapshot = get()->snapshot();
  for (const TraceEntry& entry : snapshot.device_traces.at(0)) {
    const auto size = static_cast<int64_t>(entry.size_);
    const auto action = entry.action_;
    came += action == TraceEntry::SEGMENT_ALLOC || action == TraceEntry::SEGMENT_MAP ? size : 0;
    went += action == TraceEntry::SEGMENT_FREE || action == TraceEntry::SEGMENT_UNMAP ? size : 0;
  }
  testing::stop_history();
  EXPECT_EQ(came, held - before);
  EXPECT_EQ(went, held - reserved());
}

TEST("a snapshot tells where every live block lies, and who asked for it") {
  record(RecordContext::STATE);
  const c10::DataPtr first = get()->allocate(700);
  const c10::DataPtr second = get()->allocate(5 * kMiB);
  const SnapshotInfo snapshot = get()->snapshot();
  check_tiling(snapshot);
  size_t held = 0;
  for (const SegmentInfo& segment : snapshot.segments) {
    held += segment.device == 0 ? segment.total_size : 0;
  }
  EXPECT_EQ(held, static_cast<size_t>(reserved()));
  for (const c10::DataPtr* block : {&first, &second}) {
    const SegmentInfo& segment = segment_around(snapshot, number(block->get()));
    uint64_t address = segment.address;
    const girih::BlockInfo* found = nullptr;
    for (const girih::BlockInfo& info : segment.blocks) {
      if (address == number(block->get())) {
        found = &info;
      }
      address += info.size;
    }
    EXPECT(found != nullptr);
    EXPECT(found->allocated && found->active);
    EXPECT_EQ(found->requested_size, block == &first ? size_t{700} : 5 * kMiB);
    EXPECT(frame(found->context_when_allocated) > 0);
#if GIRIH_TORCH_FROM(2, 12)
    EXPECT(get()->getContextForPointer(block->get()) == found->context_when_allocated);
#endif
  }
  testing::stop_history();
}

TEST("running out of memory is an entry with what the device had free") {
  record(RecordContext::NEVER);
  EXPECT_THROWS(c10::OutOfMemoryError, "CUDA out of memory", get()->allocate(2 * kCapacity));
  const auto trace = get()->snapshot().device_traces.at(0);
  testing::stop_history();
  EXPECT_EQ(count(trace, TraceEntry::OOM), size_t{1});
  const auto oom = std::find_if(trace.begin(), trace.end(), [](const TraceEntry& entry) {
    return entry.action_ == TraceEntry::OOM;
  });
  EXPECT_EQ(oom->size_, 2 * kCapacity);
  EXPECT_EQ(static_cast<int64_t>(oom->addr_), static_cast<int64_t>(kCapacity) - reserved());
}

TEST("nothing is told once history has stopped") {
  record(RecordContext::ALLOC);
  testing::stop_history();
  get()->allocate(kMiB);
  EXPECT(get()->snapshot().device_traces.at(0).empty());
}

#if GIRIH_TORCH_FROM(2, 10)
TEST("expandable segments are summed as the snapshot shows them") {
  const c10::DataPtr small = get()->allocate(700);
  const c10::DataPtr large = get()->allocate(30 * kMiB);
  size_t listed = 0;
  for (const auto& row : get()->getExpandableSegmentSizes(0)) {
    listed += row.total_size;
  }
  size_t shown = 0;
  for (const SegmentInfo& segment : get()->snapshot().segments) {
    shown += segment.device == 0 && segment.is_expandable ? segment.total_size : 0;
  }
  EXPECT_EQ(listed, shown);
  EXPECT_EQ(listed > 0, mode() != "native");
}
#endif

#if GIRIH_TORCH_FROM(2, 14)
TEST("a note on a live block is an entry with its size") {
  record(RecordContext::NEVER);
  const c10::DataPtr block = get()->allocate(3 * kMiB);
  get()->annotateMemory(block.get(), "weights");
  const TraceEntry entry = entries_of(number(block.get())).back();
  testing::stop_history();
  EXPECT(entry.action_ == TraceEntry::ANNOTATE);
  EXPECT_EQ(entry.size_, 3 * kMiB);
}
#endif

TEST("a tracker hears of the blocks of every device") {
  static std::vector<std::pair<int, int>> heard;
  static bool listens = true;
  get()->attachAllocatorTraceTracker([](const TraceEntry& entry) {
    if (listens) {
      heard.emplace_back(entry.device_, entry.action_);
    }
  });
  get()->allocate(700);
  listens = false;
  EXPECT(std::count(heard.begin(), heard.end(), std::make_pair(0, int{TraceEntry::ALLOC})) == 1);
  EXPECT(
      std::count(heard.begin(), heard.end(), std::make_pair(0, int{TraceEntry::FREE_COMPLETED})) ==
      1);
}
