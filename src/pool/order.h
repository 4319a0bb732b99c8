/* Which work of which stream must have passed before other work may begin.
 *
 * Every stream is a timeline: record() closes a piece of its work and numbers it 1, 2, 3, ... A slot carries
 * marks: the number of its last write and of its last use on each stream. Before a command touches a slot,
 * the streams of the marks that matter are waited for:
 *
 *     a read waits for writes; a write waits for all uses (writes count as uses).
 *
 * Work that touches many slots waits once for each other stream, for the last of its pieces that matter.
 *
 * A stream that has waited for piece q of another also knows all that other had waited for by then, so each
 * stream keeps a vector of what it knows and a wait that would add nothing is not made. The engine thread has
 * such a vector too: what it has seen pass (query) is known to every command it enqueues. The device's hazard
 * checker proves all of this from the declared accesses, independently of these marks.
 *
 * A slot leaves its chunk's place when the engine has seen all its uses pass, so whoever gets the slot next, and
 * whoever fetches the host copy that an eviction made, is behind them without waiting. An update's chunk is dirty: it
 * leaves with a copy that has waited for the update; the state that a restore there only reads may leave without one,
 * and its unmapping asks the update stream. And a chunk is copied out without leaving only for a host task, which is
 * handed out when that copy has been seen to end. So these pairs never wait for each other: in for out or update,
 * update for out.
 *
 * The host executor can't be waited for by a stream; the engine asks (query) and enqueues afterwards.
 *
 * Nobody sleeps for the device with the lock (monitor.h). So whoever enqueues with it knows that there is room: the
 * caller made it before he took the lock (TIDE_CAPACITY_COMMANDS, for his next call), the engine asks before it begins a
 * command. The compute stream is the caller's; only the norm's copy is the engine's, between steps.
 *
 * Owns events, numbers, what streams know, and the slots' marks; all [lock]. Calls the device's events, the tracer,
 * which is told what is waited for, and monitor's assertions.
 */
#ifndef TIDE_POOL_ORDER_H
#define TIDE_POOL_ORDER_H

#include "src/pool/tracer.h"

/* Every wait in src/ and offload/ stands at one of these sites. A test takes each away in turn; the hazard
 * checker must notice. Stream sites are named WAITER_AWAITED. */
enum {
    TIDE_SITE_COMPUTE_IN = 1,  /* an op's params have arrived */
    TIDE_SITE_COMPUTE_OUT,     /* a gradient is written over a chunk that was being copied out */
    TIDE_SITE_COMPUTE_UPDATE,  /* the device's optimizer has written the params */
    TIDE_SITE_OUT_COMPUTE,     /* what is copied out has been computed */
    TIDE_SITE_OUT_IN,          /* the host slot is no longer read by the fetch of its former chunk */
    TIDE_SITE_OUT_UPDATE,      /* what is copied out has been updated */
    TIDE_SITE_UPDATE_COMPUTE,  /* gradients are complete */
    TIDE_SITE_UPDATE_IN,       /* optimizer state has arrived */
    TIDE_SITE_UNMAP_IN,        /* engine: the copy into a chunk that leaves unused has ended */
    TIDE_SITE_UNMAP_OUT,       /* engine: an evicted chunk has been copied out */
    TIDE_SITE_UNMAP_COMPUTE,   /* engine: the last use of an evicted chunk has passed */
    TIDE_SITE_UNMAP_UPDATE,    /* engine: a restore has read the state that leaves without a copy */
    TIDE_SITE_LANE_OUT,        /* engine: what was copied out for a host task has arrived */
    TIDE_SITE_LANE_IN,         /* engine: fetches from a host task's slots have ended */
    TIDE_SITE_LANE_DONE,       /* engine: the host task has finished */
    TIDE_SITE_TASK_UPDATE,     /* engine: the device has read a running task's segment table */
    TIDE_SITE_NORM_COMPUTE,    /* engine: the gradient norm has been copied to the host */
    TIDE_SITE_READ_COMPUTE,    /* caller: the bytes of tide_read have arrived */
    TIDE_SITE_STAGING_COMPUTE, /* caller: the staging buffer has been read */
    TIDE_SITE_COUNT,
};

typedef struct tide_marks {
    uint64_t written[TIDE_STREAM_COUNT]; /* number of the last write on each stream, 0: none */
    uint64_t used[TIDE_STREAM_COUNT];    /* of the last read or write */
    bool filled;                         /* a host slot: no longer the zeros that it was made of */
} tide_marks;

enum { TIDE_ORDER_RING = 256 }; /* recorded pieces a stream remembers; older ones count as the oldest */

typedef struct tide_order {
    tide_device *device;
    tide_tracer *tracer;
    tide_event events[TIDE_STREAM_COUNT][TIDE_ORDER_RING];
    uint64_t ids[TIDE_STREAM_COUNT]
                [TIDE_ORDER_RING]; /* the tracer's, of each piece's last command; 0: not told */
    uint64_t knowledge[TIDE_STREAM_COUNT][TIDE_ORDER_RING][TIDE_STREAM_COUNT]; /* at the record */
    uint64_t knows[TIDE_STREAM_COUNT][TIDE_STREAM_COUNT];                      /* now */
    uint64_t recorded[TIDE_STREAM_COUNT];
    uint64_t seen[TIDE_STREAM_COUNT];   /* by the engine thread */
    tide_marks *marks[TIDE_TIER_COUNT]; /* per slot */
} tide_order;

/* Creates all events and marks for so many slots of each tier. NO_MEMORY, leaving what destroy frees. The device's close
 * frees the events. */
tide_status tide_order_create(tide_order *order, tide_device *device, tide_tracer *tracer,
                              const uint32_t slots[TIDE_TIER_COUNT]);
void tide_order_destroy(tide_order *order); /* zeroed: allowed */
bool tide_order_is_valid(const tide_order *order);

/* May what is to come be enqueued? Without the lock always: it may sleep. With it only if the stream has room for
 * TIDE_CAPACITY_COMMANDS. */
bool tide_order_may_enqueue(const tide_order *order, tide_stream stream);

/* Close the work enqueued on `stream` so far, command `id` of the tracer's last; `number` identifies it. */
tide_status tide_order_record(tide_order *order, tide_stream stream, uint64_t id, uint64_t *number);

/* What work must follow: pieces of other streams, the last of each, as a stream's pieces end in order. All 0: nothing. */
typedef struct tide_needs {
    uint64_t numbers[TIDE_STREAM_COUNT];
} tide_needs;

/* The work reads (write: writes) the marked slot too. */
void tide_needs_add(tide_needs *needs, const tide_marks *marks, bool write);

/* Make `stream` wait for what its next work needs: one wait for each of the other streams at most, and the stream has
 * room for them. All but the compute stream are filled by the engine and know what it has seen. */
tide_status tide_order_wait(tide_order *order, tide_stream stream, const tide_needs *needs);

/* Has the engine seen piece `number` of `stream` pass? Asks the device if it has not. */
tide_status tide_order_query(tide_order *order, tide_stream stream, uint64_t number, tide_wait_site site,
                             bool *passed);

/* After the device's synchronize, on the engine's thread: all that was recorded has been seen. */
void tide_order_synchronized(tide_order *order);

/* Note the use of a slot by the piece that tide_order_record closes. */
static inline void tide_marks_set(tide_marks *marks, tide_stream stream, uint64_t number, bool write)
{
    marks->used[stream] = number;
    if (write)
        marks->written[stream] = number;
}

/* The event of a piece, for a caller that blocks on it outside the lock. */
tide_event tide_order_event(const tide_order *order, tide_stream stream, uint64_t number);

#endif
