/* Makes each stream wait for the work of other streams that its own work must follow.
 *
 * Every stream is a timeline: record() closes a submission of its work and numbers it 1, 2, 3, ... A slot has
 * marks: the number of its last write and of its last use on each stream. Before a command touches a slot,
 * its stream waits for the submissions in the marks that matter:
 *
 *     a read waits for writes; a write waits for all uses (writes count as uses).
 *
 * Work that touches many slots waits once for each other stream, for the last of its submissions that matter.
 *
 * A stream that has waited for submission q of another is also behind all submissions that the other had waited for by
 * then. So each stream keeps a vector of the submissions that it is known to be behind, and order makes no wait
 * that would add nothing. The engine thread has such a vector, too: every command that it enqueues is behind
 * the submissions that it has seen end (query). The device's hazard checker proves all of this from the declared
 * accesses, independently of these marks.
 *
 * The engine unmaps a slot from its chunk's place when it has seen all uses of the slot end. So the next user
 * of the slot, and a fetch of the host copy that an eviction made, are behind those uses without a wait. An
 * updated chunk is dirty: its eviction makes a copy that has waited for the update. State that a restore on
 * the device only reads may be evicted without a copy; its unmapping asks the update stream. The engine
 * copies out a chunk that stays only for a host task, which the manager hands out after the engine has seen
 * that copy end. So these pairs of streams never wait for each other: in for out or update, update for out.
 *
 * A stream cannot wait for the host executor: the engine asks (query) and enqueues afterwards.
 *
 * No thread sleeps for the device while it holds the lock (monitor.h). So a thread that enqueues with the
 * lock must know that the stream has space: the caller makes sure before he takes the lock
 * (TIDE_CAPACITY_COMMANDS, for his next call), the engine asks before it begins a command. The caller's
 * thread fills the compute stream; the engine enqueues only the norm's copy there, between steps.
 *
 * Owns the events, the submission numbers, the streams' vectors, and the slots' marks; all [lock]. Calls the
 * device's events, the tracer, to which it reports each wait, and monitor's assertions.
 */
#ifndef TIDE_POOL_ORDER_H
#define TIDE_POOL_ORDER_H

#include "src/pool/tracer.h"

/* Every wait in src/ and offload/ stands at one of these sites. A test takes each site away in turn; then the
 * hazard checker must report a hazard. Stream sites are named WAITER_AWAITED. */
enum {
    TIDE_SITE_COMPUTE_IN = 1,  /* an op's params have arrived */
    TIDE_SITE_COMPUTE_OUT,     /* the chunk that a gradient overwrites has been copied out */
    TIDE_SITE_COMPUTE_UPDATE,  /* the device's optimizer has written the params */
    TIDE_SITE_OUT_COMPUTE,     /* the compute stream has finished the chunk that is copied out */
    TIDE_SITE_OUT_IN,          /* the host slot is no longer read by the fetch of its former chunk */
    TIDE_SITE_OUT_UPDATE,      /* the update stream has finished the chunk that is copied out */
    TIDE_SITE_UPDATE_COMPUTE,  /* gradients are complete */
    TIDE_SITE_UPDATE_IN,       /* optimizer state has arrived */
    TIDE_SITE_UNMAP_IN,        /* engine: the copy into a chunk evicted unused has ended */
    TIDE_SITE_UNMAP_OUT,       /* engine: an evicted chunk has been copied out */
    TIDE_SITE_UNMAP_COMPUTE,   /* engine: the last use of an evicted chunk has passed */
    TIDE_SITE_UNMAP_UPDATE,    /* engine: a restore has read the state that is evicted without a copy */
    TIDE_SITE_LANE_OUT,        /* engine: the copy out for a host task has arrived */
    TIDE_SITE_LANE_IN,         /* engine: fetches from a host task's slots have ended */
    TIDE_SITE_LANE_DONE,       /* engine: the host task has finished */
    TIDE_SITE_TASK_UPDATE,     /* engine: the device has read a running task's segment table */
    TIDE_SITE_NORM_COMPUTE,    /* engine: the gradient norm has been copied to the host */
    TIDE_SITE_READ_COMPUTE,    /* caller: the bytes of tide_read have arrived */
    TIDE_SITE_STAGING_COMPUTE, /* caller: the staging buffer has been read */
    TIDE_SITE_COUNT,
};

