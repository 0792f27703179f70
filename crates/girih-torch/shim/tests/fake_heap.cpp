// girih.h on top of malloc: two devices, one segment of 2 MiB around every block, events in order.
//
// It does no more than the shim's tests need. Granted sizes are multiples of 512 bytes.
#include "fake_heap.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <unistd.h>

namespace {

constexpr int kDevices = 2;
constexpr uint64_t kSegmentBytes = 2 << 20;
constexpr uint32_t kRegistration = 7;

struct Block {
  fake::Request request;
  uint64_t granted;
};

std::mutex g_mutex;
std::map<void*, Block> g_blocks;
// Segments whose block was freed, with the request of that block.
std::map<void*, fake::Request> g_cached;
girih_stats g_stats[kDevices];
bool g_initialized = false;
std::atomic<bool> g_frees_forbidden{false};
girih_sink g_sink = nullptr;
void* g_sink_user = nullptr;
thread_local std::string t_error = "nothing failed";
thread_local girih_oom t_oom;
thread_local bool t_fails_next = false;

girih_status fail(girih_status status, const std::string& text) {
  t_error = text;
  return status;
}

void tell(int32_t action, uint64_t address, uint64_t size, const fake::Request& request) {
  if (g_sink != nullptr) {
    const girih_event event{address, size, request.stream, request.pool, request.device, action};
    g_sink(g_sink_user, &event);
  }
}

uint64_t number(const void* address) {
  return reinterpret_cast<uintptr_t>(address);
}

bool is_of_source(const fake::Request& request) {
  const fake::Heap& heap = fake::heap();
  return heap.source_alloc != nullptr && request.pool.first == heap.source_pool.first &&
      request.pool.second == heap.source_pool.second;
}

// The segment at `address`, whose last block was that of `request`, goes back to the device.
void give_back(void* address, const fake::Request& request) {
  tell(GIRIH_SEGMENT_FREE, number(address), kSegmentBytes, request);
  g_stats[request.device].reserved_bytes[0].current -= kSegmentBytes;
  if (is_of_source(request)) {
    fake::heap().source_free(fake::heap().source_user, address);
  } else {
    std::free(address);
  }
}

std::string pool_name(const char* call, girih_pool pool) {
  return std::string(call) + " " + std::to_string(pool.first) + "." + std::to_string(pool.second);
}

girih_status log_pool(const char* call, girih_pool pool, const char* suffix = "") {
  std::lock_guard<std::mutex> lock(g_mutex);
  fake::heap().pool_calls.push_back(pool_name(call, pool) + suffix);
  return GIRIH_OK;
}

} // namespace

struct girih_checkpoint {
  std::vector<std::pair<void*, Block>> blocks;
};

namespace fake {

Heap& heap() {
  static Heap heap;
  return heap;
}

size_t live_blocks() {
  std::lock_guard<std::mutex> lock(g_mutex);
  return g_blocks.size();
}

void fail_next_of_this_thread() {
  t_fails_next = true;
}

void tell_of_a_mark() {
  std::lock_guard<std::mutex> lock(g_mutex);
  tell(GIRIH_SEGMENT_UNMAP, 0x1000, kSegmentBytes, {});
}

void forbid_frees() {
  g_frees_forbidden = true;
}

} // namespace fake

