/* The C interface of Girih's heaps.
 *
 * One heap for each device. Every function may be called from any thread, with or without Python's
 * global lock, and none of them unwinds: a panic inside is caught and comes back as GIRIH_BUG.
 * Sizes are bytes. Streams are driver handles (CUstream, cudaStream_t) as numbers. Pools are
 * PyTorch's MempoolId_t; {0, 0} is the default pool.
 *
 * A heap keeps its lock while it calls an event sink or a visitor: these must not call back.
 */
#ifndef GIRIH_H
#define GIRIH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes whenever anything below does. girih_abi() returns that of the library. */
#define GIRIH_ABI 6
uint32_t girih_abi(void);

typedef enum girih_status {
  GIRIH_OK = 0,
  /* Nothing that is free serves the request and the device gives no more. */
  GIRIH_OUT_OF_MEMORY = 1,
  /* The pointer is of no live block of any heap, or the device or pool does not exist. */
  GIRIH_UNKNOWN = 2,
  /* The driver refused a call for another reason than memory. */
  GIRIH_DRIVER = 3,
  /* What was asked for cannot be done with this kind of memory. */
  GIRIH_UNSUPPORTED = 4,
  /* A panic inside Girih. The heap refuses all further work. */
  GIRIH_BUG = 5,
} girih_status;

/* What went wrong in the last call of this thread that did not return GIRIH_OK, as text for a
 * user. Valid until the next call of this thread. Never null. */
const char *girih_last_error(void);

typedef struct girih_pool {
  uint64_t first;
  uint64_t second;
} girih_pool;

/* ---- life ---- */

/* The process has `device_count` devices. Idempotent. */
girih_status girih_init(int32_t device_count);
/* True once girih_init was called. */
bool girih_is_initialized(void);

/* ---- blocks ---- */

/* Gives `size` bytes for work on `stream` of `device`. A size of 0 gives null and GIRIH_OK. */
girih_status girih_alloc(int32_t device, uint64_t size, uint64_t stream, girih_pool pool,
                         void **address);
/* Takes a block back by its first address. Null is ignored. Work that is already on the block's
 * stream may still use it; other streams must have been recorded. */
girih_status girih_free(void *address);
/* The block is used by `stream`, of `device`, which may be another than the block's, too. An unknown pointer is GIRIH_UNKNOWN: PyTorch hands over
 * foreign pointers (IPC), which the caller ignores. */
girih_status girih_record_stream(void *address, int32_t device, uint64_t stream);
/* There is a stream of this handle now which the program may destroy, and another may have its handle
 * then: to be called before each call that names it. */
girih_status girih_see_stream(int32_t device, uint64_t stream);
/* The first address and the bytes of the driver's allocation, or of the mapped run, that `address`
 * lies in. */
girih_status girih_base(const void *address, void **base, uint64_t *size);
/* The device of a live block. */
girih_status girih_device_of(const void *address, int32_t *device);
/* Whether a request would be served of what the heap holds and has free. False if that cannot be told:
 * whoever asks may then give something back before he makes the request. */
girih_status girih_has_room(int32_t device, uint64_t size, uint64_t stream, girih_pool pool,
                            bool *has_room);

/* What is known of a failed request, for observers. Filled for this thread by a girih_alloc that
 * returned GIRIH_OUT_OF_MEMORY. */
typedef struct girih_oom {
  int32_t device;
  /* The request was refused before anything was given back for it (throw_on_cudamalloc_oom). */
  bool is_rejection;
  uint64_t requested;
  /* What the heap would have had to take from the device. */
  uint64_t needed;
  uint64_t allocated;
  uint64_t reserved;
  /* What the heap may hold: its share of the device, or all of it. */
  uint64_t limit;
  uint64_t device_free;
  uint64_t device_total;
} girih_oom;
void girih_last_oom(girih_oom *oom);

/* ---- memory held ---- */

/* Gives back what is free and whole: of the default pool and of dead pools if `pool` is {0, 0}, of
 * that pool otherwise. All devices. */
girih_status girih_empty_cache(girih_pool pool);
girih_status girih_set_memory_fraction(int32_t device, double fraction);
girih_status girih_memory_fraction(int32_t device, double *fraction);
/* The largest block that is free or that the device could give at this moment. */
girih_status girih_largest_free(int32_t device, uint64_t *size);
/* `peer` may access the memory of `device`, present and future. */
girih_status girih_enable_peer(int32_t device, int32_t peer);

/* ---- settings ---- */

/* Changes the settings of the caching allocator, of all heaps present and future. `text` is in the
 * words of PYTORCH_CUDA_ALLOC_CONF: splitting, rounding and garbage collection return to their
 * defaults first, what else it does not name stays, and what is not known is left out. Memory that is
 * held stays as it is. Whether segments are expandable stays too where the mode decides on it: the user is
 * told, and the call has done the rest. */
girih_status girih_change_settings(const char *text);

