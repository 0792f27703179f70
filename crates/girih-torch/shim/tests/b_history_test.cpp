// Memory history, trackers, snapshots.
#include "../compat.h"
#include "fake_heap.h"
#include "program.h"
#include "testing.h"

#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

using girih::RecordContext;
using girih::SnapshotInfo;
using girih::TraceEntry;
using girih::torch_cuda::get;
using testing::empty_cache;

namespace {

struct Frame : girih::GatheredContext {
  explicit Frame(int frame_number) : number(frame_number) {}
  int number;
};

int g_frames = 0;

std::shared_ptr<girih::GatheredContext> next_frame() {
  return std::make_shared<Frame>(++g_frames);
}

// The number of the frame, or 0 if there is none.
int frame(const std::shared_ptr<girih::GatheredContext>& context) {
  return context == nullptr ? 0 : static_cast<const Frame&>(*context).number;
}

void record(RecordContext when, size_t max_entries, std::vector<std::string> skipped = {}) {
  const bool with_frames = when != RecordContext::NEVER;
  g_frames = 0;
  testing::record_history(with_frames ? &next_frame : nullptr, max_entries, when, skipped);
}

// The entries of device 0 up to now, as "action:bytes:frame".
std::string trace() {
  static const char* const names[] = {
      "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
      "segment_map", "segment_unmap", "snapshot", "oom", "annotate"};
  std::string text;
  const SnapshotInfo snapshot = get()->snapshot();
  for (const TraceEntry& entry : snapshot.device_traces.at(0)) {
    text += (text.empty() ? "" : " ") + std::string(names[entry.action_]) + ":" +
        std::to_string(entry.size_) + ":" + std::to_string(frame(entry.context_));
  }
  return text;
}

} // namespace

TEST("nothing is listened to while nobody wants history") {
  EXPECT(!get()->isHistoryEnabled());
  EXPECT(!fake::heap().listening);
  EXPECT_EQ(trace(), std::string(""));
}

TEST("a free without a stack of its own is told with that of the allocation") {
  record(RecordContext::ALLOC, 100);
  EXPECT(get()->isHistoryEnabled());
  get()->allocate(700);
  EXPECT_EQ(
      trace(),
      std::string("segment_alloc:2097152:1 alloc:700:1 free_requested:700:1 free_completed:700:1 "
                  "segment_free:2097152:1"));
  testing::stop_history();
}

TEST("with all stacks a free has its own") {
  record(RecordContext::ALL, 100);
  get()->allocate(700);
  EXPECT_EQ(
      trace(),
      std::string("segment_alloc:2097152:1 alloc:700:1 free_requested:700:2 free_completed:700:2 "
                  "segment_free:2097152:2"));
  testing::stop_history();
}

TEST("state alone keeps stacks for blocks and for no entry") {
  record(RecordContext::STATE, 100);
  const c10::DataPtr block = get()->allocate(700);
  EXPECT_EQ(trace(), std::string("segment_alloc:2097152:0 alloc:700:0"));
  const SnapshotInfo snapshot = get()->snapshot();
  const auto segment = std::find_if(
      snapshot.segments.begin(), snapshot.segments.end(), [&](const girih::SegmentInfo& info) {
        return info.address == reinterpret_cast<uintptr_t>(block.get());
      });
  EXPECT(segment != snapshot.segments.end());
  // Of a segment that was split PyTorch has no stack.
  EXPECT_EQ(frame(segment->context_when_allocated), 0);
  EXPECT_EQ(frame(segment->blocks.at(0).context_when_allocated), 1);
  EXPECT_EQ(frame(segment->blocks.at(1).context_when_allocated), 0);
#if GIRIH_TORCH_FROM(2, 12)
  EXPECT_EQ(frame(get()->getContextForPointer(block.get())), 1);
  EXPECT(get()->getContextForPointer(&snapshot) == nullptr);
#endif
  testing::stop_history();
}

TEST("a freed block has its stack in the history, and nowhere if only the state is kept") {
  // What PyTorch's own test of this expects: test_memory_plots_free_stack.
  fake::heap().caches = true;
  for (const RecordContext when : {RecordContext::ALLOC, RecordContext::ALL, RecordContext::STATE}) {
    empty_cache();
    record(when, 100);
    get()->allocate(700);
    const SnapshotInfo snapshot = get()->snapshot();
    std::string stacks;
    for (const TraceEntry& entry : snapshot.device_traces.at(0)) {
      stacks += std::to_string(frame(entry.context_));
    }
    for (const auto& segment : snapshot.segments) {
      const int own = frame(segment.context_when_allocated);
      stacks += own == 0 ? "" : " segment " + std::to_string(own);
      for (const auto& block : segment.blocks) {
        const int of_block = frame(block.context_when_allocated);
        stacks += of_block == 0 ? "" : " block " + std::to_string(of_block);
      }
    }
    const bool is_state = when == RecordContext::STATE;
    const bool is_all = when == RecordContext::ALL;
    EXPECT_EQ(stacks, std::string(is_state ? "0000" : is_all ? "1122" : "1111"));
    testing::stop_history();
  }
  empty_cache();
  fake::heap().caches = false;
}

