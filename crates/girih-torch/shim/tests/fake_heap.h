// What the tests may ask of the heaps that stand in for Girih's, and tell them to do.
#ifndef GIRIH_SHIM_TESTS_FAKE_HEAP_H
#define GIRIH_SHIM_TESTS_FAKE_HEAP_H

#include <girih.h>

#include <string>
#include <vector>

namespace fake {

struct Request {
  int32_t device;
  uint64_t size;
  uint64_t stream;
  girih_pool pool;
};

struct Heap {
  uint32_t abi = GIRIH_ABI;
  // The next requests that fail, how, and with which text.
  int failures = 0;
  // They are rejections: nothing was tried.
  bool rejects = false;
  // What girih_has_room says.
  bool has_room = false;
  girih_status failure = GIRIH_OUT_OF_MEMORY;
  std::string text = "the fake heap is full";

  // Segments stay when their block is freed, until the cache is emptied.
  bool caches = false;

  // What was asked, newest last.
  std::vector<Request> requests;
  std::vector<uint64_t> recorded_streams;
  // Of each of those, the device.
  std::vector<int32_t> recorded_devices;
  std::vector<uint64_t> seen_streams;
  std::vector<std::string> pool_calls;
  std::vector<std::string> peer_calls;
  // The allocator of the pool that was given one last: requests of the pool take from it.
  girih_pool source_pool{0, 0};
  girih_source_alloc source_alloc = nullptr;
  girih_source_free source_free = nullptr;
  void* source_user = nullptr;
  // How storages are got at.
  girih_of_tensor of_tensor = nullptr;
  girih_owners owners = nullptr;
  girih_address address = nullptr;
  girih_take take = nullptr;
  girih_give give = nullptr;
  // How tensors are looked at.
  girih_look look = nullptr;
  girih_version version = nullptr;
  girih_share_version share_version = nullptr;
  girih_current_stream current_stream = nullptr;
  int frees = 0;
  int empties = 0;
  int ipc_opened = 0;
  int ipc_closed = 0;
  bool listening = false;

  // The settings, and each text that they were changed by. A mode that has expandable segments only.
  girih_settings settings{UINT64_MAX, 0, {0, 0, 4}, true, false, false};
  std::vector<std::string> texts;
};

Heap& heap();
// The blocks that were given and not freed, over all devices.
size_t live_blocks();
// The next request of this thread fails, whatever other threads do meanwhile.
void fail_next_of_this_thread();
// An event that no call of PyTorch's causes, as a heap has one when the program marks a step.
void tell_of_a_mark();
// From now on a free ends the process with an error.
void forbid_frees();

} // namespace fake

#endif
