/* The eviction queue: chunks to evict from the device, or only to copy to the host, before another chunk
 * needs their slots.
 *
 * When a use ends and the plan evicts the chunk, the chunk enters the queue and is evicted as soon as the
 * link to the host has space for its copy, so that the copy begins early. A chunk whose gradients are
 * complete and whose update runs on the host enters the queue, too: it is copied to the host and, if the plan
 * keeps it on the device, its slot stays mapped for the updated values (KEPT).
 *
 * Commands for chunks come in this order:
 *
 *   1. chunks that need no copy;
 *   2. chunks that a request waits for and the host has to update first;
 *   3. chunks whose use is over on the device, by next use, the nearest first; but last of all those
 *      that are only copied out and can't be updated yet (the norm is not known, and no slot comes free);
 *   4. the rest in the order in which their uses will be over.
 *
 * A chunk that a request or a device task needs on the device again leaves the queue, unless the host has to
 * update it first.
 *
 * Owns the queued chunks, sorted in this order; the marks EVICTING, WRITING and KEPT; and how many ops have
 * ended for the manager (tide_manager_end, and done REDUCEs of ops) and on the device
 * (tide_manager_set_passed). Calls places, moves, future, pending, victims, priority_buckets.
 */
#ifndef TIDE_CHUNK_EVICTION_QUEUE_H
#define TIDE_CHUNK_EVICTION_QUEUE_H

#include "chunk/victims.h"

/* A queued chunk's use that has not ended on the device yet. Such uses form linked rings in the order in
 * which they end. */
typedef struct tide_late_use {
    uint64_t ends; /* the use ends when this many ops have ended on the device */
    /* numbers of chunks; a chunk in no ring is linked with itself: its use has ended, or it is not queued */
    uint32_t next, previous;
} tide_late_use;

typedef struct tide_eviction_queue {
    tide_places *places;
    const tide_future *future;
    const tide_pending *pending;
    tide_victims *victims;
    tide_priority_buckets buckets; /* chunks that may be evicted or copied out now */
    uint64_t epoch;                /* tide_future.epoch when the buckets were last sorted anew */
    /* an entry for each chunk, then the heads of two rings: of chunks to evict, and of chunks only to copy
     * out */
    tide_late_use *late;
    uint64_t ended;  /* ops that have ended for the manager, which is ahead of the device */
    uint64_t passed; /* how many of them have ended on the device, too */
} tide_eviction_queue;

/* Create an empty queue. NO_MEMORY. A zeroed queue may be destroyed, too. */
tide_status tide_eviction_queue_create(tide_eviction_queue *queue, tide_victims *victims);
void tide_eviction_queue_destroy(tide_eviction_queue *queue);

/* Call when the manager releases these chunks at the end of their use. On the device the use ends when `ends`
 * ops have ended there. `first_use` is the number of the first chunk's use in the plan, the others follow it
 * (TIDE_USE_NONE: no plan). Queues the chunks that the plan evicts after the use, and those that the host
 * will update. */
void tide_eviction_queue_use_ended(tide_eviction_queue *queue, const tide_chunk *chunks, uint32_t count,
                                   uint32_t first_use, uint64_t ends);
/* Call when the first `ends` ops have ended on the device (manager.h). */
void tide_eviction_queue_set_passed(tide_eviction_queue *queue, uint64_t ends);
/* Call when a request needs these chunks: each leaves the queue, unless the host has to update it first. */
void tide_eviction_queue_let_stay(tide_eviction_queue *queue, const tide_chunk *chunks, uint32_t count);
/* Make the command that evicts or copies out the next chunk with one of `marks` (EVICTING, or EVICTING |
 * WRITING). False if there is none. Without `with_copy` only chunks that need no copy are considered. */
bool tide_eviction_queue_next(tide_eviction_queue *queue, uint32_t marks, bool with_copy,
                              tide_command *command);

/* Check that every chunk is in its right bucket, except chunks that changed since they were sorted. Walks all
 * chunks. */
bool tide_eviction_queue_is_valid(const tide_eviction_queue *queue);

#endif
