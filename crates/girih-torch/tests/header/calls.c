/* Calls through the header, as the C++ class does. `struct table` is made by the test: a pointer
 * to each function, of the type that the header gives it. Returns 0, or the line of what failed. */

#include <string.h>

#define MUST(condition)                                                                            \
  do {                                                                                             \
    if (!(condition)) return __LINE__;                                                             \
  } while (0)

static void count_blocks(void *user, const girih_segment *segment, const girih_block *blocks,
                         size_t count) {
  uint64_t tiled = 0;
  for (size_t k = 0; k < count; k++) tiled += blocks[k].size;
  *(int *)user += tiled == segment->size ? 1 : -1000;
}

static void count_events(void *user, const girih_event *event) {
  if (event->action == GIRIH_ALLOC && event->device == 60) *(int *)user += 1;
}

static void count_addresses(void *user, void *address) { *(int *)user += address != NULL; }

static int blocks(const struct table *girih) {
  const girih_pool pool = {0, 0};
  void *address = (void *)1, *base = NULL;
  uint64_t size = 0;
  int32_t device = -1;
  MUST(girih->girih_abi() == GIRIH_ABI);
  MUST(girih->girih_init(64) == GIRIH_OK && girih->girih_is_initialized());
  MUST(girih->girih_alloc(60, 0, 0, pool, &address) == GIRIH_OK && address == NULL);
  MUST(girih->girih_alloc(60, 5 << 20, 0x1234567890ull, pool, &address) == GIRIH_OK);
  MUST(girih->girih_record_stream(address, 0, 7) == GIRIH_OK);
  MUST(girih->girih_base((char *)address + 9, &base, &size) == GIRIH_OK);
  MUST(base == address && size == 20 << 20);
  MUST(girih->girih_device_of(address, &device) == GIRIH_OK && device == 60);
  MUST(girih->girih_free(address) == GIRIH_OK);
  MUST(girih->girih_free(address) == GIRIH_UNKNOWN);
  MUST(strlen(girih->girih_last_error()) > 20);
  return 0;
}

static int memory(const struct table *girih) {
  const girih_pool pool = {0, 0};
  void *address = (void *)1;
  double fraction = 0;
  uint64_t size = 0;
  girih_oom oom;
  MUST(girih->girih_alloc(60, 1ull << 40, 0, pool, &address) == GIRIH_OUT_OF_MEMORY);
  MUST(address == NULL);
  girih->girih_last_oom(&oom);
  MUST(oom.device == 60 && oom.requested == 1ull << 40 && oom.device_total == 1 << 30);
  MUST(girih->girih_set_memory_fraction(60, 0.5) == GIRIH_OK);
  MUST(girih->girih_memory_fraction(60, &fraction) == GIRIH_OK && fraction == 0.5);
  MUST(girih->girih_set_memory_fraction(60, 1.0) == GIRIH_OK);
  MUST(girih->girih_empty_cache(pool) == GIRIH_OK);
  MUST(girih->girih_largest_free(60, &size) == GIRIH_OK && size == 1 << 30);
  MUST(girih->girih_enable_peer(60, 61) == GIRIH_OK);
  return 0;
}

static int settings(const struct table *girih) {
  girih_settings found;
  const char *text = "max_split_size_mb:64,roundup_power2_divisions:[1:2,>:4],expandable_segments:True";
  MUST(girih->girih_get_settings(&found) == GIRIH_OK && !found.expandable_segments);
  MUST(found.max_split_size == UINT64_MAX && strlen(girih->girih_settings_text()) == 0);
  MUST(girih->girih_change_settings(text) == GIRIH_OK);
  MUST(strcmp(girih->girih_settings_text(), text) == 0);
  MUST(girih->girih_get_settings(&found) == GIRIH_OK && found.expandable_segments);
  MUST(found.max_split_size == 64 << 20 && found.garbage_collection_threshold == 0);
  MUST(found.roundup_power2_divisions[0] == 2 && found.roundup_power2_divisions[15] == 4);
  MUST(!found.release_lock_on_malloc);
  MUST(!found.graph_capture_record_stream_reuse);
  text = "expandable_segments:False,release_lock_on_cudamalloc:True,graph_capture_record_stream_reuse:True";
  MUST(girih->girih_change_settings(text) == GIRIH_OK);
  MUST(girih->girih_get_settings(&found) == GIRIH_OK && !found.expandable_segments);
  MUST(found.max_split_size == UINT64_MAX && found.roundup_power2_divisions[15] == 0);
  MUST(found.release_lock_on_malloc && found.graph_capture_record_stream_reuse);
  text = "release_lock_on_cudamalloc:False,graph_capture_record_stream_reuse:False";
  MUST(girih->girih_change_settings(text) == GIRIH_OK);
  return 0;
}