typedef struct girih_settings {
  /* UINT64_MAX without a limit. */
  uint64_t max_split_size;
  /* 0 is off. */
  double garbage_collection_threshold;
  /* By power of two from 1 MiB on; 0 is off. */
  uint32_t roundup_power2_divisions[16];
  /* Segments are expandable, or stitched. */
  bool expandable_segments;
  /* Segments are taken from the device without the lock of a heap. */
  bool release_lock_on_malloc;
  /* What other streams used within a capture is used again within it, where the driver tells of graphs. */
  bool graph_capture_record_stream_reuse;
} girih_settings;
/* The settings that hold now. */
girih_status girih_get_settings(girih_settings *settings);
/* The text that was set last. Never null; valid until the next call of this thread. */
const char *girih_settings_text(void);

/* ---- pools ---- */

/* Makes a pool, or adds a user to it. */
girih_status girih_pool_create(int32_t device, girih_pool pool);
girih_status girih_pool_release(int32_t device, girih_pool pool);
girih_status girih_pool_use_count(int32_t device, girih_pool pool, int32_t *count);
girih_status girih_pool_use_on_oom(int32_t device, girih_pool pool, bool use_on_oom);
girih_status girih_pool_no_split(int32_t device, girih_pool pool);
/* The pool takes its memory in allocations of the device, never in pages: each of its segments is one
 * piece, which can be named by one handle. To be called between girih_pool_create and the pool's first
 * scope. No graph may be captured in it: what is free in it goes back when the cache is emptied. */
girih_status girih_pool_one_handle(int32_t device, girih_pool pool);
/* The pool takes its memory from an allocator of its own, never in pages: `alloc` gives bytes or null,
 * `free` takes back what it gave. Both are called with `user` and with the heap locked, on any thread,
 * until the process ends: they must not call back. With `release_lock_on_cudamalloc` `alloc` may be
 * called without the lock, on several threads at once. To be called between girih_pool_create and the
 * pool's first request; again with the same functions and `user` it does nothing. */
typedef void *(*girih_source_alloc)(void *user, uint64_t size);
typedef void (*girih_source_free)(void *user, void *address);
girih_status girih_pool_source(int32_t device, girih_pool pool, girih_source_alloc alloc,
                               girih_source_free free, void *user);
/* Opens and closes a scope. Which requests belong to it is the caller's to say, by the pool that
 * it hands to girih_alloc. `captures` is true if a graph capture comes with it. */
girih_status girih_pool_begin(int32_t device, girih_pool pool, bool captures);
girih_status girih_pool_end(int32_t device, girih_pool pool, bool captures);

/* The blocks of a pool, to be brought back later (graph trees). */
typedef struct girih_checkpoint girih_checkpoint;
girih_status girih_checkpoint_take(int32_t device, girih_pool pool, girih_checkpoint **checkpoint);
void girih_checkpoint_drop(girih_checkpoint *checkpoint);
/* Frees every live block of the pool and allocates again those of the checkpoint, each at its
 * address. `freed` and `allocated` are told of each address. */
girih_status girih_checkpoint_restore(int32_t device, const girih_checkpoint *checkpoint,
                                      void (*freed)(void *user, void *address),
                                      void (*allocated)(void *user, void *address), void *user);

/* ---- statistics: the fields of c10::CachingDeviceAllocator::DeviceStats ---- */

typedef struct girih_stat {
  int64_t current;
  int64_t peak;
  int64_t allocated;
  int64_t freed;
} girih_stat;

typedef struct girih_stats {
  /* Each: both pools, small requests, large requests. */
  girih_stat allocation[3];
  girih_stat segment[3];
  girih_stat active[3];
  girih_stat inactive_split[3];
  girih_stat allocated_bytes[3];
  girih_stat reserved_bytes[3];
  girih_stat active_bytes[3];
  girih_stat inactive_split_bytes[3];
  girih_stat requested_bytes[3];
  girih_stat oversize_allocations;
  girih_stat oversize_segments;
  int64_t num_alloc_retries;
  int64_t num_ooms;
  int64_t num_sync_all_streams;
  int64_t num_device_alloc;
  int64_t num_device_free;
  int64_t num_oom_rejections;
  int64_t max_split_size;
} girih_stats;

girih_status girih_get_stats(int32_t device, girih_stats *stats);
girih_status girih_reset_peak_stats(int32_t device);
girih_status girih_reset_accumulated_stats(int32_t device);

/* Called for each private pool that holds or held memory of the device, with the bytes of it: both
 * size classes, small requests, large requests (reserved_bytes_by_private_pools). */
typedef void (*girih_pool_visitor)(void *user, girih_pool pool, const girih_stat reserved[3]);
girih_status girih_visit_pools(int32_t device, girih_pool_visitor visitor, void *user);

/* ---- what happened and what is ---- */

/* Codes of `action`. The first seven are those of TraceEntry::Action. */
typedef enum girih_action {
  GIRIH_ALLOC = 0,
  GIRIH_FREE_REQUESTED = 1,
  GIRIH_FREE_COMPLETED = 2,
  GIRIH_SEGMENT_ALLOC = 3,
  GIRIH_SEGMENT_FREE = 4,
  GIRIH_SEGMENT_MAP = 5,
  GIRIH_SEGMENT_UNMAP = 6,
  GIRIH_OOM = 7,
} girih_action;

