// Pools with an allocator of their own, and frees that come while one runs. See sources.h.
#include "sources.h"

#include "error.h"
#include "flags.h"

#include <exception>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace girih {

namespace {

thread_local int t_running = 0;
thread_local std::exception_ptr t_failure;

// Blocks whose free was put off, and how many allocators run. Both have a flag, so that frees look
// here only then.
struct PutOff {
  std::mutex mutex;
  std::vector<void*> blocks;
  int running = 0;

  void settle_flag() {
    set_flag(kSources, running > 0 || !blocks.empty());
  }
};

PutOff& put_off_blocks() {
  // Never destroyed: blocks are freed until the process has ended.
  static auto* blocks = new PutOff();
  return *blocks;
}

// An allocator of a pool runs on this thread.
class Running {
 public:
  Running() {
    ++t_running;
    count(1);
  }
  ~Running() {
    --t_running;
    count(-1);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  static void count(int change) {
    PutOff& put_off = put_off_blocks();
    std::lock_guard<std::mutex> lock(put_off.mutex);
    put_off.running += change;
    put_off.settle_flag();
  }
};

} // namespace

void PoolSource::attach(c10::DeviceIndex device, girih_pool pool, Allocator allocator) {
  check(girih_pool_source(
      device, pool, &PoolSource::alloc, &PoolSource::free, of(std::move(allocator))));
}

// One for each allocator, kept to the end of the process: its memory goes back to it whenever the pool
// is emptied, which may be after everybody else has let go of it.
PoolSource* PoolSource::of(Allocator allocator) {
  static std::mutex mutex;
  static auto* sources = new std::map<const void*, std::unique_ptr<PoolSource>>();
  std::lock_guard<std::mutex> lock(mutex);
  auto& source = (*sources)[allocator.get()];
  if (source == nullptr) {
    source.reset(new PoolSource(std::move(allocator)));
  }
  return source.get();
}

void* PoolSource::alloc(void* user, uint64_t size) noexcept {
  const Running running;
  try {
    return static_cast<PoolSource*>(user)->allocator_->raw_alloc(size);
  } catch (...) {
    t_failure = std::current_exception();
    return nullptr;
  }
}

void PoolSource::free(void* user, void* address) noexcept {
  // The driver, and with it the allocator's own memory, may be gone.
  if ((flags() & kExiting) != 0) {
    return;
  }
  const Running running;
  try {
    static_cast<PoolSource*>(user)->allocator_->raw_delete(address);
  } catch (...) {
    // The segment is gone for the heap, as it is in PyTorch.
  }
}

bool PoolSource::is_running() {
  return t_running > 0;
}

void PoolSource::put_off(void* address) {
  PutOff& put_off = put_off_blocks();
  std::lock_guard<std::mutex> lock(put_off.mutex);
  put_off.blocks.push_back(address);
}

void PoolSource::catch_up() {
  PutOff& put_off = put_off_blocks();
  std::vector<void*> blocks;
  {
    std::lock_guard<std::mutex> lock(put_off.mutex);
    blocks.swap(put_off.blocks);
    put_off.settle_flag();
  }
  for (void* block : blocks) {
    girih_free(block);
  }
}

void PoolSource::forget() {
  t_failure = nullptr;
}

void PoolSource::rethrow() {
  if (t_failure != nullptr) {
    std::rethrow_exception(std::exchange(t_failure, nullptr));
  }
}

} // namespace girih
