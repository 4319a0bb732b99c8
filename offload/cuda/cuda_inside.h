/* Inside the CUDA device: its one structure, and the operations that its files implement for the table in
 * cuda_device.c. Only files of offload/ include this.
 *
 *   account.c       memory made at start and the place of each slot, as on every device; calls
 *   cuda_setup.c      slots, ranges, region, buffers, mappings
 *   cuda_command.c  launches, copies, events
 *   cuda_state.c    sleep, failure, counters
 *   cuda_device.c   the table; open, close
 *
 * Beneath them, each knowing nothing of this structure: cuda_driver (calls and errors), cuda_memory (device memory),
 * cuda_pinned (host slots), cuda_clock (a stream's moments and times), host_executor (the host executor).
 *
 * Locks, in this order: the account's (the memory lock); a stream's lock; that of a clock or the executor;
 * `state_lock`. The observer is called under a clock's. Memory made at start is read without a lock
 * afterwards, as device.h allows creation at start only.
 */
#ifndef TIDE_OFFLOAD_CUDA_INSIDE_H
#define TIDE_OFFLOAD_CUDA_INSIDE_H

#include "offload/account.h"
#include "offload/cuda/cuda_clock.h"
#include "offload/cuda/cuda_memory.h"
#include "offload/cuda/cuda_pinned.h"
#include "offload/host_arena.h"
#include "offload/host_executor.h"

enum { TIDE_CUDA_STREAMS = TIDE_STREAM_HOST, TIDE_CUDA_MESSAGE_BYTES = 1024 };
_Static_assert(TIDE_STREAM_HOST + 1 == TIDE_STREAM_COUNT, "the host executor is the last stream");

typedef struct tide_cuda_stream {
    pthread_mutex_t lock; /* enqueuing: keeps a command and its entry together */
    cudaStream_t stream;
    tide_cuda_clock clock;
    bool failed; /* an enqueuing did, since the last recovery: of a launch a part may be there */
} tide_cuda_stream;

typedef struct tide_cuda_device {
    tide_account account; /* its lock is the memory lock */
    tide_device_options options;
    uint32_t ordinal;
    char name[112];   /* "GPU 0 (NVIDIA H200)" */
    int32_t node;     /* topology.h */
    uint32_t threads; /* that make memory, at start, where nothing else runs */
    tide_cuda_driver driver;

    tide_cuda_memory memory;     /* memory lock for changes; DEVICE tier */
    tide_cuda_pinned host_slots; /* memory lock for changes */
    tide_host_arena *arena;      /* memory lock */

    tide_cuda_stream streams[TIDE_CUDA_STREAMS];
    tide_host_executor executor;

    pthread_mutex_t state_lock; /* guards the rest */
    pthread_cond_t rung;
    uint64_t doorbell; /* grows when an event completes and at every ring */
    uint64_t ringing;  /* `doorbell` as of the last ring */
    uint32_t asleep;   /* threads parked for events with nothing to look at: recording one wakes them */
    tide_status failure;
    char failure_message[TIDE_CUDA_MESSAGE_BYTES];
    bool place_lost;     /* a chunk's place could not be restored: no recovery */
    _Atomic bool broken; /* a CUDA call failed: no more queries of the streams until recovery */
    uint64_t h2d_bytes, d2h_bytes;
    uint64_t waits[TIDE_WAIT_SITE_COUNT];
} tide_cuda_device;

static inline tide_cuda_device *tide_cuda_device_of(tide_device *device)
{
    return (tide_cuda_device *)device;
}

/* --- cuda_state.c --- */

void tide_cuda_state_lock(tide_cuda_device *device);
void tide_cuda_state_unlock(tide_cuda_device *device);
/* The first failure stays until it is recovered from; its message is the calling thread's. Passes the status on. */
tide_status tide_cuda_fail(tide_cuda_device *device, tide_status status);
/* Fail the device, as tide_cuda_fail, for a CUDA call on a stream: the device makes no more queries of its
 * streams. OK passes. */
tide_status tide_cuda_break(tide_cuda_device *device, tide_status status);
/* The failure, with its message set on the calling thread; TIDE_OK if none. */
tide_status tide_cuda_failure(tide_cuda_device *device);
/* `count` events have completed: the doorbell. */
void tide_cuda_events_completed(tide_cuda_device *device, uint64_t count);
/* An event was recorded: who sleeps with nothing to look at looks again. The state lock is held. */
void tide_cuda_event_recorded(tide_cuda_device *device);
/* Take what has passed on a stream, or on all, off its ring, and ring the doorbell for events among it; or break the
 * device. Nothing on a broken one. */
void tide_cuda_look(tide_cuda_device *device, tide_stream stream);
void tide_cuda_look_at_all(tide_cuda_device *device);

/* Put an event behind what the stream's clock has at its end without one. The stream's lock is held. */
tide_status tide_cuda_mark(tide_cuda_device *device, tide_stream stream);

uint64_t tide_cuda_doorbell(tide_device *device);
tide_status tide_cuda_park(tide_device *device, uint64_t ticket, bool events);
void tide_cuda_ring(tide_device *device);
void tide_cuda_synchronize(tide_device *device);
tide_status tide_cuda_recover(tide_device *device);
uint64_t tide_cuda_now_ns(tide_device *device);
void tide_cuda_statistics(tide_device *device, tide_device_statistics *statistics);

/* --- cuda_setup.c --- */

tide_status tide_cuda_slots_make(tide_device *device, tide_tier tier, uint32_t count);
tide_status tide_cuda_range_make(tide_device *device, uint64_t bytes, void **base);
void tide_cuda_range_undo(tide_device *device, void *base, uint64_t bytes);
tide_status tide_cuda_region_make(tide_device *device, uint64_t bytes, void **address);
tide_status tide_cuda_buffer_make(tide_device *device, const char *name, uint64_t bytes, void **address);
void *tide_cuda_slot_address(tide_device *device, tide_tier tier, uint32_t slot);
tide_status tide_cuda_place_map(tide_device *device, uint32_t slot, void *place);
tide_status tide_cuda_place_unmap(tide_device *device, uint32_t slot, void *place);
void tide_cuda_place_lost(tide_device *device, tide_status status);
/* Give everything back that these made. Nothing runs. */
void tide_cuda_setup_undo(tide_cuda_device *device);

/* --- cuda_command.c --- */

bool tide_cuda_has_capacity(tide_device *device, tide_stream stream, bool wait);
tide_status tide_cuda_launch(tide_device *device, tide_stream stream, const tide_work *work, tide_kernel fn,
                             const void *arguments, size_t argument_bytes);
tide_status tide_cuda_copy_slot(tide_device *device, tide_stream stream, const tide_work *work,
                                tide_tier to_tier, uint32_t to_slot, uint32_t from_slot, uint64_t bytes);
tide_status tide_cuda_copy_bytes(tide_device *device, tide_stream stream, const tide_work *work, void *to,
                                 const void *from, uint64_t bytes, bool to_device);
tide_status tide_cuda_event_record(tide_device *device, tide_event event, tide_stream stream);
tide_status tide_cuda_stream_wait(tide_device *device, tide_stream stream, tide_event event,
                                  tide_wait_site site, uint64_t id);
tide_status tide_cuda_event_query(tide_device *device, tide_event event, tide_wait_site site, bool *done);
tide_status tide_cuda_event_wait(tide_device *device, tide_event event, tide_wait_site site);

#endif
