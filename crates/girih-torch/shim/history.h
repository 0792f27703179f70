// Memory history: what torch.cuda.memory._record_memory_history asks for.
//
// The heaps tell their events to a sink, on the thread that caused them and with the heap locked.
// What the heap cannot know, the shim adds: the caller's context (a stack of frames) was taken just
// before the call, without any lock, and waits in the thread's newest Call for the events of that
// call; compile context and user metadata are thread-local as well.
//
//   allocate ─► gather context ─► girih_alloc ─► events ─► sink ─► trackers
//                     └──── the thread's newest Call ───────┘  └─► ring of the device
//
// A context is also kept by address for as long as its block or segment lives, for snapshots and
// for the entry that reports its end.
#ifndef GIRIH_SHIM_HISTORY_H
#define GIRIH_SHIM_HISTORY_H

#include "compat.h"
#include "flags.h"
#include "observers.h"
#include "ring.h"

#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace girih {

// As many as a c10::DeviceIndex can name.
inline constexpr size_t kMaxDevices = 128;

class History {
 public:
  using Context = std::shared_ptr<GatheredContext>;
  // From the clock's ticks to microseconds since 1970.
  using Clock = std::function<c10::time_t(c10::approx_time_t)>;

  // recordHistory: starts or stops. `when` says which events get a context, `max_entries` how many
  // entries are kept for each device, and bit i of `skipped_actions` that entries of the action i
  // are not kept.
  void record(
      bool enabled,
      CreateContextFn recorder,
      size_t max_entries,
      RecordContext when,
      bool clear,
      uint32_t skipped_actions);
  bool recording() const {
    return recording_.load(std::memory_order_relaxed);
  }
  // attachAllocatorTraceTracker.
  void attach(AllocatorTraceTracker tracker);
  // recordAnnotation. Ignored while nothing is recorded.
  void annotate(const std::vector<std::pair<std::string, std::string>>& metadata);
  // annotateMemory: an entry about a live block, with `metadata`.
  void annotate_block(EntryFields fields, const std::string& metadata);
  // The entry that a snapshot leaves in each device's trace.
  void note_snapshot(c10::DeviceIndex device, uint64_t active_bytes, girih_pool pool);

  static void push_compile_context(std::string context);
  static void pop_compile_context();
  static void set_user_metadata(const std::string& metadata);
  static const std::string& user_metadata();

  // What the snapshot tells. The clock is made once for a snapshot, for it takes a while.
  Clock clock();
  std::vector<TraceEntry> entries(c10::DeviceIndex device, const Clock& clock);
  std::vector<AnnotationEntry> annotations(const Clock& clock);
  // The contexts kept of a block that begins at `address`, and of the segment that it lies in.
  Context block_context(c10::DeviceIndex device, uint64_t address);
  Context segment_context(c10::DeviceIndex device, uint64_t address);

  // A call into the heaps, whose events get the context of this moment if the history's level is
  // at least `level`. The context is gathered here, before any lock is taken.
  //
  // What a tracker throws cannot pass through the heap. It belongs to the call that caused the event:
  // failed() says if there is something, rethrow() throws it, and with the call it is gone. Calls
  // nest, for whatever gathers a context may run Python, and that may free tensors.
  class Call {
   public:
    Call(History& history, RecordContext level);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    bool failed() const {
      return failure_ != nullptr;
    }
    void rethrow();

   private:
    friend class History;
    // The newest call of this thread; null outside all calls.
    static thread_local Call* newest_;

    Context context_;
    std::exception_ptr failure_;
    Call* outer_;
  };

  // Stops listening if nothing wants the events any more. Cheap; called after frees.
  void settle();

 private:
  struct Segment {
    uint64_t size;
    Context context;
  };
  struct DeviceHistory {
    // Held while an entry is told, and taken before the others. PyTorch tells the trackers of the
    // entries of one device one at a time, so they need no lock for what they count by device; those
    // of a snapshot or a note, which no heap tells, must wait for their turn. Recursive, for a tracker
    // that hears of those may cause others.
    std::recursive_mutex telling;
    // Of all below.
    std::mutex mutex;
    Ring<TraceEntry> entries;
    std::unordered_map<uint64_t, Context> blocks;
    std::map<uint64_t, Segment> segments;
  };

  static void sink(void* self, const girih_event* event) noexcept;
  void take(const girih_event& event);
  // Keeps or forgets the context of what the event is about, and returns the event's own.
  Context context_of(DeviceHistory& device, const girih_event& event, const Context& given);
  Context segment_end(DeviceHistory& device, const girih_event& event);
  // The entry goes to the trackers, and to the ring.
  void tell(TraceEntry entry);
  void keep(TraceEntry entry);
  void listen_if_wanted();
  bool wanted() const;

  std::atomic<bool> recording_{false};
  std::atomic<CreateContextFn> recorder_{nullptr};
  std::atomic<RecordContext> when_{RecordContext::NEVER};
  std::atomic<uint32_t> skipped_actions_{0};
  // Contexts kept in all devices: while there are some, their ends are listened for.
  std::atomic<size_t> contexts_kept_{0};
  Observers<AllocatorTraceTracker> trackers_;
  std::array<DeviceHistory, kMaxDevices> devices_;
  std::mutex annotations_mutex_;
  Ring<AnnotationEntry> annotations_;
  // Serializes changes of what is wanted. Never taken inside the sink.
  std::mutex settings_mutex_;
  bool listening_ = false;
  c10::ApproximateClockToUnixTimeConverter clock_;
};

} // namespace girih

#endif
