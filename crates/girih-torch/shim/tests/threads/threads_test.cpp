// Everything that PyTorch may call from several threads, called from several threads at once, for the
// thread sanitizer to watch. A program of its own: what the other tests attach is theirs alone.
#include "../../compat.h"
#include "../fake_heap.h"
#include "../program.h"
#include "../testing.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

extern "C" int girih_shim_install(char* error, size_t error_bytes);

// libtorch_cuda tells libc10_cuda which devices have been used. It is not here, so the test does. No
// header declares it.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*has)(DeviceIndex));
}

using girih::MempoolId_t;
using girih::RecordContext;
using girih::TraceEntry;
using girih::torch_cuda::get;

namespace {

constexpr int kRounds = 200;
constexpr int kDevices = 2;

struct Frame : girih::GatheredContext {};

std::shared_ptr<girih::GatheredContext> new_frame() {
  return std::make_shared<Frame>();
}

// PyTorch calls the trackers of one device one at a time, so a tracker's counts for each device need
// no lock.
long g_tracked[kDevices];
std::atomic<int> g_observed{0};

// ---- what a thread does, over and over ----

void allocate_and_free(int round) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(round % kDevices));
  const c10::DataPtr block = get()->allocate(static_cast<size_t>(64 + round));
  const auto other = c10::cuda::getStreamFromExternal(
      reinterpret_cast<cudaStream_t>(uintptr_t{0x90}), static_cast<c10::DeviceIndex>(round % kDevices));
  get()->recordStream(block, other);
  size_t size = 0;
  get()->getBaseAllocation(block.get(), &size);
  void* raw = get()->raw_alloc_with_stream(100, other.stream());
  get()->raw_delete(raw);
}

// Some blocks are freed by another thread than the one that asked for them.
std::mutex g_handed_on_mutex;
std::vector<c10::DataPtr> g_handed_on;

void hand_on(int) {
  c10::DataPtr block = get()->allocate(512);
  c10::DataPtr taken;
  std::lock_guard<std::mutex> lock(g_handed_on_mutex);
  g_handed_on.push_back(std::move(block));
  if (g_handed_on.size() > 3) {
    taken = std::move(g_handed_on.front());
    g_handed_on.erase(g_handed_on.begin());
  }
}

void run_out_of_memory(int) {
  fake::fail_next_of_this_thread();
  EXPECT_THROWS(c10::OutOfMemoryError, "the fake heap is full", get()->allocate(64));
}

void look(int round) {
  const auto device = static_cast<c10::DeviceIndex>(round % kDevices);
  get()->snapshot();
  get()->getDeviceStats(device);
  get()->isHistoryEnabled();
  get()->checkPoolLiveAllocations(device, {0, 3}, {});
  size_t largest = 0;
  get()->cacheInfo(device, &largest);
  testing::empty_cache();
  get()->resetPeakStats(device);
#if GIRIH_TORCH_FROM(2, 10)
  get()->getExpandableSegmentSizes(device);
#endif
#if GIRIH_TORCH_FROM(2, 12)
  const c10::DataPtr block = get()->allocate(64);
  get()->getContextForPointer(block.get());
#endif
}

void keep_history(int round) {
  static const RecordContext levels[] = {
      RecordContext::NEVER, RecordContext::STATE, RecordContext::ALLOC, RecordContext::ALL};
  const RecordContext when = levels[round % 4];
  const auto recorder = when == RecordContext::NEVER ? nullptr : &new_frame;
  testing::record_history(recorder, static_cast<size_t>(1 + round % 50), when);
  get()->recordAnnotation({{"name", "step"}});
#if GIRIH_TORCH_FROM(2, 8)
  std::string context = "compiled";
  get()->pushCompileContext(context);
#endif
#if GIRIH_TORCH_FROM(2, 10)
  get()->setUserMetadata("layer 3");
#endif
#if GIRIH_TORCH_FROM(2, 14)
  const c10::DataPtr block = get()->allocate(64);
  get()->annotateMemory(block.get(), "weights");
#else
  get()->allocate(64);
#endif
#if GIRIH_TORCH_FROM(2, 8)
  get()->popCompileContext();
#endif
  testing::stop_history();
}

