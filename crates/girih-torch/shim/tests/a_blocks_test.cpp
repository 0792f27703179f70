// Installing, blocks, failures, statistics, other processes.
#include "../compat.h"
#include "fake_heap.h"
#include "testing.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <malloc.h>
#include <stdexcept>
#include <thread>

extern "C" {
int girih_shim_install(char* error, size_t error_bytes);
const char* girih_shim_torch_version();
}

using girih::torch_cuda::get;

namespace {

// Freed when the process ends: main.cpp has forbidden it to reach the heap by then.
c10::DataPtr g_held_to_the_end;

c10::Device cuda(int device) {
  return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
}

// A callback such as CUDA IPC registers one: it frees something of ours when memory is short.
c10::DataPtr* g_spare = nullptr;
int g_callbacks = 0;

} // namespace

namespace c10 {
namespace {

struct FreesTheSpare : FreeMemoryCallback {
  bool Execute() override {
    ++g_callbacks;
    if (g_spare == nullptr) {
      return false;
    }
    g_spare->clear();
    g_spare = nullptr;
    return true;
  }
};

REGISTER_FREE_MEMORY_CALLBACK(girih_tests_spare, FreesTheSpare)

} // namespace
} // namespace c10

// libtorch_cuda tells libc10_cuda which devices have been used. It is not here, so the test does.
// No header declares it.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*has)(DeviceIndex));
}
static const bool g_contexts_known = [] {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  return true;
}();

TEST("a heap of another version of the C interface is refused") {
  fake::heap().abi = GIRIH_ABI + 1;
  char error[256] = "";
  EXPECT_EQ(girih_shim_install(error, sizeof error), 1);
  EXPECT(std::string(error).find("compiled again") != std::string::npos);
  fake::heap().abi = GIRIH_ABI;
}

TEST("the reason is cut off where the caller's memory ends") {
  fake::heap().abi = GIRIH_ABI + 1;
  char error[8] = "xxxxxxx";
  EXPECT_EQ(girih_shim_install(error, 5), 1);
  EXPECT_EQ(std::strlen(error), size_t{4});
  EXPECT_EQ(girih_shim_install(nullptr, 0), 1);
  fake::heap().abi = GIRIH_ABI;
}

TEST("once installed it is found by CUDA code and by device type") {
  char error[256] = "";
  EXPECT_EQ(girih_shim_install(error, sizeof error), 0);
  EXPECT_EQ(get()->name(), std::string("girih"));
  EXPECT(c10::GetAllocator(c10::DeviceType::CUDA) == get());
  EXPECT(!get()->initialized());
  get()->init(2);
  EXPECT(get()->initialized());
}

TEST("installing again changes nothing, even after CUDA was started") {
  EXPECT_EQ(girih_shim_install(nullptr, 0), 0);
}

TEST("it names the release that it was compiled for") {
  EXPECT_EQ(
      std::string(girih_shim_torch_version()),
      std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + "." +
          std::to_string(TORCH_VERSION_PATCH));
}

TEST("a request goes to the current device's heap, with its stream, and to the default pool") {
  const c10::cuda::CUDAGuard guard(1);
  const c10::DataPtr block = get()->allocate(700);
  const fake::Request& request = fake::heap().requests.back();
  EXPECT_EQ(request.device, 1);
  EXPECT_EQ(request.size, uint64_t{700});
  EXPECT_EQ(request.stream, uint64_t{0});
  EXPECT(girih::to_torch(request.pool) == girih::to_torch(girih::kDefaultPool));
  EXPECT(block.device() == cuda(1));
  EXPECT(block.get() == block.get_context());
}

TEST("the end of a DataPtr frees its block") {
  const size_t before = fake::live_blocks();
  {
    const c10::DataPtr block = get()->allocate(1);
    EXPECT_EQ(fake::live_blocks(), before + 1);
  }
  EXPECT_EQ(fake::live_blocks(), before);
}

TEST("nothing is asked of the heap for size 0, and the device is known all the same") {
  const size_t asked = fake::heap().requests.size();
  const c10::DataPtr block = get()->allocate(0);
  EXPECT(block.get() == nullptr);
  EXPECT(block.device() == cuda(0));
  EXPECT(get()->raw_alloc(0) == nullptr);
  EXPECT_EQ(fake::heap().requests.size(), asked);
}

