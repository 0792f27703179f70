// Memory history: the sink of the heaps' events, and what is kept of them. See history.h.
#include "history.h"

#include "error.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstddef>

namespace girih {

namespace {

// What this thread adds to the events that it causes.
thread_local std::vector<std::string> t_compile_contexts;
thread_local std::string t_user_metadata;

static_assert(GIRIH_ALLOC == static_cast<int>(TraceEntry::ALLOC));
static_assert(GIRIH_FREE_REQUESTED == static_cast<int>(TraceEntry::FREE_REQUESTED));
static_assert(GIRIH_FREE_COMPLETED == static_cast<int>(TraceEntry::FREE_COMPLETED));
static_assert(GIRIH_SEGMENT_ALLOC == static_cast<int>(TraceEntry::SEGMENT_ALLOC));
static_assert(GIRIH_SEGMENT_FREE == static_cast<int>(TraceEntry::SEGMENT_FREE));
static_assert(GIRIH_SEGMENT_MAP == static_cast<int>(TraceEntry::SEGMENT_MAP));
static_assert(GIRIH_SEGMENT_UNMAP == static_cast<int>(TraceEntry::SEGMENT_UNMAP));

// PyTorch has an action for snapshots before that for running out of memory; the heaps have not.
TraceEntry::Action to_action(int32_t action) {
  return action == GIRIH_OOM ? TraceEntry::OOM : static_cast<TraceEntry::Action>(action);
}

std::string compile_context() {
  return t_compile_contexts.empty() ? "N/A" : t_compile_contexts.back();
}

} // namespace

// ---- settings ----

void History::record(
    bool enabled,
    CreateContextFn recorder,
    size_t max_entries,
    RecordContext when,
    bool clear,
    uint32_t skipped_actions) {
  TORCH_CHECK(
      when == RecordContext::NEVER || recorder != nullptr,
      "recordHistory: contexts were asked for, and no function that makes them was given");
  recorder_ = enabled ? recorder : nullptr;
  when_ = enabled ? when : RecordContext::NEVER;
  skipped_actions_ = skipped_actions;
  for (DeviceHistory& device : devices_) {
    std::lock_guard<std::mutex> lock(device.mutex);
    device.entries.set_capacity(max_entries);
    if (!enabled || clear) {
      device.entries.clear();
    }
  }
  {
    std::lock_guard<std::mutex> lock(annotations_mutex_);
    annotations_.set_capacity(max_entries);
    annotations_.clear();
  }
  recording_ = enabled;
  listen_if_wanted();
}

void History::attach(AllocatorTraceTracker tracker) {
  trackers_.attach(std::move(tracker));
  listen_if_wanted();
}

bool History::wanted() const {
  return recording() || !trackers_.empty() || contexts_kept_.load(std::memory_order_relaxed) > 0;
}

void History::listen_if_wanted() {
  std::lock_guard<std::mutex> lock(settings_mutex_);
  const bool wanted_now = wanted();
  if (wanted_now != listening_) {
    girih_set_sink(wanted_now ? &History::sink : nullptr, this);
    set_flag(kHistory, wanted_now);
    listening_ = wanted_now;
  }
}

void History::settle() {
  if (!wanted()) {
    listen_if_wanted();
  }
}

void History::push_compile_context(std::string context) {
  t_compile_contexts.push_back(std::move(context));
}

void History::pop_compile_context() {
  if (!t_compile_contexts.empty()) {
    t_compile_contexts.pop_back();
  }
}

void History::set_user_metadata(const std::string& metadata) {
  t_user_metadata = metadata;
}

const std::string& History::user_metadata() {
  return t_user_metadata;
}

// ---- events ----

thread_local History::Call* History::Call::newest_ = nullptr;

History::Call::Call(History& history, RecordContext level) {
  const CreateContextFn recorder = history.recorder_.load();
  if (recorder != nullptr && history.when_.load() >= level) {
    context_ = recorder();
  }
  outer_ = std::exchange(newest_, this);
}

History::Call::~Call() {
  newest_ = outer_;
}

void History::Call::rethrow() {
  if (C10_UNLIKELY(failed())) {
    std::rethrow_exception(std::exchange(failure_, nullptr));
  }
}

void History::sink(void* self, const girih_event* event) noexcept {
  // Between here and the shim's own frames lies the heap, which no exception may cross.
  try {
    static_cast<History*>(self)->take(*event);
  } catch (...) {
    // The first failure of a call is its failure. Outside all calls (a mark of the program) there is
    // nobody to throw it to.
    Call* call = Call::newest_;
    if (call != nullptr && !call->failed()) {
      call->failure_ = std::current_exception();
    }
  }
}

void History::take(const girih_event& event) {
  const size_t index = static_cast<size_t>(event.device);
  if (index >= kMaxDevices) {
    return;
  }
  DeviceHistory& device = devices_[index];
  Context context;
  {
    std::lock_guard<std::mutex> lock(device.mutex);
    const Call* call = Call::newest_;
    context = context_of(device, event, call == nullptr ? nullptr : call->context_);
  }
  if (!recording() && trackers_.empty()) {
    return;
  }
  const bool with_context = when_.load(std::memory_order_relaxed) >= RecordContext::ALLOC;
  TraceEntry entry = make_entry(
      {to_action(event.action),
       static_cast<c10::DeviceIndex>(event.device),
       event.address,
       event.size,
       to_stream(event.stream),
       event.pool,
       with_context ? std::move(context) : nullptr,
       compile_context(),
       t_user_metadata});
  tell(std::move(entry));
}

// A tracker may take locks of its own: those of the contexts and of the ring are free by now, the
// heap's is not.
void History::tell(TraceEntry entry) {
  DeviceHistory& device = devices_[static_cast<size_t>(entry.device_)];
  std::lock_guard<std::recursive_mutex> turn(device.telling);
  trackers_.call(entry);
  keep(std::move(entry));
}

void History::keep(TraceEntry entry) {
  const uint32_t skipped_actions = skipped_actions_.load(std::memory_order_relaxed);
  const bool skipped = ((skipped_actions >> static_cast<uint32_t>(entry.action_)) & 1U) != 0;
  if (recording() && !skipped) {
    DeviceHistory& device = devices_[static_cast<size_t>(entry.device_)];
    std::lock_guard<std::mutex> lock(device.mutex);
    device.entries.push(std::move(entry));
  }
}

// What ends is reported with the context of the call that ended it if there is one, and with the
// context of its beginning otherwise.
History::Context History::context_of(
    DeviceHistory& device,
    const girih_event& event,
    const Context& given) {
  switch (event.action) {
    case GIRIH_ALLOC:
      if (given != nullptr && device.blocks.insert_or_assign(event.address, given).second) {
        ++contexts_kept_;
      }
      return given;
    case GIRIH_FREE_REQUESTED:
    case GIRIH_FREE_COMPLETED: {
      const auto found = device.blocks.find(event.address);
      if (found == device.blocks.end()) {
        return given;
      }
      Context context = given != nullptr ? given : found->second;
      if (event.action == GIRIH_FREE_COMPLETED) {
        device.blocks.erase(found);
        --contexts_kept_;
      }
      return context;
    }
    case GIRIH_SEGMENT_ALLOC:
    case GIRIH_SEGMENT_MAP:
      if (given != nullptr &&
          device.segments.insert_or_assign(event.address, Segment{event.size, given}).second) {
        ++contexts_kept_;
      }
      return given;
    case GIRIH_SEGMENT_FREE:
    case GIRIH_SEGMENT_UNMAP: {
      Context kept = segment_end(device, event);
      return given != nullptr ? given : kept;
    }
    default:
      return given;
  }
}

// Forgets the segments that begin in the range which the event took away, and returns the context
// of the one that it began in. A range may end in the midst of what one event mapped: the front
// stays, and so does its context.
History::Context History::segment_end(DeviceHistory& device, const girih_event& event) {
  auto& segments = device.segments;
  const uint64_t end = event.address + event.size;
  auto next = segments.lower_bound(event.address);
  Context context;
  if (next != segments.end() && next->first < end) {
    context = next->second.context;
  } else if (next != segments.begin()) {
    const auto before = std::prev(next);
    if (event.address < before->first + before->second.size) {
      context = before->second.context;
    }
  }
  while (next != segments.end() && next->first < end) {
    const uint64_t kept_end = next->first + next->second.size;
    Segment rest{kept_end > end ? kept_end - end : 0, next->second.context};
    next = segments.erase(next);
    --contexts_kept_;
    if (rest.size > 0 && segments.emplace(end, std::move(rest)).second) {
      ++contexts_kept_;
    }
  }
  return context;
}

// ---- entries that no heap tells ----

void History::annotate(const std::vector<std::pair<std::string, std::string>>& metadata) {
  if (!recording()) {
    return;
  }
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  AnnotationEntry entry(device, c10::getApproximateTime());
  for (const auto& [name, value] : metadata) {
    entry.recordUserMetadata(name, value);
  }
  std::lock_guard<std::mutex> lock(annotations_mutex_);
  annotations_.push(std::move(entry));
}

void History::annotate_block(EntryFields fields, const std::string& metadata) {
  fields.compile_context = compile_context();
  fields.user_metadata = metadata;
  TraceEntry entry = make_entry(std::move(fields));
  tell(std::move(entry));
}

void History::note_snapshot(c10::DeviceIndex device, uint64_t active_bytes, girih_pool pool) {
  if (!recording() && trackers_.empty()) {
    return;
  }
  const CreateContextFn recorder = recorder_.load();
  const bool with_context = recorder != nullptr && when_.load() >= RecordContext::ALL;
  TraceEntry entry = make_entry(
      {TraceEntry::SNAPSHOT,
       device,
       0,
       active_bytes,
       nullptr,
       pool,
       with_context ? recorder() : nullptr,
       compile_context(),
       t_user_metadata});
  tell(std::move(entry));
}

// ---- what a snapshot tells ----

History::Clock History::clock() {
  auto to_nanoseconds = clock_.makeConverter();
  return [to_nanoseconds](c10::approx_time_t ticks) { return to_nanoseconds(ticks) / 1000; };
}

std::vector<TraceEntry> History::entries(c10::DeviceIndex index, const Clock& clock) {
  DeviceHistory& device = devices_[static_cast<size_t>(index)];
  std::vector<TraceEntry> entries;
  {
    std::lock_guard<std::mutex> lock(device.mutex);
    entries = device.entries.copy();
  }
  for (TraceEntry& entry : entries) {
    entry.time_.t_ = clock(entry.time_.approx_t_);
  }
  return entries;
}

std::vector<AnnotationEntry> History::annotations(const Clock& clock) {
  std::vector<AnnotationEntry> entries;
  {
    std::lock_guard<std::mutex> lock(annotations_mutex_);
    entries = annotations_.copy();
  }
  for (AnnotationEntry& entry : entries) {
    entry.time_.t_ = clock(entry.time_.approx_t_);
  }
  return entries;
}

History::Context History::block_context(c10::DeviceIndex index, uint64_t address) {
  DeviceHistory& device = devices_[static_cast<size_t>(index)];
  std::lock_guard<std::mutex> lock(device.mutex);
  const auto found = device.blocks.find(address);
  return found == device.blocks.end() ? nullptr : found->second;
}

History::Context History::segment_context(c10::DeviceIndex index, uint64_t address) {
  DeviceHistory& device = devices_[static_cast<size_t>(index)];
  std::lock_guard<std::mutex> lock(device.mutex);
  const auto next = device.segments.upper_bound(address);
  if (next == device.segments.begin()) {
    return nullptr;
  }
  const auto& [begin, segment] = *std::prev(next);
  return address < begin + segment.size ? segment.context : nullptr;
}

} // namespace girih
