// Many threads over Girih's heaps: no two live blocks share a byte, and nothing is lost.
#include "support.h"

#include <c10/cuda/CUDAGuard.h>

#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <thread>

using namespace heaps;

namespace {

// The live blocks of all threads.
class Live {
 public:
  void add(uint64_t begin, uint64_t size) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto next = blocks_.lower_bound(begin);
    EXPECT(next == blocks_.end() || begin + size <= next->first);
    EXPECT(next == blocks_.begin() || std::prev(next)->second <= begin);
    blocks_.emplace(begin, begin + size);
  }

  // To be called before the block is freed.
  void remove(uint64_t begin) {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_.erase(begin);
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> blocks_;
};

void allocate_and_free(unsigned seed, Live& live) {
  std::mt19937 random(seed);
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(seed % 2));
  const auto device = guard.current_device().index();
  const auto other = c10::cuda::getStreamFromExternal(stream(0x40 + 2 * seed), device);
  std::vector<c10::DataPtr> held;
  for (int round = 0; round < 2000; ++round) {
    const size_t size = 1 + random() % (size_t{1} << (9 + random() % 13));
    c10::DataPtr block = get()->allocate(size);
    live.add(number(block.get()), size);
    if (random() % 8 == 0) {
      get()->recordStream(block, other);
    }
    held.push_back(std::move(block));
    if (held.size() > 10) {
      std::swap(held[random() % held.size()], held.back());
      live.remove(number(held.back().get()));
      held.pop_back();
    }
  }
  for (c10::DataPtr& block : held) {
    live.remove(number(block.get()));
    block.clear();
  }
}

} // namespace

TEST("threads allocate, free, look and keep history at once, and share no byte") {
  const int64_t before[] = {allocated(0), allocated(1)};
  Live live;
  std::atomic<bool> is_done{false};
  std::mutex mutex;
  std::string failure;
  const auto guarded = [&](auto work) {
    return [&, work] {
      try {
        work();
      } catch (const std::exception& error) {
        std::lock_guard<std::mutex> lock(mutex);
        // The others may come of the first.
        failure = failure.empty() ? error.what() : failure;
      }
    };
  };
  std::vector<std::thread> workers;
  for (unsigned seed = 0; seed < 6; ++seed) {
    workers.emplace_back(guarded([seed, &live] { allocate_and_free(seed, live); }));
  }
  std::thread looks(guarded([&] {
    while (!is_done) {
      check_tiling(get()->snapshot());
    }
  }));
  std::thread keeps(guarded([&] {
    while (!is_done) {
      record(RecordContext::ALL, 100);
      testing::stop_history();
      empty_cache();
    }
  }));
  for (std::thread& worker : workers) {
    worker.join();
  }
  is_done = true;
  looks.join();
  keeps.join();
  EXPECT_EQ(failure, std::string());
  EXPECT_EQ(allocated(0), before[0]);
  EXPECT_EQ(allocated(1), before[1]);
}