static void add_reserved(void *user, girih_pool pool, const girih_stat reserved[3]) {
  if (pool.second == 5 && reserved[0].current == reserved[1].current + reserved[2].current) {
    *(int64_t *)user += reserved[0].current;
  }
}

static int pools(const struct table *girih) {
  const girih_pool pool = {0, 5};
  void *address = NULL;
  int32_t users = 0;
  int told = 0;
  bool has_room = false;
  int64_t reserved = 0;
  girih_checkpoint *checkpoint = NULL;
  MUST(girih->girih_pool_create(60, pool) == GIRIH_OK);
  MUST(girih->girih_pool_use_on_oom(60, pool, true) == GIRIH_OK);
  MUST(girih->girih_pool_no_split(60, pool) == GIRIH_OK);
  MUST(girih->girih_pool_one_handle(60, pool) == GIRIH_OK);
  MUST(girih->girih_pool_source(60, pool, NULL, NULL, NULL) == GIRIH_UNKNOWN);
  MUST(girih->girih_pool_begin(60, pool, false) == GIRIH_OK);
  MUST(girih->girih_pool_use_count(60, pool, &users) == GIRIH_OK && users == 2);
  MUST(girih->girih_alloc(60, 1000, 0, pool, &address) == GIRIH_OK);
  MUST(girih->girih_pool_end(60, pool, false) == GIRIH_OK);
  MUST(girih->girih_has_room(60, 1000, 0, pool, &has_room) == GIRIH_OK && !has_room);
  MUST(girih->girih_visit_pools(60, add_reserved, &reserved) == GIRIH_OK && reserved == 2 << 20);
  MUST(girih->girih_checkpoint_take(60, pool, &checkpoint) == GIRIH_OK);
  MUST(girih->girih_checkpoint_restore(60, checkpoint, count_addresses, count_addresses, &told) ==
       GIRIH_OK);
  MUST(told == 2);
  girih->girih_checkpoint_drop(checkpoint);
  MUST(girih->girih_free(address) == GIRIH_OK);
  MUST(girih->girih_has_room(60, 1000, 0, pool, &has_room) == GIRIH_OK && has_room);
  MUST(girih->girih_pool_release(60, pool) == GIRIH_OK);
  MUST(girih->girih_pool_release(60, pool) == GIRIH_OK);
  return 0;
}

static int views(const struct table *girih) {
  const girih_pool pool = {0, 0};
  void *address = NULL;
  girih_stats stats;
  int events = 0, segments = 0;
  girih->girih_set_sink(count_events, &events);
  MUST(girih->girih_alloc(60, 3 << 20, 0, pool, &address) == GIRIH_OK);
  girih->girih_set_sink(NULL, NULL);
  MUST(events == 1);
  MUST(girih->girih_visit(60, count_blocks, &segments) == GIRIH_OK && segments >= 1);
  MUST(girih->girih_get_stats(60, &stats) == GIRIH_OK);
  MUST(stats.allocation[0].current == 1 && stats.allocated_bytes[2].current == 3 << 20);
  MUST(stats.max_split_size == -1 && stats.num_ooms == 1);
  MUST(girih->girih_reset_peak_stats(60) == GIRIH_OK);
  MUST(girih->girih_reset_accumulated_stats(60) == GIRIH_OK);
  MUST(girih->girih_get_stats(60, &stats) == GIRIH_OK && stats.allocation[0].allocated == 0);
  MUST(girih->girih_free(address) == GIRIH_OK);
  return 0;
}

static int other_processes(const struct table *girih) {
  uint8_t handle[GIRIH_IPC_BYTES] = {0};
  size_t bytes = 0;
  uint64_t offset = 0;
  void *address = NULL;
  MUST(girih->girih_ipc_export(&bytes, handle, &bytes, &offset) == GIRIH_UNKNOWN);
  MUST(girih->girih_ipc_open(60, handle, sizeof handle, &address) == GIRIH_UNSUPPORTED);
  MUST(girih->girih_ipc_close(handle) == GIRIH_UNKNOWN);
  return 0;
}

int run(const struct table *girih) {
  int (*const parts[])(const struct table *) = {blocks, memory,          settings, pools,
                                                  views,  other_processes};
  for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
    int line = parts[k](girih);
    if (line != 0) return line;
  }
  return 0;
}