void attach(int round) {
  // They stay for ever: a few, late enough that other threads are at work.
  if (round % 50 == 10) {
    get()->attachAllocatorTraceTracker([](const TraceEntry& entry) { ++g_tracked[entry.device_]; });
    get()->attachOutOfMemoryObserver([](int64_t, size_t, size_t, size_t) { ++g_observed; });
  }
  get()->allocate(64);
}

void use_pools(int round) {
  const auto device = static_cast<c10::DeviceIndex>(round % kDevices);
  const c10::cuda::CUDAGuard guard(device);
  // A pool for each thread, as torch.cuda.MemPool makes them.
  static std::atomic<uint64_t> pools{10};
  thread_local const MempoolId_t pool{0, pools++};
  const auto owner = std::this_thread::get_id();
  get()->beginAllocateToPool(
      device, pool, [owner](cudaStream_t) { return std::this_thread::get_id() == owner; });
  {
    const c10::DataPtr block = get()->allocate(64);
#if GIRIH_TORCH_FROM(2, 13)
    get()->markCaptureBegin(device);
    get()->markCaptureEnd(device);
#endif
    // Only another thread's block could make it false.
    EXPECT(get()->checkPoolLiveAllocations(device, pool, {block.get()}));
    const auto state = get()->getCheckpointState(device, pool);
    EXPECT(state != nullptr);
  }
  get()->endAllocateToPool(device, pool);
  get()->releasePool(device, pool);
}

void share(int round) {
  const auto mapping = get()->getIpcDevPtr("handle " + std::to_string(round % 3));
  EXPECT(mapping != nullptr);
  get()->shareIpcHandle(nullptr);
  get()->enablePeerAccess(0, 1);
}

void profile(int) {
  struct Reporter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      sum += bytes;
    }
    bool memoryProfilingEnabled() const override {
      return true;
    }
    int64_t sum = 0;
  };
  const auto reporter = std::make_shared<Reporter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, reporter);
  get()->allocate(700);
}

void switch_the_cache(int) {
  get()->enable(false);
  get()->allocate(64);
  get()->enable(true);
}

// Runs all of `works` at once, `threads` threads each. Fails with what one of them threw.
void at_once(const std::vector<std::function<void(int)>>& works, int threads) {
  std::mutex mutex;
  std::string failure;
  std::vector<std::thread> all;
  for (const auto& work : works) {
    for (int thread = 0; thread < threads; ++thread) {
      all.emplace_back([&work, &mutex, &failure] {
        try {
          for (int round = 0; round < kRounds; ++round) {
            work(round);
          }
        } catch (const std::exception& error) {
          std::lock_guard<std::mutex> lock(mutex);
          failure = failure.empty() ? error.what() : failure;
        }
      });
    }
  }
  for (std::thread& thread : all) {
    thread.join();
  }
  EXPECT_EQ(failure, std::string());
}

} // namespace

TEST("the allocator is installed") {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  EXPECT_EQ(girih_shim_install(nullptr, 0), 0);
  get()->init(kDevices);
}

TEST("threads allocate and free while history is kept and looked at") {
  at_once({allocate_and_free, keep_history, look}, 2);
  EXPECT_EQ(fake::live_blocks(), size_t{0});
}

TEST("threads use pools, other processes' memory and the profiler") {
  at_once({allocate_and_free, use_pools, share, profile}, 2);
  EXPECT_EQ(fake::live_blocks(), size_t{0});
}

TEST("the cache is switched off and on while blocks are held") {
  at_once({hand_on, profile, look, keep_history, switch_the_cache}, 1);
  g_handed_on.clear();
  EXPECT(get()->isEnabled());
  EXPECT_EQ(fake::live_blocks(), size_t{0});
}

TEST("everything at once, with trackers and observers that come in between") {
  at_once(
      {allocate_and_free, hand_on, run_out_of_memory, look, keep_history, attach, use_pools, share,
       profile},
      1);
  g_handed_on.clear();
  EXPECT_EQ(fake::live_blocks(), size_t{0});
  EXPECT(g_tracked[0] > 0);
  EXPECT(g_observed > 0);
  EXPECT(!get()->isHistoryEnabled());
}