TEST("raw blocks come with a stream of the caller's and go by their address") {
  const size_t before = fake::live_blocks();
  auto* stream = reinterpret_cast<cudaStream_t>(uintptr_t{0x77});
  void* block = get()->raw_alloc_with_stream(100, stream);
  EXPECT_EQ(fake::heap().requests.back().stream, uint64_t{0x77});
  get()->raw_delete(block);
  get()->raw_delete(nullptr);
  EXPECT_EQ(fake::live_blocks(), before);
  EXPECT_THROWS(c10::Error, "invalid device pointer", get()->raw_delete(block));
}

TEST("raw_allocate works, which needs a deleter that takes the address") {
  const size_t before = fake::live_blocks();
  void* block = get()->raw_allocate(100);
  get()->raw_deallocate(block);
  EXPECT_EQ(fake::live_blocks(), before);
}

TEST("a clone has the same bytes") {
  const c10::DataPtr block = get()->allocate(4);
  std::memcpy(block.get(), "abc", 4);
  const c10::DataPtr copy = get()->clone(block.get(), 4);
  EXPECT(copy.get() != block.get());
  EXPECT_EQ(std::string(static_cast<const char*>(copy.get())), std::string("abc"));
}

TEST("a failed request is torch.OutOfMemoryError with the heap's text, and observers are told") {
  static std::vector<int64_t> told;
  get()->attachOutOfMemoryObserver(
      [](int64_t device, size_t requested, size_t total, size_t free) {
        told = {device, static_cast<int64_t>(requested), static_cast<int64_t>(total),
                static_cast<int64_t>(free)};
      });
  fake::heap().failures = 1;
  EXPECT_THROWS(
      c10::OutOfMemoryError, "CUDA out of memory. the fake heap is full", get()->allocate(64));
  // What was wanted of the device, what may be held, and what is free.
  EXPECT(told == (std::vector<int64_t>{0, 64 + 512, 2500, 3000}));
}

TEST("words that are there already are not put in front again") {
  fake::heap().failures = 1;
  fake::heap().text = "CUDA out of memory. Really.";
  try {
    get()->allocate(64);
    EXPECT(false);
  } catch (const c10::OutOfMemoryError& error) {
    const std::string text = error.what_without_backtrace();
    EXPECT_EQ(text, std::string("CUDA out of memory. Really."));
  }
}

TEST("callbacks give something back before the heap takes more, and only then") {
  fake::heap().has_room = true;
  c10::DataPtr spare = get()->allocate(64);
  const int callbacks = g_callbacks;
  g_spare = &spare;
  fake::heap().has_room = false;
  const size_t asked = fake::heap().requests.size();
  const c10::DataPtr block = get()->allocate(64);
  EXPECT(spare.get() == nullptr);
  EXPECT_EQ(g_callbacks, callbacks + 1);
  fake::heap().has_room = true;
  const c10::DataPtr other = get()->allocate(64);
  EXPECT_EQ(g_callbacks, callbacks + 1);
  EXPECT_EQ(fake::heap().requests.size(), asked + 2);
}

TEST("a request that fails is made once: callbacks have had their chance") {
  fake::heap().has_room = false;
  fake::heap().failures = 1;
  const size_t asked = fake::heap().requests.size();
  EXPECT_THROWS(c10::OutOfMemoryError, "CUDA out of memory", get()->allocate(64));
  EXPECT_EQ(fake::heap().requests.size(), asked + 1);
  fake::heap().has_room = true;
}

#if GIRIH_TORCH_FROM(2, 12)
TEST("observers of rejections hear of them, and observers of failures do not") {
  static std::promise<std::vector<size_t>> told;
  static int failures = 0;
  get()->attachOomRejectionObserver([](int64_t, size_t wanted, size_t held, size_t total) {
    told.set_value({wanted, held, total});
  });
  get()->attachOutOfMemoryObserver([](int64_t, size_t, size_t, size_t) { ++failures; });
  fake::heap().failures = 1;
  fake::heap().rejects = true;
  EXPECT_THROWS(c10::OutOfMemoryError, "CUDA out of memory", get()->allocate(64));
  fake::heap().rejects = false;
  EXPECT(told.get_future().get() == (std::vector<size_t>{64 + 512, 2000, 4000}));
  EXPECT_EQ(failures, 0);
}
#endif

TEST("a failure of the driver is an error, but not out of memory") {
  fake::heap().failures = 1;
  fake::heap().failure = GIRIH_DRIVER;
  fake::heap().text = "the driver refused";
  try {
    get()->allocate(64);
    EXPECT(false);
  } catch (const c10::OutOfMemoryError&) {
    EXPECT(false);
  } catch (const c10::Error& error) {
    EXPECT(std::string(error.what()).find("the driver refused") != std::string::npos);
  }
  fake::heap().failure = GIRIH_OUT_OF_MEMORY;
}

