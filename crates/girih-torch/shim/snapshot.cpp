// Snapshots: what the heaps hold, in PyTorch's words. See allocator.h.
//
// A heap shows its segments one by one while it is locked; each is translated at once, with the
// contexts that the history has kept. The trace is read before the segments, as in PyTorch, so the
// entry that a snapshot leaves is found in the next one.
#include "allocator.h"

#include "error.h"
#include "settings.h"

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace girih {

namespace {

// Calls `visit(segment, blocks, block_count)` for each segment of `device`. What it throws passes
// by the heap and comes out here.
template <typename Visit>
void visit_segments(c10::DeviceIndex device, Visit visit) {
  struct Visitor {
    Visit& visit;
    std::exception_ptr failure;
  } visitor{visit, nullptr};
  const girih_visitor call = [](void* user,
                                const girih_segment* segment,
                                const girih_block* blocks,
                                size_t block_count) noexcept {
    auto* self = static_cast<Visitor*>(user);
    try {
      if (self->failure == nullptr) {
        self->visit(*segment, blocks, block_count);
      }
    } catch (...) {
      self->failure = std::current_exception();
    }
  };
  check(girih_visit(device, call, &visitor));
  if (visitor.failure != nullptr) {
    std::rethrow_exception(visitor.failure);
  }
}

} // namespace

SnapshotInfo GirihAllocator::take_snapshot(girih_pool pool, bool include_traces) {
  const History::Clock clock = history_.clock();
  SnapshotInfo snapshot;
  const int device_count = device_count_;
  for (int index = 0; index < device_count; ++index) {
    const auto device = static_cast<c10::DeviceIndex>(index);
    if (include_traces) {
      snapshot.device_traces.push_back(history_.entries(device, clock));
    }
    std::vector<SegmentInfo> held = segments(device, pool);
    size_t active = 0;
    for (SegmentInfo& segment : held) {
      active += segment.active_size;
      snapshot.segments.push_back(std::move(segment));
    }
    history_.note_snapshot(device, active, pool);
  }
  snapshot.external_annotations = history_.annotations(clock);
  snapshot.config_metadata = settings_info();
  return snapshot;
}

// The segments of one pool, or of all pools if `pool` is the default one, by address.
std::vector<SegmentInfo> GirihAllocator::segments(c10::DeviceIndex device, girih_pool pool) {
  std::vector<SegmentInfo> segments;
  visit_segments(device, [&](const girih_segment& from, const girih_block* blocks, size_t count) {
    if (pool != kDefaultPool && from.pool != pool) {
      return;
    }
    SegmentInfo segment;
    segment.device = device;
#if GIRIH_TORCH_FROM(2, 11)
    // NCCL registers the segments of a pool in this order on every rank.
    segment.registration_counter = static_cast<int32_t>(from.registration);
#endif
    segment.address = from.address;
    segment.total_size = from.size;
    segment.stream = to_stream(from.stream);
    segment.is_large = from.is_large;
    segment.is_expandable = from.is_expandable;
    segment.owner_private_pool_id = to_torch(from.pool);
    // PyTorch keeps it with the block that the segment began as, which is lost when that is split:
    // then nothing is left of it in a snapshot, and a freed block leaves no stack.
    if (count == 1 && blocks->active) {
      segment.context_when_allocated = history_.segment_context(device, from.address);
    }
    segment.blocks.reserve(count);
    for (const girih_block* block = blocks; block != blocks + count; ++block) {
      BlockInfo info;
      info.size = block->size;
      info.requested_size = block->requested;
      info.allocated = block->allocated;
      info.active = block->active;
      if (block->active) {
        segment.active_size += block->size;
        segment.requested_size += block->requested;
        info.context_when_allocated = history_.block_context(device, block->address);
      }
      segment.allocated_size += block->allocated ? block->size : 0;
      segment.blocks.push_back(std::move(info));
    }
    segments.push_back(std::move(segment));
  });
  return segments;
}

bool GirihAllocator::checkPoolLiveAllocations(
    c10::DeviceIndex device,
    MempoolId_t pool,
    const std::unordered_set<void*>& expected) {
  const girih_pool asked = to_girih(pool);
  size_t live = 0;
  bool all_expected = true;
  const auto look = [&](const girih_segment& segment, const girih_block* blocks, size_t count) {
    if (segment.pool != asked) {
      return;
    }
    for (const girih_block* block = blocks; block != blocks + count; ++block) {
      if (block->allocated) {
        ++live;
        all_expected &= expected.count(reinterpret_cast<void*>(block->address)) == 1;
      }
    }
  };
  visit_segments(device, look);
  return all_expected && live == expected.size();
}

#if GIRIH_TORCH_FROM(2, 11)
void GirihAllocator::recordHistory(
    bool enabled,
    CreateContextFn recorder,
    size_t max_entries,
    RecordContext when,
    bool clear,
    const std::vector<std::string>& skip_actions) {
  uint32_t skipped = 0;
  for (const std::string& action : skip_actions) {
    const auto parsed = c10::CachingDeviceAllocator::parseTraceEntryAction(action);
    skipped |= uint32_t{1} << static_cast<uint32_t>(parsed);
  }
  history_.record(enabled, recorder, max_entries, when, clear, skipped);
}
#endif

#if GIRIH_TORCH_FROM(2, 10)
// One row for each stream and size class that has expandable segments.
std::vector<torch_cuda::StreamSegmentSize> GirihAllocator::getExpandableSegmentSizes(
    c10::DeviceIndex device) {
  std::map<std::pair<uint64_t, bool>, size_t> sizes;
  visit_segments(device, [&](const girih_segment& segment, const girih_block*, size_t) {
    if (segment.is_expandable) {
      sizes[{segment.stream, !segment.is_large}] += segment.size;
    }
  });
  std::vector<torch_cuda::StreamSegmentSize> rows;
  for (const auto& [key, size] : sizes) {
    rows.emplace_back(to_stream(key.first), key.second, size);
  }
  return rows;
}
#endif

#if GIRIH_TORCH_FROM(2, 12)
std::shared_ptr<GatheredContext> GirihAllocator::getContextForPointer(const void* address) {
  int32_t device = 0;
  if (girih_device_of(address, &device) != GIRIH_OK) {
    return nullptr;
  }
  return history_.block_context(
      static_cast<c10::DeviceIndex>(device), reinterpret_cast<uintptr_t>(address));
}
#endif

#if GIRIH_TORCH_FROM(2, 14)
void GirihAllocator::annotateMemory(const void* address, const std::string& metadata) {
  int32_t owner = 0;
  if (!history_.recording() || girih_device_of(address, &owner) != GIRIH_OK) {
    return;
  }
  const auto device = static_cast<c10::DeviceIndex>(owner);
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  EntryFields fields{};
  fields.action = TraceEntry::ANNOTATE;
  fields.device = device;
  fields.address = wanted;
  const auto look = [&](const girih_segment& segment, const girih_block* blocks, size_t count) {
    if (wanted < segment.address || wanted - segment.address >= segment.size) {
      return;
    }
    for (const girih_block* block = blocks; block != blocks + count; ++block) {
      if (block->address == wanted) {
        fields.size = block->requested;
        fields.stream = to_stream(segment.stream);
        fields.pool = segment.pool;
      }
    }
  };
  visit_segments(device, look);
  history_.annotate_block(std::move(fields), metadata);
}
#endif

} // namespace girih
