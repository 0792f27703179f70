// Scopes of pools, captures, checkpoints.
#include "../compat.h"
#include "fake_heap.h"
#include "own_allocator.h"
#include "testing.h"

#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <unordered_set>

using girih::MempoolId_t;
using girih::torch_cuda::get;

namespace {

bool everything(cudaStream_t) {
  return true;
}

// The pool that a request on `stream` is sent to.
uint64_t pool_of(uint64_t stream) {
  get()->raw_delete(get()->raw_alloc_with_stream(1, girih::to_stream(stream)));
  return fake::heap().requests.back().pool.second;
}

// As use_mem_pool has it: all streams of this thread.
std::function<bool(cudaStream_t)> of_this_thread() {
  return [thread = std::this_thread::get_id()](cudaStream_t) {
    return thread == std::this_thread::get_id();
  };
}

#if GIRIH_TORCH_FROM(2, 8)
void create_pool(MempoolId_t pool, const std::shared_ptr<testing::OwnAllocator>& allocator) {
#if GIRIH_TORCH_FROM(2, 11)
  get()->createOrIncrefPool(0, pool, allocator);
#else
  get()->createOrIncrefPool(0, pool, allocator.get());
#endif
}
#endif

std::string calls() {
  std::string text;
  for (const std::string& call : fake::heap().pool_calls) {
    text += (text.empty() ? "" : ", ") + call;
  }
  fake::heap().pool_calls.clear();
  return text;
}

} // namespace

TEST("the newest scope whose filter takes the stream has the request") {
  get()->beginAllocateToPool(0, {0, 1}, everything);
  get()->beginAllocateToPool(0, {0, 2}, [](cudaStream_t stream) {
    return girih::to_girih(stream) == 5;
  });
  EXPECT_EQ(pool_of(5), uint64_t{2});
  EXPECT_EQ(pool_of(6), uint64_t{1});
  get()->endAllocateToPool(0, {0, 1});
  EXPECT_EQ(pool_of(6), uint64_t{0});
  EXPECT_EQ(pool_of(5), uint64_t{2});
  get()->endAllocateToPool(0, {0, 2});
  EXPECT_EQ(pool_of(5), uint64_t{0});
#if GIRIH_TORCH_FROM(2, 13)
  EXPECT_EQ(calls(), std::string("begin 0.1, begin 0.2, end 0.1, end 0.2"));
#else
  EXPECT_EQ(
      calls(),
      std::string("begin 0.1 captures, begin 0.2 captures, end 0.1 captures, end 0.2 captures"));
#endif
}

TEST("a scope of one device takes nothing of another") {
  get()->beginAllocateToPool(1, {0, 1}, everything);
  EXPECT_EQ(pool_of(0), uint64_t{0});
  get()->endAllocateToPool(1, {0, 1});
  calls();
}

TEST("of two threads in one pool, each closes the scope that it opened") {
  std::promise<void> begun;
  std::promise<void> first_has_ended;
  get()->beginAllocateToPool(0, {0, 1}, of_this_thread());
  auto second = std::async(std::launch::async, [&] {
    get()->beginAllocateToPool(0, {0, 1}, of_this_thread());
    begun.set_value();
    first_has_ended.get_future().wait();
    const uint64_t pool = pool_of(0);
    get()->endAllocateToPool(0, {0, 1});
    return pool;
  });
  begun.get_future().wait();
  get()->endAllocateToPool(0, {0, 1});
  const uint64_t pool_of_first = pool_of(0);
  first_has_ended.set_value();
  EXPECT_EQ(second.get(), uint64_t{1});
  EXPECT_EQ(pool_of_first, uint64_t{0});
  calls();
}

TEST("a scope may be closed by another thread than the one that opened it") {
  get()->beginAllocateToPool(0, {0, 1}, everything);
  std::async(std::launch::async, [] { get()->endAllocateToPool(0, {0, 1}); }).get();
  EXPECT_EQ(pool_of(0), uint64_t{0});
  calls();
}

TEST("a scope that is not open cannot be closed") {
  EXPECT_THROWS(c10::Error, "no scope of the pool (0, 9)", get()->endAllocateToPool(0, {0, 9}));
  EXPECT_EQ(calls(), std::string(""));
}

#if GIRIH_TORCH_FROM(2, 13)
TEST("a marked capture is a scope of its own, and the pool has as many users after it") {
  get()->beginAllocateToPool(0, {0, 1}, everything);
  get()->markCaptureBegin(0);
  get()->markCaptureEnd(0);
  get()->endAllocateToPool(0, {0, 1});
  EXPECT_EQ(
      calls(),
      std::string("begin 0.1, begin 0.1 captures, end 0.1 captures, release 0.1, end 0.1"));
  EXPECT_THROWS(c10::Error, "no pool is open", get()->markCaptureBegin(0));
}

TEST("captures of two threads are marked in the pools of their own, whichever ends first") {
  std::promise<void> begun;
  std::promise<void> first_has_ended;
  get()->beginAllocateToPool(0, {0, 1}, of_this_thread());
  auto second = std::async(std::launch::async, [&] {
    get()->beginAllocateToPool(0, {0, 2}, of_this_thread());
    get()->markCaptureBegin(0);
    begun.set_value();
    first_has_ended.get_future().wait();
    const uint64_t pool = pool_of(0);
    get()->markCaptureEnd(0);
    get()->endAllocateToPool(0, {0, 2});
    return pool;
  });
  begun.get_future().wait();
  get()->markCaptureBegin(0);
  const uint64_t pool_of_first = pool_of(0);
  const std::string begins = calls();
  get()->markCaptureEnd(0);
  get()->endAllocateToPool(0, {0, 1});
  const std::string first_ends = calls();
  first_has_ended.set_value();
  EXPECT_EQ(second.get(), uint64_t{2});
  EXPECT_EQ(pool_of_first, uint64_t{1});
  EXPECT_EQ(begins, std::string("begin 0.1, begin 0.2, begin 0.2 captures, begin 0.1 captures"));
  EXPECT_EQ(first_ends, std::string("end 0.1 captures, release 0.1, end 0.1"));
  EXPECT_EQ(calls(), std::string("end 0.2 captures, release 0.2, end 0.2"));
}

