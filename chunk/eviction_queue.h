/* The eviction queue: chunks that leave the device, or are copied out, before anybody needs their slots.
 *
 * At a use's end a chunk that the plan lets go is queued and evicted as the way out has room for it, so that its copy out
 * begins as early as it can. One whose gradients are complete and whose update is on the host is copied out, too; if the plan
 * lets it keep its slot, that stays mapped for the updated values (KEPT).
 *
 * Who is first: what costs no copy; of that whose use is over on the device, what is needed soonest, but behind it what only
 * gets a copy and can't be updated yet (the norm is not known, and no slot comes free); the rest as their uses will be over.
 * What is wanted on the device again drops out, but for what has to be updated on the host first: a request waits for it, so of what is
 * over it leaves before all that takes a copy.
 *
 * Owns the queued chunks, sorted so, and how many ops have ended for the manager and on the device. The marks EVICTING, WRITING and KEPT
 * are its. Calls places, moves, future, pending, victims, priority_buckets.
 */
#ifndef TIDE_CHUNK_EVICTION_QUEUE_H
#define TIDE_CHUNK_EVICTION_QUEUE_H

#include "chunk/victims.h"

/* A use that is not over on the device, in a ring in the order in which they end. */
typedef struct tide_late_use {
    uint64_t ends;           /* it is over when so many ops have ended */
    uint32_t next, previous; /* itself: the use is over, or the chunk does not go */
} tide_late_use;

typedef struct tide_eviction_queue {
    tide_places *places;
    const tide_future *future;
    const tide_pending *pending;
    tide_victims *victims;
    tide_priority_buckets buckets; /* of those that may go, and whose use is over */
    uint64_t epoch;                /* of the future, in which they were sorted */
    tide_late_use *
        late; /* per chunk; behind them the rings' heads: of those that leave, and of those that are written */
    uint64_t ended;  /* ops, so far */
    uint64_t passed; /* of those, over on the device */
} tide_eviction_queue;

/* An empty queue. NO_MEMORY. Zeroed ones may be destroyed, too. */
tide_status tide_eviction_queue_create(tide_eviction_queue *queue, tide_victims *victims);
void tide_eviction_queue_destroy(tide_eviction_queue *queue);

/* Uses of chunks have ended that will be over on the device when `ends` ops are; the first of them is `first_use` of the plan
 * (TIDE_USE_NONE: not planned). Those that the plan evicts are queued. */
void tide_eviction_queue_use_ended(tide_eviction_queue *queue, const tide_chunk *chunks, uint32_t count,
                                   uint32_t first_use, uint64_t ends);
/* So many of all ops that ended are over on the device: manager.h. */
void tide_eviction_queue_set_passed(tide_eviction_queue *queue, uint64_t ends);
/* These are requested: they stay, but for those that have to be updated on the host first. */
void tide_eviction_queue_let_stay(tide_eviction_queue *queue, const tide_chunk *chunks, uint32_t count);
/* The next chunk with one of the marks (EVICTING, or WRITING as well): it leaves, or is copied out, with a copy or only without.
 * What leaves without one goes first. */
bool tide_eviction_queue_next(tide_eviction_queue *queue, uint32_t marks, bool with_copy,
                              tide_command *command);

/* Does every chunk that has not changed meanwhile stand where it belongs? Walks all chunks. */
bool tide_eviction_queue_is_valid(const tide_eviction_queue *queue);

#endif