extern "C" {

uint32_t girih_abi(void) {
  return fake::heap().abi;
}

const char* girih_last_error(void) {
  return t_error.c_str();
}

girih_status girih_init(int32_t) {
  g_initialized = true;
  return GIRIH_OK;
}

bool girih_is_initialized(void) {
  return g_initialized;
}

girih_status girih_alloc(
    int32_t device, uint64_t size, uint64_t stream, girih_pool pool, void** address) {
  std::lock_guard<std::mutex> lock(g_mutex);
  fake::Heap& heap = fake::heap();
  const fake::Request request{device, size, stream, pool};
  heap.requests.push_back(request);
  if (heap.failures > 0 || t_fails_next) {
    heap.failures -= t_fails_next ? 0 : 1;
    t_fails_next = false;
    t_oom = {device, heap.rejects, size, size + 512, 1000, 2000, 2500, 3000, 4000};
    if (heap.failure == GIRIH_OUT_OF_MEMORY && !heap.rejects) {
      tell(GIRIH_OOM, t_oom.device_free, size, request);
    }
    return fail(heap.failure, heap.text);
  }
  const bool own = is_of_source(request);
  *address = own ? heap.source_alloc(heap.source_user, kSegmentBytes)
                 : std::aligned_alloc(512, kSegmentBytes);
  if (*address == nullptr) {
    t_oom = {device, false, size, kSegmentBytes, 1000, 2000, 2500, 3000, 4000};
    return fail(GIRIH_OUT_OF_MEMORY, "the pool's allocator has no more");
  }
  const uint64_t granted = (size + 511) / 512 * 512;
  tell(GIRIH_SEGMENT_ALLOC, number(*address), kSegmentBytes, request);
  tell(GIRIH_ALLOC, number(*address), size, request);
  g_blocks[*address] = {request, granted};
  g_stats[device].allocated_bytes[0].current += static_cast<int64_t>(granted);
  g_stats[device].reserved_bytes[0].current += kSegmentBytes;
  return GIRIH_OK;
}

girih_status girih_free(void* address) {
  if (g_frees_forbidden) {
    std::fputs("a block was freed after the end\n", stderr);
    _exit(3);
  }
  std::lock_guard<std::mutex> lock(g_mutex);
  const auto found = g_blocks.find(address);
  if (found == g_blocks.end()) {
    return fail(GIRIH_UNKNOWN, "no such block");
  }
  const auto [request, granted] = found->second;
  tell(GIRIH_FREE_REQUESTED, number(address), request.size, request);
  tell(GIRIH_FREE_COMPLETED, number(address), request.size, request);
  g_stats[request.device].allocated_bytes[0].current -= static_cast<int64_t>(granted);
  const fake::Request last = request;
  g_blocks.erase(found);
  ++fake::heap().frees;
  if (fake::heap().caches) {
    g_cached[address] = last;
  } else {
    give_back(address, last);
  }
  return GIRIH_OK;
}

girih_status girih_see_stream(int32_t, uint64_t stream) {
  std::lock_guard<std::mutex> lock(g_mutex);
  fake::heap().seen_streams.push_back(stream);
  return GIRIH_OK;
}

girih_status girih_record_stream(void* address, int32_t device, uint64_t stream) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (g_blocks.count(address) == 0) {
    return fail(GIRIH_UNKNOWN, "no such block");
  }
  fake::heap().recorded_streams.push_back(stream);
  fake::heap().recorded_devices.push_back(device);
  return GIRIH_OK;
}

girih_status girih_base(const void* address, void** base, uint64_t* size) {
  std::lock_guard<std::mutex> lock(g_mutex);
  for (const auto& [first, block] : g_blocks) {
    if (number(first) <= number(address) && number(address) < number(first) + kSegmentBytes) {
      *base = first;
      *size = kSegmentBytes;
      return GIRIH_OK;
    }
  }
  return fail(GIRIH_UNKNOWN, "no such block");
}

girih_status girih_device_of(const void* address, int32_t* device) {
  std::lock_guard<std::mutex> lock(g_mutex);
  const auto found = g_blocks.find(const_cast<void*>(address));
  if (found == g_blocks.end()) {
    return fail(GIRIH_UNKNOWN, "no such block");
  }
  *device = found->second.request.device;
  return GIRIH_OK;
}

girih_status girih_has_room(int32_t, uint64_t, uint64_t, girih_pool, bool* has_room) {
  *has_room = fake::heap().has_room;
  return GIRIH_OK;
}

void girih_last_oom(girih_oom* oom) {
  *oom = t_oom;
}

