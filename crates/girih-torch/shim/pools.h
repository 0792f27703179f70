// Scopes of pools: which pool a request belongs to.
//
// beginAllocateToPool opens a scope on a device with a filter that picks its streams: those of a
// capture, or, for use_mem_pool, all streams of one thread. The heap is told of the scope; which
// requests are in it is decided here, newest scope first.
//
// Threads open and close scopes independently of each other, be it of one pool, and in any order. So
// a scope knows the thread that opened it: what a thread closes or marks is its own. One that a
// thread did not open it may close all the same, for a capture may end on another thread.
//
// Filters are PyTorch's code and may call CUDA, so none is called with a lock held: the list of
// scopes is never changed but replaced.
#ifndef GIRIH_SHIM_POOLS_H
#define GIRIH_SHIM_POOLS_H

#include "compat.h"
#include "flags.h"
#include "history.h"

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace girih {

class Scopes {
 public:
  using Filter = std::function<bool(cudaStream_t)>;

  // beginAllocateToPool: the pool gets one more user, until releasePool.
  void begin(c10::DeviceIndex device, girih_pool pool, Filter filter);
  // endAllocateToPool: closes the newest scope of the pool that this thread opened, or that any did.
  void end(c10::DeviceIndex device, girih_pool pool);

  // markCaptureBegin and markCaptureEnd (torch 2.13 and later): a stream capture begins in the
  // newest scope of the device that this thread opened, or any; or this thread's newest capture
  // ends, or any.
  void capture_begins(c10::DeviceIndex device);
  void capture_ends(c10::DeviceIndex device);

  // The pool of a request on `stream`: that of the newest scope whose filter takes it, or the
  // default pool.
  girih_pool pool_for(c10::DeviceIndex device, cudaStream_t stream);

 private:
  struct Scope {
    girih_pool pool;
    Filter filter;
    std::thread::id thread;
  };
  struct Capture {
    girih_pool pool;
    std::thread::id thread;
  };
  using List = std::vector<Scope>;
  struct Device {
    std::mutex mutex;
    // Oldest first. Null if there are none.
    std::shared_ptr<const List> scopes;
    // The captures that were marked, oldest first.
    std::vector<Capture> captures;
  };

  void count_scopes(int change);

  std::array<Device, kMaxDevices> devices_;
  std::mutex count_mutex_;
  int open_ = 0;
};

} // namespace girih

#endif
