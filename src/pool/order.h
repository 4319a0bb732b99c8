/* Makes streams wait for each other: before work that uses a slot is enqueued on one stream, that stream is
 * made to wait for the work on other streams that used the slot before.
 *
 * The work on a stream is numbered in submissions 1, 2, 3, ...: tide_order_record ends one, which is all work
 * enqueued since the last record, with an event. A slot has marks: the number of its last write and of its
 * last use on each stream. Before a command touches a slot, its stream waits for the submissions in the marks
 * that matter:
 *
 *     a read waits for writes; a write waits for all uses (writes count as uses).
 *
 * Work that touches many slots waits at most once for each other stream: for the last of that stream's
 * submissions that matter.
 *
 * A stream that has waited for submission q of another is also behind all submissions that the other had
 * waited for by then. So order keeps a vector for each stream, the last submission of every stream that it is
 * behind, and enqueues no wait that would add nothing (a vector clock). The engine's thread has such a
 * vector, too, of the submissions that it has seen end by a query: every command that it enqueues afterwards
 * is behind them. The device's hazard checker proves all of this from the declared accesses, independently of
 * these marks.
 *
 * The in stream never waits for the out or the update stream, nor the update stream for the out stream, since
 * the engine makes sure of the order before it enqueues. It unmaps a slot from its chunk's address only when
 * it has seen all uses of the slot end; so the next use of the slot, and a fetch of the host copy that the
 * eviction made, come after those uses without a wait. An updated chunk is dirty, so its eviction makes a
 * copy, which has waited for the update. State that a restore on the device only read may be evicted without
 * a copy: then the engine queries the update stream before it unmaps. A chunk that stays on the device is
 * copied out only for a host task, which the manager hands out after the engine has seen the copy end.
 *
 * On the collective stream the caller finishes gradients with options.checks.finish_beside. Before an op's
 * gradients are written over their params there, the compute stream waits for copies of those chunks to the
 * host, and the collective stream for the compute stream. The copies ended long before: a chunk that an op
 * holds was copied out only for a host task, which an abort may have given up. An unmap does not ask about
 * the collective stream: a chunk with gradients is evicted with a copy, which waits for them. An op does not
 * wait for gradients in a chunk whose other params it reads. Parts of the region have marks, too, since that
 * stream uses them.
 *
 * A stream cannot wait for the host executor: the engine queries whether a task has ended there, and enqueues
 * the work that must follow it afterwards.
 *
 * No thread sleeps for the device while it holds the lock (monitor.h). So a thread that enqueues with the
 * lock must know that the stream has space: the caller waits for space for TIDE_CAPACITY_COMMANDS commands
 * before he takes the lock, the engine asks before it begins a command. The caller's thread fills the compute
 * stream; the engine enqueues only the norm's copy there, between steps.
 *
 * Owns the events, the submission numbers, the streams' vectors, and the slots' marks; all [lock]. Calls the
 * device's events, the tracer, to which it reports each wait, and monitor's assertions.
 */
#ifndef TIDE_POOL_ORDER_H
#define TIDE_POOL_ORDER_H

#include "src/pool/tracer.h"

#include <string.h>

/* The places in src/ and offload/ at which a thread or stream waits for work of another. A test leaves out
 * the waits of each site in turn (tide_checks.skip_wait_site); then the hazard checker must report a hazard.
 * Stream sites are named WAITER_AWAITED. */
enum {
    TIDE_SITE_COMPUTE_IN = 1,     /* an op's params have arrived */
    TIDE_SITE_COMPUTE_OUT,        /* the chunk that a gradient overwrites has been copied out */
    TIDE_SITE_COMPUTE_UPDATE,     /* the device's optimizer has written the params */
    TIDE_SITE_OUT_COMPUTE,        /* the compute stream has finished the chunk that is copied out */
    TIDE_SITE_OUT_IN,             /* the host slot is no longer read by the fetch of its former chunk */
    TIDE_SITE_OUT_UPDATE,         /* the update stream has finished the chunk that is copied out */
    TIDE_SITE_UPDATE_COMPUTE,     /* gradients are complete */
    TIDE_SITE_UPDATE_IN,          /* optimizer state has arrived */
    TIDE_SITE_COMPUTE_COLLECTIVE, /* gradients of an earlier op, and their accumulators, are finished */
    TIDE_SITE_OUT_COLLECTIVE,     /* the gradients in the chunk that is copied out are finished */
    TIDE_SITE_UPDATE_COLLECTIVE,  /* gradients are finished */
    TIDE_SITE_COLLECTIVE_COMPUTE, /* the op's kernels have added to the gradients that are finished */
    TIDE_SITE_UNMAP_IN,           /* engine: the copy into a chunk evicted unused has ended */
    TIDE_SITE_UNMAP_OUT,          /* engine: an evicted chunk has been copied out */
    TIDE_SITE_UNMAP_COMPUTE,      /* engine: the last use of an evicted chunk has passed */
    TIDE_SITE_UNMAP_UPDATE,       /* engine: a restore has read the state that is evicted without a copy */
    TIDE_SITE_LANE_OUT,           /* engine: the copy out for a host task has arrived */
    TIDE_SITE_LANE_IN,            /* engine: fetches from a host task's slots have ended */
    TIDE_SITE_LANE_DONE,          /* engine: the host task has finished */
    TIDE_SITE_TASK_UPDATE,        /* engine: the device has read a running task's segment table */
    TIDE_SITE_NORM_COMPUTE,       /* engine: the gradient norm has been copied to the host */
    TIDE_SITE_READ_COMPUTE,       /* caller: the bytes of tide_read have arrived */
    TIDE_SITE_STAGING_COMPUTE,    /* caller: the staging buffer has been read */
    TIDE_SITE_COUNT,
};