girih_status girih_empty_cache(girih_pool) {
  std::lock_guard<std::mutex> lock(g_mutex);
  ++fake::heap().empties;
  for (const auto& [address, request] : g_cached) {
    give_back(address, request);
  }
  g_cached.clear();
  return GIRIH_OK;
}

girih_status girih_set_memory_fraction(int32_t, double) {
  return GIRIH_OK;
}

girih_status girih_memory_fraction(int32_t, double* fraction) {
  *fraction = 0.5;
  return GIRIH_OK;
}

girih_status girih_largest_free(int32_t, uint64_t* size) {
  *size = 12345;
  return GIRIH_OK;
}

girih_status girih_enable_peer(int32_t device, int32_t peer) {
  std::lock_guard<std::mutex> lock(g_mutex);
  fake::heap().peer_calls.push_back(
      std::to_string(peer) + " sees " + std::to_string(device));
  return GIRIH_OK;
}

girih_status girih_change_settings(const char* text) {
  if (std::strstr(text, "expandable_segments:False") != nullptr) {
    return fail(GIRIH_UNSUPPORTED, "the fake heap cannot change that");
  }
  fake::heap().texts.push_back(text);
  return GIRIH_OK;
}

girih_status girih_get_settings(girih_settings* settings) {
  *settings = fake::heap().settings;
  return GIRIH_OK;
}

const char* girih_settings_text() {
  return fake::heap().texts.empty() ? "of the beginning" : fake::heap().texts.back().c_str();
}

girih_status girih_pool_create(int32_t, girih_pool pool) {
  return log_pool("create", pool);
}

girih_status girih_pool_release(int32_t, girih_pool pool) {
  return log_pool("release", pool);
}

girih_status girih_pool_use_count(int32_t, girih_pool, int32_t* count) {
  *count = 7;
  return GIRIH_OK;
}

girih_status girih_pool_use_on_oom(int32_t, girih_pool pool, bool use_on_oom) {
  return log_pool("use on oom", pool, use_on_oom ? " yes" : " no");
}

girih_status girih_pool_no_split(int32_t, girih_pool pool) {
  return log_pool("no split", pool);
}

girih_status girih_pool_source(
    int32_t, girih_pool pool, girih_source_alloc alloc, girih_source_free free, void* user) {
  fake::Heap& heap = fake::heap();
  heap.source_pool = pool;
  heap.source_alloc = alloc;
  heap.source_free = free;
  heap.source_user = user;
  return log_pool("source", pool);
}

girih_status girih_pool_begin(int32_t, girih_pool pool, bool captures) {
  return log_pool("begin", pool, captures ? " captures" : "");
}

girih_status girih_pool_end(int32_t, girih_pool pool, bool captures) {
  return log_pool("end", pool, captures ? " captures" : "");
}

girih_status girih_checkpoint_take(int32_t, girih_pool pool, girih_checkpoint** checkpoint) {
  std::lock_guard<std::mutex> lock(g_mutex);
  *checkpoint = new girih_checkpoint;
  for (const auto& [address, block] : g_blocks) {
    if (block.request.pool.first == pool.first && block.request.pool.second == pool.second) {
      (*checkpoint)->blocks.emplace_back(address, block);
    }
  }
  return GIRIH_OK;
}

void girih_checkpoint_drop(girih_checkpoint* checkpoint) {
  delete checkpoint;
}

// Only for a pool that still has all blocks of the checkpoint.
girih_status girih_checkpoint_restore(
    int32_t,
    const girih_checkpoint* checkpoint,
    void (*freed)(void*, void*),
    void (*allocated)(void*, void*),
    void* user) {
  for (const auto& [address, block] : checkpoint->blocks) {
    freed(user, address);
    allocated(user, address);
  }
  return GIRIH_OK;
}