TEST("a size that has overflowed never reaches the heap") {
  const size_t asked = fake::heap().requests.size();
  EXPECT_THROWS(
      c10::OutOfMemoryError,
      "CUDA out of memory. Tried to allocate more than 1EB memory.",
      get()->allocate(size_t{1} << 60));
  EXPECT_EQ(fake::heap().requests.size(), asked);
}

TEST("a stream is recorded on our blocks and ignored on those of others") {
  const c10::DataPtr block = get()->allocate(64);
  const auto stream = c10::cuda::getStreamFromExternal(
      reinterpret_cast<cudaStream_t>(uintptr_t{0x90}), 0);
  get()->recordStream(block, stream);
  EXPECT_EQ(fake::heap().recorded_streams.back(), uint64_t{0x90});
  EXPECT_EQ(fake::heap().recorded_devices.back(), 0);
  // Nobody knows when it is destroyed: the heap is told that it is there now.
  EXPECT_EQ(fake::heap().seen_streams.back(), uint64_t{0x90});
  get()->recordStream(block, c10::cuda::getStreamFromExternal(
      reinterpret_cast<cudaStream_t>(uintptr_t{0xa0}), 1));
  EXPECT_EQ(fake::heap().recorded_devices.back(), 1);
  const size_t seen = fake::heap().seen_streams.size();
  get()->recordStream(block, c10::cuda::getDefaultCUDAStream(1));
  EXPECT_EQ(fake::heap().recorded_devices.back(), 1);
  EXPECT_EQ(fake::heap().seen_streams.size(), seen);
  const size_t recorded = fake::heap().recorded_streams.size();
  int foreign = 0;
  get()->recordStream(c10::DataPtr(&foreign, cuda(0)), stream);
  get()->recordStream(c10::DataPtr(nullptr, cuda(0)), stream);
  EXPECT_EQ(fake::heap().recorded_streams.size(), recorded);
}

TEST("the base of an address inside a block is that of its segment") {
  const c10::DataPtr block = get()->allocate(64);
  size_t size = 0;
  EXPECT(get()->getBaseAllocation(static_cast<char*>(block.get()) + 8, &size) == block.get());
  EXPECT_EQ(size, size_t{2} << 20);
  EXPECT(get()->getBaseAllocation(block.get(), nullptr) == block.get());
  int foreign = 0;
  EXPECT_THROWS(c10::Error, "invalid device pointer", get()->getBaseAllocation(&foreign, nullptr));
}

TEST("a kernel that failed is told as any call of CUDA tells it, and other refusals as they are") {
  fake::heap().failure = GIRIH_DRIVER;
  fake::heap().failures = 1;
  fake::heap().text =
      "the driver refused cuMemCreate: CUDA_ERROR_ASSERT (710), device-side assert triggered";
#if GIRIH_TORCH_FROM(2, 9)
  int32_t number = 0;
  try {
    get()->allocate(64);
  } catch (const c10::AcceleratorError& error) {
    number = error.get_error_code();
    EXPECT(std::string(error.what()).find("device-side assert triggered") != std::string::npos);
  }
  EXPECT_EQ(number, int32_t{710});
#else
  EXPECT_THROWS(c10::Error, "device-side assert triggered", get()->allocate(64));
#endif
  fake::heap().failures = 1;
  fake::heap().text = "the driver refused cuMemCreate: CUDA_ERROR_NOT_PERMITTED (800)";
  EXPECT_THROWS(c10::Error, "refused cuMemCreate: CUDA_ERROR_NOT_PERMITTED", get()->allocate(64));
  fake::heap().failure = GIRIH_OUT_OF_MEMORY;
  fake::heap().text = "the fake heap is full";
}

TEST("with the cache switched off memory comes from cudaMalloc") {
  const size_t asked = fake::heap().requests.size();
  get()->enable(false);
  EXPECT(!get()->isEnabled());
  {
    const c10::DataPtr block = get()->allocate(64);
    EXPECT(block.get() != nullptr);
    get()->raw_deallocate(get()->raw_allocate(64));
    get()->raw_delete(get()->raw_alloc(64));
    get()->raw_delete(get()->raw_alloc_with_stream(64, nullptr));
  }
  get()->enable(true);
  EXPECT(get()->isEnabled());
  EXPECT_EQ(fake::heap().requests.size(), asked);
}

