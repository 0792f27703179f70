// Pools, captures and checkpoints over Girih's heaps.
#include "support.h"

#include <algorithm>

using namespace heaps;

namespace {

// The bytes that the segments of a pool have.
size_t held_by(MempoolId_t pool) {
  size_t bytes = 0;
  for (const SegmentInfo& segment : get()->snapshot().segments) {
    const bool is_its = segment.owner_private_pool_id == pool;
    bytes += segment.device == 0 && is_its ? segment.total_size : 0;
  }
  return bytes;
}

} // namespace

TEST("a pool has memory of its own, which goes back when nobody uses the pool any more") {
  const MempoolId_t pool{0, 11};
  create_pool(pool);
  c10::DataPtr inside;
  {
    const Scope scope(pool);
    inside = get()->allocate(3 * kMiB);
  }
  const c10::DataPtr outside = get()->allocate(3 * kMiB);
  EXPECT(held_by(pool) >= 3 * kMiB);
  EXPECT(get()->checkPoolLiveAllocations(0, pool, {inside.get()}));
  EXPECT(!get()->checkPoolLiveAllocations(0, pool, {outside.get()}));
  EXPECT(get()->getPoolUseCount(0, pool) >= 1);
  inside.clear();
  EXPECT(get()->checkPoolLiveAllocations(0, pool, {}));
  for (int users = get()->getPoolUseCount(0, pool); users > 0; --users) {
    get()->releasePool(0, pool);
  }
  empty_cache();
  EXPECT_EQ(held_by(pool), size_t{0});
}

TEST("a scope takes the streams that its filter takes") {
  const MempoolId_t pool{0, 12};
  create_pool(pool);
  get()->beginAllocateToPool(
      0, pool, [](cudaStream_t asked) { return girih::to_girih(asked) == 0x30; });
  void* taken = get()->raw_alloc_with_stream(kMiB, stream(0x30));
  void* not_taken = get()->raw_alloc_with_stream(kMiB, stream(0x31));
  get()->endAllocateToPool(0, pool);
  EXPECT(get()->checkPoolLiveAllocations(0, pool, {taken}));
  get()->raw_delete(taken);
  get()->raw_delete(not_taken);
  while (get()->getPoolUseCount(0, pool) > 0) {
    get()->releasePool(0, pool);
  }
}

#if GIRIH_TORCH_FROM(2, 13)
TEST("a marked capture adds no user to the pool that outlives it") {
  const MempoolId_t pool{0, 13};
  create_pool(pool);
  const int users = get()->getPoolUseCount(0, pool);
  c10::DataPtr block;
  {
    const Scope scope(pool);
    const int in_scope = get()->getPoolUseCount(0, pool);
    get()->markCaptureBegin(0);
    block = get()->allocate(kMiB);
    get()->markCaptureEnd(0);
    EXPECT_EQ(get()->getPoolUseCount(0, pool), in_scope);
  }
  EXPECT(get()->checkPoolLiveAllocations(0, pool, {block.get()}));
  EXPECT(get()->getPoolUseCount(0, pool) >= users);
  block.clear();
  while (get()->getPoolUseCount(0, pool) > 0) {
    get()->releasePool(0, pool);
  }
}
#endif

TEST("a checkpoint brings a pool's blocks back to their addresses") {
  const MempoolId_t pool{0, 14};
  create_pool(pool);
  c10::DataPtr kept;
  {
    const Scope scope(pool);
    kept = get()->allocate(3 * kMiB);
  }
  void* address = kept.get();
  const auto state = get()->getCheckpointState(0, pool);
  kept.clear();
  c10::DataPtr later;
  {
    const Scope scope(pool);
    later = get()->allocate(kMiB);
  }
  auto delta = get()->setCheckpointPoolState(0, state);
  EXPECT_EQ(delta.ptrs_freed.size(), size_t{1});
  EXPECT(delta.ptrs_freed[0] == later.get());
  later.release_context();
  EXPECT_EQ(delta.dataptrs_allocd.size(), size_t{1});
  EXPECT(delta.dataptrs_allocd[0].get() == address);
  EXPECT(get()->checkPoolLiveAllocations(0, pool, {address}));
  delta.dataptrs_allocd.clear();
  EXPECT(get()->checkPoolLiveAllocations(0, pool, {}));
  while (get()->getPoolUseCount(0, pool) > 0) {
    get()->releasePool(0, pool);
  }
}