typedef struct tide_marks {
    uint64_t written[TIDE_STREAM_COUNT]; /* submission of the last write on each stream, 0: none */
    uint64_t used[TIDE_STREAM_COUNT];    /* submission of the last read or write on each stream */
    bool filled;                         /* a host slot: written since create, so no longer all zeros */
} tide_marks;

enum { TIDE_ORDER_RING = 256 }; /* a stream's last submissions; older ones count as the oldest of these */

typedef struct tide_order {
    tide_device *device;
    tide_tracer *tracer;
    tide_event events[TIDE_STREAM_COUNT][TIDE_ORDER_RING];
    uint64_t ids[TIDE_STREAM_COUNT]
                [TIDE_ORDER_RING]; /* the tracer's id of each submission's last command; 0: not traced */
    uint64_t knowledge[TIDE_STREAM_COUNT][TIDE_ORDER_RING][TIDE_STREAM_COUNT]; /* `knows` at records */
    uint64_t knows[TIDE_STREAM_COUNT]
                  [TIDE_STREAM_COUNT]; /* per stream: the submissions that its next work is behind */
    uint64_t recorded[TIDE_STREAM_COUNT];
    uint64_t seen[TIDE_STREAM_COUNT]; /* the last submission of each stream that the engine has seen end */
    /* by site, which always asks about the same stream: the first submission that a query found running since
     * tide_order_ask_anew; 0: none. Each site asks for itself, so that a test can take any of them away */
    uint64_t unended[TIDE_SITE_COUNT];
    tide_marks *marks[TIDE_TIER_COUNT];         /* per slot */
    tide_marks region_marks[TIDE_REGION_PARTS]; /* of other streams than compute */
} tide_order;

/* Create all events, and marks for `slots` slots of each tier. NO_MEMORY; call destroy then, too, to free the
 * marks. The device frees the events at close. */
tide_status tide_order_create(tide_order *order, tide_device *device, tide_tracer *tracer,
                              const uint32_t slots[TIDE_TIER_COUNT]);
void tide_order_destroy(tide_order *order); /* zeroed: allowed */
bool tide_order_is_valid(const tide_order *order);

/* May this thread enqueue a command on the stream? Without the lock always, since it may then sleep for
 * space; with the lock only if the stream has space for TIDE_CAPACITY_COMMANDS. */
bool tide_order_may_enqueue(const tide_order *order, tide_stream stream);

/* End a submission with the last command enqueued on `stream`, whose tracer id is `id` (0: not traced); sets
 * `number` to the submission's. */
tide_status tide_order_record(tide_order *order, tide_stream stream, uint64_t id, uint64_t *number);

/* The submissions that some work must follow: for each stream the last one, 0: none. A stream's submissions
 * end in order, so its last one is enough. */
typedef struct tide_needs {
    uint64_t numbers[TIDE_STREAM_COUNT];
} tide_needs;

/* Add the submissions that must come before a read (or, with `write`, a write) of the slot with these
 * marks. */
void tide_needs_add(tide_needs *needs, const tide_marks *marks, bool write);

/* Make `stream` wait for the submissions in `needs`: at most one wait for each other stream, for which the
 * stream must have space. On streams other than compute and collective, which are the caller's, the engine is
 * the one that enqueues, so its work is already behind all submissions that the engine has seen end. */
tide_status tide_order_wait(tide_order *order, tide_stream stream, const tide_needs *needs);

/* Has submission `number` of `stream` ended? Asks the device unless the engine has seen it end, or the site
 * has found it or one before it running since the last tide_order_ask_anew. A submission that ends meanwhile
 * wakes the engine for another round. */
tide_status tide_order_query(tide_order *order, tide_stream stream, uint64_t number, tide_wait_site site,
                             bool *passed);

/* Forget which submissions were running. The engine calls it before each round, and after a mapping, which
 * takes long. Within a round many commands wait at one site, and one query answers all of them. */
static inline void tide_order_ask_anew(tide_order *order)
{
    memset(order->unended, 0, sizeof order->unended);
}

/* Call on the engine's thread after the device's synchronize: all recorded submissions have ended. */
void tide_order_synchronized(tide_order *order);

/* Mark the slot as read, or written (`write`), by submission `number` of the stream. */
static inline void tide_marks_set(tide_marks *marks, tide_stream stream, uint64_t number, bool write)
{
    marks->used[stream] = number;
    if (write)
        marks->written[stream] = number;
}

/* The event that ends a submission, so that a thread can wait for it without the lock. */
tide_event tide_order_event(const tide_order *order, tide_stream stream, uint64_t number);

#endif