TEST("an address that was asked for is refused with the reason") {
  EXPECT_THROWS(c10::Error, "decides itself", get()->allocateWithAddress(1, nullptr));
}
#endif

#if GIRIH_TORCH_FROM(2, 8)
TEST("a pool with an allocator of its own has its memory from there") {
  const auto allocator = std::make_shared<testing::OwnAllocator>();
  testing::OwnAllocator& own = *allocator;
  create_pool({0, 3}, nullptr);
  EXPECT_EQ(calls(), std::string("create 0.3"));
  create_pool({0, 3}, allocator);
  EXPECT_EQ(calls(), std::string("create 0.3, source 0.3"));
  get()->beginAllocateToPool(0, {0, 3}, everything);
  c10::DataPtr block = get()->allocate(1);
  EXPECT(block.get() == own.given.at(0));
  // A garbage collector runs inside it: what it frees is freed after it.
  c10::DataPtr garbage = get()->allocate(1);
  const size_t before = fake::live_blocks();
  const int frees = fake::heap().frees;
  own.while_asked = [&] {
    garbage.clear();
    EXPECT_EQ(fake::heap().frees, frees);
    EXPECT_THROWS(c10::Error, "Let it take what it needs from CUDA", get()->allocate(1));
  };
  c10::DataPtr other = get()->allocate(1);
  own.while_asked = nullptr;
  EXPECT_EQ(fake::live_blocks(), before + 1);
  c10::DataPtr next = get()->allocate(1);
  EXPECT_EQ(fake::live_blocks(), before + 1);
  // What it throws comes out of the request.
  own.while_asked = [] { throw std::runtime_error("NCCL has no more"); };
  EXPECT_THROWS(std::runtime_error, "NCCL has no more", get()->allocate(1));
  own.while_asked = nullptr;
  get()->endAllocateToPool(0, {0, 3});
  block.clear();
  EXPECT(own.taken.back() == own.given.at(0));
  other.clear();
  next.clear();
  EXPECT_EQ(own.taken.size(), own.given.size());
  fake::heap().source_alloc = nullptr;
  calls();
}
#endif

#if GIRIH_TORCH_FROM(2, 11)
TEST("what a pool may do reaches the heap") {
  get()->setUseOnOOM(0, {0, 3}, true);
  get()->setUseOnOOM(0, {0, 3}, false);
  get()->setNoSplit(0, {0, 3});
  get()->releasePool(0, {0, 3});
  EXPECT_EQ(
      calls(),
      std::string("use on oom 0.3 yes, use on oom 0.3 no, no split 0.3, release 0.3"));
  EXPECT_EQ(get()->getPoolUseCount(0, {0, 3}), 7);
}
#endif

TEST("the live blocks of a pool are compared with those expected") {
  get()->beginAllocateToPool(0, {0, 4}, everything);
  c10::DataPtr first = get()->allocate(1);
  c10::DataPtr second = get()->allocate(1);
  get()->endAllocateToPool(0, {0, 4});
  const c10::DataPtr elsewhere = get()->allocate(1);
  EXPECT(get()->checkPoolLiveAllocations(0, {0, 4}, {first.get(), second.get()}));
  EXPECT(!get()->checkPoolLiveAllocations(0, {0, 4}, {first.get()}));
  EXPECT(!get()->checkPoolLiveAllocations(0, {0, 4}, {first.get(), elsewhere.get()}));
  calls();
}

#if GIRIH_TORCH_FROM(2, 8)
TEST("a snapshot of one pool shows that pool alone") {
  get()->beginAllocateToPool(0, {0, 5}, everything);
  const c10::DataPtr block = get()->allocate(1);
  get()->endAllocateToPool(0, {0, 5});
  const auto segments = get()->snapshot({0, 5}).segments;
  EXPECT_EQ(segments.size(), size_t{1});
  EXPECT(segments[0].owner_private_pool_id == (MempoolId_t{0, 5}));
  EXPECT(get()->snapshot().segments.size() > 1);
  calls();
}
#endif

TEST("a pool comes back from a checkpoint with blocks that free themselves") {
  get()->beginAllocateToPool(0, {0, 6}, everything);
  c10::DataPtr block = get()->allocate(1);
  get()->endAllocateToPool(0, {0, 6});
  const auto state = get()->getCheckpointState(0, {0, 6});
  auto delta = get()->setCheckpointPoolState(0, state);
  EXPECT_EQ(delta.ptrs_freed.size(), size_t{1});
  EXPECT(delta.ptrs_freed[0] == block.get());
  EXPECT_EQ(delta.dataptrs_allocd.size(), size_t{1});
  EXPECT(delta.dataptrs_allocd[0].get() == block.get());
  // The old owner has nothing to free any more; the new one has.
  const size_t before = fake::live_blocks();
  block.release_context();
  delta.dataptrs_allocd.clear();
  EXPECT_EQ(fake::live_blocks(), before - 1);
  calls();
}

TEST("a state that another allocator took is refused") {
  struct Foreign : girih::torch_cuda::AllocatorState {};
  EXPECT_THROWS(
      c10::Error, "not taken by Girih",
      get()->setCheckpointPoolState(0, std::make_shared<Foreign>()));
}
