/* The eviction queue: chunks that leave the device, or are copied out, before another chunk needs their
 * slots.
 *
 * When a use ends and the plan evicts the chunk, the queue takes the chunk in and evicts it as soon as the
 * way out is free enough, so that its copy out begins as early as it can. A chunk whose gradients are
 * complete and whose update runs on the host is copied out, too; if the plan keeps it on the device, its slot
 * stays mapped for the updated values (KEPT).
 *
 * The queue hands out
 *
 *   1. chunks that need no copy;
 *   2. chunks that a request waits for and the host has to update first;
 *   3. chunks whose use is over on the device, by next use, the nearest first; but behind all others those
 *      that are only copied out and can't be updated yet (the norm is not known, and no slot comes free);
 *   4. the rest in the order in which their uses will be over.
 *
 * A chunk that a request or a device task wants on the device again drops out, unless the host has to update
 * it first.
 *
 * Owns the queued chunks, sorted in this order, how many ops have ended for the manager and on the device,
 * and the marks EVICTING, WRITING and KEPT. Calls places, moves, future, pending, victims, priority_buckets.
 */
#ifndef TIDE_CHUNK_EVICTION_QUEUE_H
#define TIDE_CHUNK_EVICTION_QUEUE_H

#include "chunk/victims.h"

/* A use that has not ended on the device yet. Such uses are linked in rings, in the order in which they
 * end. */
typedef struct tide_late_use {
    uint64_t ends; /* the use has ended when this many ops have ended on the device */
    /* a chunk in no ring is linked with itself: its use has ended, or it is not queued */
    uint32_t next, previous;
} tide_late_use;

typedef struct tide_eviction_queue {
    tide_places *places;
    const tide_future *future;
    const tide_pending *pending;
    tide_victims *victims;
    tide_priority_buckets buckets; /* chunks that may be evicted or copied out now */
    uint64_t epoch;                /* the future's epoch for which the buckets are sorted */
    /* one entry for each chunk, then the heads of two rings: chunks to evict, and chunks to copy out */
    tide_late_use *late;
    uint64_t ended;  /* ops that have ended for the manager, which is ahead of the device */
    uint64_t passed; /* those of them that have ended on the device, too */
} tide_eviction_queue;

/* Create an empty queue. NO_MEMORY. A zeroed queue may be destroyed, too. */
tide_status tide_eviction_queue_create(tide_eviction_queue *queue, tide_victims *victims);
void tide_eviction_queue_destroy(tide_eviction_queue *queue);

/* Call when the uses of these chunks have ended for the manager; they end on the device when `ends` ops have
 * ended there. `first_use` is the number of the first of these uses in the plan (TIDE_USE_NONE: no plan).
 * Queues the chunks that the plan evicts or the host updates. */
void tide_eviction_queue_use_ended(tide_eviction_queue *queue, const tide_chunk *chunks, uint32_t count,
                                   uint32_t first_use, uint64_t ends);
/* Call when the first `ends` ops have ended on the device (manager.h). */
void tide_eviction_queue_set_passed(tide_eviction_queue *queue, uint64_t ends);
/* Call when a request wants these chunks: they leave the queue, unless the host has to update them first. */
void tide_eviction_queue_let_stay(tide_eviction_queue *queue, const tide_chunk *chunks, uint32_t count);
/* Makes a command that evicts or copies out the next chunk with one of the marks (EVICTING alone, or WRITING
 * as well). Chunks that need no copy come first; unless `with_copy`, they are the only ones. */
bool tide_eviction_queue_next(tide_eviction_queue *queue, uint32_t marks, bool with_copy,
                              tide_command *command);

/* Check: is every chunk that has not changed since it was sorted in its right bucket? Walks all chunks. */
bool tide_eviction_queue_is_valid(const tide_eviction_queue *queue);

#endif