typedef struct girih_event {
  /* For GIRIH_OOM the device's free bytes. */
  uint64_t address;
  uint64_t size;
  uint64_t stream;
  girih_pool pool;
  int32_t device;
  int32_t action;
} girih_event;

typedef void (*girih_sink)(void *user, const girih_event *event);
/* Each event of every heap goes to `sink`, on the thread that caused it, while the heap's lock is
 * held. Null takes the sink away; after the call it is not called any more. */
void girih_set_sink(girih_sink sink, void *user);

typedef struct girih_segment {
  uint64_t address;
  uint64_t size;
  uint64_t stream;
  girih_pool pool;
  int32_t device;
  /* How many had come before it on this device. */
  uint32_t registration;
  bool is_large;
  bool is_expandable;
} girih_segment;

typedef struct girih_block {
  uint64_t address;
  uint64_t size;
  /* 0 for a free block. */
  uint64_t requested;
  bool allocated;
  /* Allocated, or freed and still in use by a stream. */
  bool active;
} girih_block;

/* Called for each segment by address, with its blocks, which tile it. */
typedef void (*girih_visitor)(void *user, const girih_segment *segment, const girih_block *blocks,
                              size_t block_count);
girih_status girih_visit(int32_t device, girih_visitor visitor, void *user);

/* ---- storages ---- */

/* What swapping does with a storage, a c10::StorageImpl by its address, that saved tensors keep alive. None of them
 * calls this library, takes a lock, or needs Python; and none throws. */
/* The storage of a tensor, a c10::TensorImpl by its address, with the bytes that it has. 0 if it has none. */
typedef uint64_t (*girih_of_tensor)(uint64_t tensor, uint64_t *size);
/* The tensors over it, and who else has it. */
typedef uint64_t (*girih_owners)(uint64_t storage);
/* Where its bytes are now; 0 if it has none, or if they are not as girih_alloc gave them: another process or another
 * storage has them too. */
typedef uint64_t (*girih_address)(uint64_t storage);
/* Takes its bytes out, which the caller frees. Their address. */
typedef uint64_t (*girih_take)(uint64_t storage);
/* Puts bytes into one that has none; its end frees them with girih_free. */
typedef void (*girih_give)(uint64_t storage, uint64_t address);
/* From now on storages are got at with these. The first call of the process counts. */
void girih_set_storages(girih_of_tensor of_tensor, girih_owners owners, girih_address address,
                        girih_take take, girih_give give);

/* ---- tensors ---- */

#define GIRIH_SHAPE_MAX 8
/* What the hooks of saved tensors need to know of one. */
typedef struct girih_tensor {
  /* Its storage, a c10::StorageImpl, and the bytes that it has. */
  uint64_t storage;
  uint64_t size;
  /* Where they begin. */
  uint64_t address;
  /* How often it was changed in place. */
  int64_t version;
  /* Of the GPU that it is on; -1 for the host. */
  int32_t device;
  /* Bytes of an element. */
  uint32_t element_size;
  uint32_t dimensions;
  /* False if it is certain to have no graph. */
  bool may_have_graph;
  /* The first dimensions. */
  uint64_t shape[GIRIH_SHAPE_MAX];
} girih_tensor;

/* All of them take tensors, c10::TensorImpl by their addresses, that somebody keeps alive. None calls this library,
 * takes a lock, or needs Python. */
/* Describes one. False if it is no plain one: without a storage, or of a kind that Python or a transform of functions
 * stands behind. */
typedef bool (*girih_look)(uint64_t tensor, girih_tensor *seen);
/* How often it was changed in place; -1 if that is not counted. */
typedef int64_t (*girih_version)(uint64_t tensor);
/* From now on changes in place of either are counted as of both. `tensor` is over the storage of `of`, and nobody else
 * has it yet. */
typedef void (*girih_share_version)(uint64_t tensor, uint64_t of);
/* The stream of the calling thread. */
typedef uint64_t (*girih_current_stream)(int32_t device);
/* From now on tensors are looked at with these. The first call of the process counts. */
void girih_set_tensors(girih_look look, girih_version version, girih_share_version share_version,
                       girih_current_stream current_stream);

/* ---- other processes ---- */

#define GIRIH_IPC_BYTES 128
/* Describes the memory that `address` lies in, for another process of this machine; `offset` is
 * that of the address from its beginning. */
girih_status girih_ipc_export(void *address, uint8_t handle[GIRIH_IPC_BYTES], size_t *handle_bytes,
                              uint64_t *offset);
/* Maps memory of another process. The same memory may be opened several times; each opening is
 * closed once. */
girih_status girih_ipc_open(int32_t device, const uint8_t *handle, size_t handle_bytes,
                            void **address);
girih_status girih_ipc_close(void *address);

#ifdef __cplusplus
}
#endif
#endif