TEST("statistics keep their names") {
  const auto stats = get()->getDeviceStats(0);
  EXPECT_EQ(stats.segment[1].current, int64_t{1});
  EXPECT_EQ(stats.segment[1].peak, int64_t{2});
  EXPECT_EQ(stats.segment[1].allocated, int64_t{3});
  EXPECT_EQ(stats.segment[1].freed, int64_t{4});
  EXPECT_EQ(stats.requested_bytes[2].peak, int64_t{6});
  EXPECT_EQ(stats.oversize_segments.freed, int64_t{12});
  EXPECT_EQ(stats.num_alloc_retries, int64_t{13});
  EXPECT_EQ(stats.num_ooms, int64_t{14});
  EXPECT_EQ(stats.num_sync_all_streams, int64_t{15});
  EXPECT_EQ(stats.num_device_alloc, int64_t{16});
  EXPECT_EQ(stats.num_device_free, int64_t{17});
  EXPECT_EQ(stats.max_split_size, int64_t{18});
#if GIRIH_TORCH_FROM(2, 12)
  EXPECT_EQ(stats.num_oom_rejections, int64_t{19});
#endif
#if GIRIH_TORCH_FROM(2, 13)
  const auto& of_pool = stats.reserved_bytes_by_private_pools.at({0, 5});
  EXPECT_EQ(of_pool[0].current, int64_t{20});
  EXPECT_EQ(of_pool[1].peak, int64_t{25});
  EXPECT_EQ(of_pool[2].freed, int64_t{31});
#endif
  size_t largest = 5;
  get()->cacheInfo(0, &largest);
  EXPECT_EQ(largest, size_t{12345});
  EXPECT_EQ(get()->getMemoryFraction(0), 0.5);
  EXPECT_THROWS(c10::Error, "invalid fraction", get()->setMemoryFraction(1.5, 0));
}

TEST("the profiler hears of the bytes granted and of the same bytes freed") {
  struct Reporter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t total, size_t, c10::Device) override {
      changes.push_back(bytes);
      last_total = total;
    }
    bool memoryProfilingEnabled() const override {
      return true;
    }
    std::vector<int64_t> changes;
    size_t last_total = 0;
  };
  const auto reporter = std::make_shared<Reporter>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, reporter);
    const c10::DataPtr block = get()->allocate(700);
    EXPECT(reporter->changes == std::vector<int64_t>{1024});
    EXPECT(reporter->last_total >= 1024);
  }
  EXPECT((reporter->changes == std::vector<int64_t>{1024, -1024}));
  const c10::DataPtr unseen = get()->allocate(700);
  EXPECT_EQ(reporter->changes.size(), size_t{2});
}

TEST("a device sees another's memory through the runtime and through the heap") {
  get()->enablePeerAccess(0, 1);
  EXPECT_EQ(fake::heap().peer_calls.back(), std::string("0 sees 1"));
}

TEST("memory of another process is opened once, and closed after its last user") {
  const auto shared = get()->shareIpcHandle(nullptr);
  EXPECT_EQ(shared.handle, std::string("a\0b", 3));
  EXPECT_EQ(shared.offset, ptrdiff_t{4096});
  auto first = get()->getIpcDevPtr(shared.handle);
  auto second = get()->getIpcDevPtr(shared.handle);
  auto other = get()->getIpcDevPtr("another");
  EXPECT(first == second);
  EXPECT(first != other);
  EXPECT_EQ(fake::heap().ipc_opened, 2);
  first.reset();
  EXPECT_EQ(fake::heap().ipc_closed, 0);
  second.reset();
  EXPECT_EQ(fake::heap().ipc_closed, 1);
  EXPECT(get()->getIpcDevPtr(shared.handle) != nullptr);
  EXPECT_EQ(fake::heap().ipc_opened, 3);
}

TEST("memory of another process that was closed leaves nothing behind") {
  const auto open_and_close = [](int from, int to) {
    for (int i = from; i < to; ++i) {
      get()->getIpcDevPtr(std::string(64, 'h') + std::to_string(i)).reset();
    }
  };
  open_and_close(0, 100);
  const size_t before = mallinfo2().uordblks;
  open_and_close(100, 20000);
  EXPECT(mallinfo2().uordblks < before + size_t{64} * 1024);
}

TEST("four threads allocate and free at once") {
  const size_t before = fake::live_blocks();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([] {
      for (int i = 0; i < 2000; ++i) {
        const c10::DataPtr block = get()->allocate(64);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(fake::live_blocks(), before);
}

TEST("a block may be held to the very end of the process") {
  g_held_to_the_end = get()->allocate(64);
}