TEST("a segment that one block fills has the stack of its taking") {
  record(RecordContext::STATE, 100);
  const c10::DataPtr block = get()->allocate(size_t{2} << 20);
  const SnapshotInfo snapshot = get()->snapshot();
  const auto segment = std::find_if(
      snapshot.segments.begin(), snapshot.segments.end(), [&](const girih::SegmentInfo& info) {
        return info.address == reinterpret_cast<uintptr_t>(block.get());
      });
  EXPECT_EQ(frame(segment->context_when_allocated), 1);
  testing::stop_history();
}

TEST("after history has stopped, listening goes on until the last known stack is gone") {
  record(RecordContext::STATE, 100);
  c10::DataPtr block = get()->allocate(700);
  testing::stop_history();
  EXPECT(!get()->isHistoryEnabled());
  EXPECT(fake::heap().listening);
  block.clear();
  EXPECT(!fake::heap().listening);
}

TEST("of many entries the newest are kept, in order") {
  record(RecordContext::NEVER, 3);
  get()->allocate(1);
  get()->allocate(2);
  EXPECT_EQ(
      trace(), std::string("free_requested:2:0 free_completed:2:0 segment_free:2097152:0"));
  record(RecordContext::NEVER, 3);
  testing::stop_history();
}

TEST("running out of memory is an entry, and so is the snapshot before") {
  record(RecordContext::NEVER, 100);
  get()->snapshot();
  fake::heap().failures = 1;
  EXPECT_THROWS(c10::OutOfMemoryError, "CUDA out of memory", get()->allocate(64));
  size_t active = 0;
  for (const auto& segment : get()->snapshot().segments) {
    active += segment.device == 0 ? segment.active_size : 0;
  }
  const std::string snapshot = "snapshot:" + std::to_string(active) + ":0";
  EXPECT_EQ(trace(), snapshot + " oom:64:0 " + snapshot);
  testing::stop_history();
}

TEST("times are microseconds since 1970 and do not fall") {
  record(RecordContext::NEVER, 100);
  const auto now = c10::getTimeSinceEpoch() / 1000;
  get()->allocate(1);
  const auto entries = get()->snapshot().device_traces.at(0);
  EXPECT(!entries.empty());
  c10::time_t last = 0;
  for (const TraceEntry& entry : entries) {
    EXPECT(entry.time_.t_ >= last);
    EXPECT(std::abs(entry.time_.t_ - now) < 60'000'000);
    last = entry.time_.t_;
  }
  testing::stop_history();
}

TEST("every device has a trace of its own") {
  record(RecordContext::NEVER, 100);
  const c10::cuda::CUDAGuard guard(1);
  get()->allocate(1);
  const auto traces = get()->snapshot().device_traces;
  EXPECT_EQ(traces.size(), size_t{2});
  EXPECT_EQ(traces[0].size(), size_t{0});
  EXPECT_EQ(traces[1].size(), size_t{5});
  testing::stop_history();
}

#if GIRIH_TORCH_FROM(2, 8)
TEST("entries carry the innermost compile context") {
  record(RecordContext::NEVER, 100);
  std::string outer = "outer";
  std::string inner = "inner";
  get()->pushCompileContext(outer);
  get()->pushCompileContext(inner);
  get()->allocate(1);
  get()->popCompileContext();
  get()->popCompileContext();
  get()->popCompileContext();
  get()->allocate(1);
  const auto entries = get()->snapshot().device_traces.at(0);
  EXPECT_EQ(entries.front().compile_context_, inner);
  EXPECT_EQ(entries.back().compile_context_, std::string("N/A"));
  testing::stop_history();
}
#endif

#if GIRIH_TORCH_FROM(2, 10)
TEST("entries carry the user's metadata") {
  record(RecordContext::NEVER, 100);
  get()->setUserMetadata("layer 3");
  EXPECT_EQ(get()->getUserMetadata(), std::string("layer 3"));
  get()->allocate(1);
  get()->setUserMetadata("");
  EXPECT_EQ(get()->snapshot().device_traces.at(0).front().user_metadata_, std::string("layer 3"));
  testing::stop_history();
}

TEST("expandable segments are summed by stream and size class") {
  const auto sizes = get()->getExpandableSegmentSizes(0);
  const c10::DataPtr first = get()->allocate(1);
  const c10::DataPtr second = get()->allocate(1);
  const auto now = get()->getExpandableSegmentSizes(0);
  const size_t before = sizes.empty() ? 0 : sizes[0].total_size;
  EXPECT_EQ(now.at(0).total_size, before + (size_t{4} << 20));
  EXPECT(!now.at(0).is_small_pool);
}
#endif