// Each field gets a number of its own, so that none can be mistaken for another.
girih_status girih_get_stats(int32_t device, girih_stats* stats) {
  std::lock_guard<std::mutex> lock(g_mutex);
  *stats = g_stats[device];
  stats->segment[1] = {1, 2, 3, 4};
  stats->requested_bytes[2] = {5, 6, 7, 8};
  stats->oversize_segments = {9, 10, 11, 12};
  stats->num_alloc_retries = 13;
  stats->num_ooms = 14;
  stats->num_sync_all_streams = 15;
  stats->num_device_alloc = 16;
  stats->num_device_free = 17;
  stats->max_split_size = 18;
  stats->num_oom_rejections = 19;
  return GIRIH_OK;
}

girih_status girih_visit_pools(int32_t, girih_pool_visitor visitor, void* user) {
  const girih_stat reserved[3] = {{20, 21, 22, 23}, {24, 25, 26, 27}, {28, 29, 30, 31}};
  visitor(user, {0, 5}, reserved);
  return GIRIH_OK;
}

girih_status girih_reset_peak_stats(int32_t) {
  return GIRIH_OK;
}

girih_status girih_reset_accumulated_stats(int32_t) {
  return GIRIH_OK;
}

void girih_set_storages(
    girih_of_tensor of_tensor,
    girih_owners owners,
    girih_address address,
    girih_take take,
    girih_give give) {
  std::lock_guard<std::mutex> lock(g_mutex);
  fake::heap().of_tensor = of_tensor;
  fake::heap().owners = owners;
  fake::heap().address = address;
  fake::heap().take = take;
  fake::heap().give = give;
}

void girih_set_tensors(
    girih_look look,
    girih_version version,
    girih_share_version share_version,
    girih_current_stream current_stream) {
  std::lock_guard<std::mutex> lock(g_mutex);
  fake::heap().look = look;
  fake::heap().version = version;
  fake::heap().share_version = share_version;
  fake::heap().current_stream = current_stream;
}

void girih_set_sink(girih_sink sink, void* user) {
  std::lock_guard<std::mutex> lock(g_mutex);
  g_sink = sink;
  g_sink_user = user;
  fake::heap().listening = sink != nullptr;
}

girih_status girih_visit(int32_t device, girih_visitor visitor, void* user) {
  std::lock_guard<std::mutex> lock(g_mutex);
  for (const auto& [address, block] : g_blocks) {
    if (block.request.device != device) {
      continue;
    }
    const auto& [owner, size, stream, pool] = block.request;
    const girih_segment segment{
        number(address), kSegmentBytes, stream, pool, owner, kRegistration, true, true};
    (void)size;
    const girih_block blocks[] = {
        {number(address), block.granted, block.request.size, true, true},
        {number(address) + block.granted, kSegmentBytes - block.granted, 0, false, false},
    };
    visitor(user, &segment, blocks, block.granted < kSegmentBytes ? 2 : 1);
  }
  for (const auto& [address, request] : g_cached) {
    if (request.device == device) {
      const girih_segment segment{
          number(address), kSegmentBytes, request.stream, request.pool, device, kRegistration, true,
          true};
      const girih_block free{number(address), kSegmentBytes, 0, false, false};
      visitor(user, &segment, &free, 1);
    }
  }
  return GIRIH_OK;
}

girih_status girih_ipc_export(void*, uint8_t* handle, size_t* handle_bytes, uint64_t* offset) {
  std::memcpy(handle, "a\0b", 3);
  *handle_bytes = 3;
  *offset = 4096;
  return GIRIH_OK;
}

girih_status girih_ipc_open(int32_t, const uint8_t*, size_t handle_bytes, void** address) {
  std::lock_guard<std::mutex> lock(g_mutex);
  ++fake::heap().ipc_opened;
  *address = reinterpret_cast<void*>(0x1000 * handle_bytes);
  return GIRIH_OK;
}

girih_status girih_ipc_close(void*) {
  std::lock_guard<std::mutex> lock(g_mutex);
  ++fake::heap().ipc_closed;
  return GIRIH_OK;
}

} // extern "C"