typedef struct tide_marks {
    uint64_t written[TIDE_STREAM_COUNT]; /* submission of the last write on each stream, 0: none */
    uint64_t used[TIDE_STREAM_COUNT];    /* submission of the last read or write on each stream */
    bool filled;                         /* a host slot: written since it was made of zeros */
} tide_marks;

enum { TIDE_ORDER_RING = 256 }; /* the last submissions a stream remembers; older ones count as the oldest */

typedef struct tide_order {
    tide_device *device;
    tide_tracer *tracer;
    tide_event events[TIDE_STREAM_COUNT][TIDE_ORDER_RING];
    uint64_t ids[TIDE_STREAM_COUNT]
                [TIDE_ORDER_RING]; /* the tracer's id of each submission's last command; 0: not traced */
    uint64_t knowledge[TIDE_STREAM_COUNT][TIDE_ORDER_RING][TIDE_STREAM_COUNT]; /* `knows` at each record */
    uint64_t knows[TIDE_STREAM_COUNT]
                  [TIDE_STREAM_COUNT]; /* for each stream, the submissions it is behind now */
    uint64_t recorded[TIDE_STREAM_COUNT];
    uint64_t seen[TIDE_STREAM_COUNT];   /* submissions of work that the engine thread has seen end */
    tide_marks *marks[TIDE_TIER_COUNT]; /* per slot */
} tide_order;

/* Create all events, and marks for so many slots of each tier. NO_MEMORY; destroy frees the marks then, too.
 * The device frees the events at close. */
tide_status tide_order_create(tide_order *order, tide_device *device, tide_tracer *tracer,
                              const uint32_t slots[TIDE_TIER_COUNT]);
void tide_order_destroy(tide_order *order); /* zeroed: allowed */
bool tide_order_is_valid(const tide_order *order);

/* May the next command be enqueued? Without the lock always: it may sleep. With the lock only if the stream
 * has space for TIDE_CAPACITY_COMMANDS. */
bool tide_order_may_enqueue(const tide_order *order, tide_stream stream);

/* Close the submission enqueued on `stream` so far, whose last command is `id` of the tracer; sets its
 * `number`. */
tide_status tide_order_record(tide_order *order, tide_stream stream, uint64_t id, uint64_t *number);

/* The submissions of other streams that work must follow, the last of each, as a stream's submissions end in order. All
 * 0: none. */
typedef struct tide_needs {
    uint64_t numbers[TIDE_STREAM_COUNT];
} tide_needs;

/* Add the submissions that work must follow which reads (write: writes) the marked slot. */
void tide_needs_add(tide_needs *needs, const tide_marks *marks, bool write);

/* Make `stream` wait for the submissions in `needs`: at most one wait for each other stream, for which the stream
 * must have space. The engine fills all streams but the compute stream, so those are behind the submissions that
 * it has seen end. */
tide_status tide_order_wait(tide_order *order, tide_stream stream, const tide_needs *needs);

/* Has submission `number` of `stream` ended? Asks the device if the engine has not seen it end. */
tide_status tide_order_query(tide_order *order, tide_stream stream, uint64_t number, tide_wait_site site,
                             bool *passed);

/* After the device's synchronize, on the engine's thread: count all recorded submissions as seen. */
void tide_order_synchronized(tide_order *order);

/* Mark the slot as used by the submission that tide_order_record closed. */
static inline void tide_marks_set(tide_marks *marks, tide_stream stream, uint64_t number, bool write)
{
    marks->used[stream] = number;
    if (write)
        marks->written[stream] = number;
}

/* The event of a submission, for a thread that waits for it without the lock. */
tide_event tide_order_event(const tide_order *order, tide_stream stream, uint64_t number);

#endif