#if GIRIH_TORCH_FROM(2, 11)
TEST("actions that are skipped are not kept") {
  record(RecordContext::NEVER, 100, {"segment_alloc", "segment_free", "free_requested"});
  get()->allocate(7);
  EXPECT_EQ(trace(), std::string("alloc:7:0 free_completed:7:0"));
  testing::stop_history();
}

TEST("a snapshot without traces has none") {
  EXPECT(get()->snapshot({0, 0}, false).device_traces.empty());
}
#endif

#if GIRIH_TORCH_FROM(2, 14)
TEST("a note on a live block is an entry with its size") {
  record(RecordContext::NEVER, 100);
  const c10::DataPtr block = get()->allocate(700);
  get()->annotateMemory(block.get(), "weights");
  const TraceEntry entry = get()->snapshot().device_traces.at(0).back();
  EXPECT(entry.action_ == TraceEntry::ANNOTATE);
  EXPECT_EQ(entry.size_, size_t{700});
  EXPECT_EQ(entry.user_metadata_, std::string("weights"));
  testing::stop_history();
}
#endif

TEST("annotations are kept while history is, and not otherwise") {
  get()->recordAnnotation({{"name", "lost"}});
  record(RecordContext::NEVER, 100);
  get()->recordAnnotation({{"name", "step"}, {"stage", "START"}});
  const auto annotations = get()->snapshot().external_annotations;
  EXPECT_EQ(annotations.size(), size_t{1});
  EXPECT_EQ(annotations[0].metadata_.at("stage"), std::string("START"));
  testing::stop_history();
}

TEST("a snapshot tells of segments and of the blocks that tile them") {
  const c10::DataPtr block = get()->allocate(700);
  const SnapshotInfo snapshot = get()->snapshot();
  const auto segment = std::find_if(
      snapshot.segments.begin(), snapshot.segments.end(), [&](const girih::SegmentInfo& info) {
        return info.address == reinterpret_cast<uintptr_t>(block.get());
      });
  EXPECT(segment != snapshot.segments.end());
  EXPECT_EQ(segment->total_size, size_t{2} << 20);
  EXPECT_EQ(segment->allocated_size, size_t{1024});
  EXPECT_EQ(segment->active_size, size_t{1024});
  EXPECT_EQ(segment->requested_size, size_t{700});
  EXPECT(segment->is_large && segment->is_expandable);
#if GIRIH_TORCH_FROM(2, 11)
  EXPECT_EQ(segment->registration_counter, int32_t{7});
#endif
  EXPECT_EQ(segment->blocks.size(), size_t{2});
  EXPECT(segment->blocks[0].active && segment->blocks[0].allocated);
  EXPECT(!segment->blocks[1].active && !segment->blocks[1].allocated);
  EXPECT_EQ(snapshot.config_metadata.max_split_size, std::numeric_limits<size_t>::max());
}

TEST("a tracker hears of every event, also while no history is kept") {
  static std::vector<int> heard;
  static bool throws = false;
  get()->attachAllocatorTraceTracker([](const TraceEntry& entry) {
    heard.push_back(entry.action_);
    if (throws) {
      throw std::runtime_error("the tracker is full");
    }
  });
  get()->allocate(1);
  EXPECT_EQ(heard.size(), size_t{5});

  // What it throws comes out of the allocation, and the block is not lost.
  const size_t before = fake::live_blocks();
  throws = true;
  EXPECT_THROWS(std::runtime_error, "the tracker is full", get()->allocate(1));
  throws = false;
  EXPECT_EQ(fake::live_blocks(), before);
  get()->allocate(1);
  EXPECT_EQ(fake::live_blocks(), before);
}

TEST("what a tracker throws belongs to its own call, whatever becomes of that call") {
  // Heard of when a request fails: the failure is the request's, and nothing of the tracker's is left.
  static bool throws = false;
  get()->attachAllocatorTraceTracker([](const TraceEntry&) {
    if (throws) {
      throw std::runtime_error("too late");
    }
  });
  throws = true;
  fake::heap().failures = 1;
  EXPECT_THROWS(c10::OutOfMemoryError, "CUDA out of memory", get()->allocate(64));
  // And outside all calls of PyTorch's, where nobody can be told.
  fake::tell_of_a_mark();
  throws = false;
  const size_t before = fake::live_blocks();
  const c10::DataPtr block = get()->allocate(64);
  EXPECT(block.get() != nullptr);
  EXPECT_EQ(fake::live_blocks(), before + 1);
}

TEST("a block is freed though a tracker throws, and the destructor does not") {
  static bool throws = false;
  get()->attachAllocatorTraceTracker([](const TraceEntry& entry) {
    if (throws && entry.action_ == TraceEntry::FREE_COMPLETED) {
      throw std::runtime_error("the tracker is full");
    }
  });
  const size_t before = fake::live_blocks();
  c10::DataPtr block = get()->allocate(64);
  void* raw = get()->raw_alloc(64);
  throws = true;
  block.clear();
  EXPECT_THROWS(std::runtime_error, "the tracker is full", get()->raw_delete(raw));
  throws = false;
  EXPECT_EQ(fake::live_blocks(), before);
}
