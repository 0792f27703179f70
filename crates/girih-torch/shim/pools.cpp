// Scopes of pools: opening, closing, and finding the pool of a request. See pools.h.
#include "pools.h"

#include "error.h"

#include <algorithm>
#include <utility>

namespace girih {

namespace {

// Up to 2.12 PyTorch takes every scope for a capture: it is not told which is one. From 2.13 on
// captures are marked.
constexpr bool kScopesAreCaptures = !GIRIH_TORCH_FROM(2, 13);

// The newest of `items` that is wanted: of this thread if there is one, else of any. The end if
// there is none.
template <typename Items, typename IsWanted>
auto newest(Items& items, IsWanted is_wanted) {
  const auto thread = std::this_thread::get_id();
  auto found = std::find_if(items.rbegin(), items.rend(), [&](const auto& item) {
    return item.thread == thread && is_wanted(item);
  });
  if (found == items.rend()) {
    found = std::find_if(items.rbegin(), items.rend(), is_wanted);
  }
  return found == items.rend() ? items.end() : std::prev(found.base());
}

constexpr auto any = [](const auto&) { return true; };

} // namespace

void Scopes::begin(c10::DeviceIndex index, girih_pool pool, Filter filter) {
  check(girih_pool_begin(index, pool, kScopesAreCaptures));
  {
    Device& device = devices_[static_cast<size_t>(index)];
    std::lock_guard<std::mutex> lock(device.mutex);
    auto scopes = device.scopes ? std::make_shared<List>(*device.scopes) : std::make_shared<List>();
    scopes->push_back({pool, std::move(filter), std::this_thread::get_id()});
    device.scopes = std::move(scopes);
  }
  count_scopes(1);
}

void Scopes::end(c10::DeviceIndex index, girih_pool pool) {
  {
    Device& device = devices_[static_cast<size_t>(index)];
    std::lock_guard<std::mutex> lock(device.mutex);
    auto scopes = device.scopes ? std::make_shared<List>(*device.scopes) : std::make_shared<List>();
    const auto found = newest(*scopes, [&](const Scope& scope) { return scope.pool == pool; });
    TORCH_CHECK(
        found != scopes->end(),
        "endAllocateToPool: no scope of the pool (", pool.first, ", ", pool.second,
        ") is open on device ", static_cast<int>(index));
    scopes->erase(found);
    device.scopes = scopes->empty() ? nullptr : std::move(scopes);
  }
  count_scopes(-1);
  check(girih_pool_end(index, pool, kScopesAreCaptures));
}

// The heap knows a capture as a scope of its own kind. Such a scope counts as a user of the pool,
// which it stops being when the capture ends.
void Scopes::capture_begins(c10::DeviceIndex index) {
  Device& device = devices_[static_cast<size_t>(index)];
  std::lock_guard<std::mutex> lock(device.mutex);
  TORCH_CHECK(
      device.scopes != nullptr,
      "markCaptureBegin: no pool is open on device ", static_cast<int>(index),
      "; a capture needs one before it begins");
  const girih_pool pool = newest(*device.scopes, any)->pool;
  check(girih_pool_begin(index, pool, true));
  device.captures.push_back({pool, std::this_thread::get_id()});
}

void Scopes::capture_ends(c10::DeviceIndex index) {
  Device& device = devices_[static_cast<size_t>(index)];
  std::lock_guard<std::mutex> lock(device.mutex);
  const auto found = newest(device.captures, any);
  if (found == device.captures.end()) {
    return;
  }
  const girih_pool pool = found->pool;
  device.captures.erase(found);
  check(girih_pool_end(index, pool, true));
  check(girih_pool_release(index, pool));
}

girih_pool Scopes::pool_for(c10::DeviceIndex index, cudaStream_t stream) {
  std::shared_ptr<const List> scopes;
  {
    Device& device = devices_[static_cast<size_t>(index)];
    std::lock_guard<std::mutex> lock(device.mutex);
    scopes = device.scopes;
  }
  if (scopes == nullptr) {
    return kDefaultPool;
  }
  const auto taken = std::find_if(
      scopes->rbegin(), scopes->rend(), [&](const Scope& scope) { return scope.filter(stream); });
  return taken == scopes->rend() ? kDefaultPool : taken->pool;
}

void Scopes::count_scopes(int change) {
  std::lock_guard<std::mutex> lock(count_mutex_);
  open_ += change;
  set_flag(kScopes, open_ > 0);
}

} // namespace girih
