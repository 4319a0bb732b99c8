/* The internals of the CUDA device: its structure, and the operations that its files implement for the table
 * in cuda_device.c. Only files of offload/ include this.
 *
 *   account.c       the account of memory and mappings, shared by all devices; calls
 *   cuda_setup.c      slots, ranges, region, buffers, mappings
 *   cuda_command.c  launches, copies, events
 *   cuda_state.c    sleep, failure, counters
 *   cuda_device.c   the table; open, close
 *
 * Below them, without knowledge of this structure: cuda_driver (calls and errors), cuda_memory (device
 * memory), cuda_pinned (host slots), cuda_clock (moments and times of a stream), host_executor (the host
 * executor).
 *
 * Locks, in this order: the account's (the memory lock); a stream's; that of a clock or of the executor;
 * `state_lock`. The observer is called under a clock's lock. Memory is made only at start (device.h), so
 * later it is read without a lock.
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
    /* held while enqueuing, so that a command and its entry in the clock stay together */
    pthread_mutex_t lock;
    cudaStream_t stream;
    tide_cuda_clock clock;
    bool failed; /* a launch failed since the last recovery; a part of it may have been enqueued */
} tide_cuda_stream;

typedef struct tide_cuda_device {
    tide_account account; /* its lock is called the memory lock */
    tide_device_options options;
    uint32_t ordinal;
    char name[112];   /* "GPU 0 (NVIDIA H200)" */
    int32_t node;     /* the GPU's NUMA node (topology.h) */
    uint32_t threads; /* how many threads make memory at start */
    tide_cuda_driver driver;

    tide_cuda_memory memory;     /* the DEVICE tier; [memory lock] for changes */
    tide_cuda_pinned host_slots; /* [memory lock] for changes */
    tide_host_arena *arena;      /* [memory lock] */

    tide_cuda_stream streams[TIDE_CUDA_STREAMS];
    tide_host_executor executor;

    pthread_mutex_t state_lock; /* guards the fields below */
    pthread_cond_t rung;
    uint64_t doorbell; /* grows when an event completes and at every ring */
    uint64_t ringing;  /* the value of `doorbell` at the last ring */
    /* how many threads are parked for events while none is pending; recording an event wakes them */
    uint32_t asleep;
    tide_status failure;
    char failure_message[TIDE_CUDA_MESSAGE_BYTES];
    bool place_lost;     /* it is unknown what is mapped at a chunk's address: the device can't recover */
    _Atomic bool broken; /* a CUDA call failed; no stream is queried until recovery */
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
/* Make the device fail, with the calling thread's message, unless it has failed already; the first failure
 * stays until recovery. Returns `status`. */
tide_status tide_cuda_fail(tide_cuda_device *device, tide_status status);
/* Like tide_cuda_fail, after a CUDA call on a stream has failed: the device also stops querying its streams.
 * TIDE_OK does nothing. Returns `status`. */
tide_status tide_cuda_break(tide_cuda_device *device, tide_status status);
/* The failure, with its message set on the calling thread; TIDE_OK: there is none. */
tide_status tide_cuda_failure(tide_cuda_device *device);
/* Ring the doorbell: `count` events have completed. */
void tide_cuda_events_completed(tide_cuda_device *device, uint64_t count);
/* Call after an event was recorded: wakes the threads counted in `asleep`. The state lock is held. */
void tide_cuda_event_recorded(tide_cuda_device *device);
/* Harvest the clock of a stream, or of all streams, and ring the doorbell if recorded moments have passed. A
 * failure breaks the device. Does nothing on a broken device. */
void tide_cuda_look(tide_cuda_device *device, tide_stream stream);
void tide_cuda_look_at_all(tide_cuda_device *device);

/* Mark the last run in the stream's clock (tide_cuda_clock_mark). With the stream's lock. */
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
/* Free everything that these functions made. No command may be running. */
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
