/* Issues planned fetches ahead of their uses, in the order in which they are needed, each into a free slot or
 * into the slot that its chunk has kept.
 *
 * A planned fetch may take a free slot only if enough slots are left for all fetches that are needed sooner.
 * Some of these cannot begin yet, because the chunk has a use before, or is being evicted, or has a pending
 * update. One free slot is set aside for each of them, except for chunks that keep their slot.
 *
 *   fetches in order of need   a      b          c       d
 *                              there  to leave  pending  missing     3 free slots: 2 set aside, d takes one
 *
 * So no chunk that was fetched ahead is evicted for one that is needed sooner, which would copy it twice.
 *
 * If something happens that was not planned (ops in another order, a host request between steps, a slot used
 * by a task), chunks are fetched on demand, with victims by the general rule (victims.h). Prefetch then
 * follows the plan again as soon as the uses do, since a plan only says what to move after and for each use.
 * Until then a chunk that is missing without a planned fetch may have lost its slot to one that is needed
 * later: a training step after a forward-only pass copies 1 to 2% more.
 *
 * No call walks all fetches. Only the next planned fetch of each chunk can begin, and it is sorted again only
 * after its chunk has changed. Fetches that can begin are in sets. A Fenwick tree (P. M. Fenwick, "A New Data
 * Structure for Cumulative Frequency Tables", 1994) counts the fetches for which a slot is set aside, so that
 * it says how many of them come before another fetch.
 *
 * Owns the position in the planned fetches and the sets. Calls places, moves, future, pending, bitset.
 */
#ifndef TIDE_CHUNK_PREFETCH_H
#define TIDE_CHUNK_PREFETCH_H

#include "chunk/bitset.h"
#include "chunk/future.h"
#include "chunk/moves.h"

typedef struct tide_prefetch {
    tide_places *places;
    tide_moves *moves;
    const tide_future *future;
    const tide_pending *pending;
    const tide_step_plan *step; /* the plan that is followed; NULL: none */
    uint64_t planned, epoch;    /* the future's values when the fetches were read from the plan */
    uint64_t rounds;            /* the number of steps that had ended when the fetches were last sorted */
    uint32_t count;
    uint32_t first;       /* the first fetch whose schedule step has not begun */
    uint32_t *next_fetch; /* for each fetch: the next fetch of its chunk, perhaps in the next step */
    uint32_t *fetch_of;   /* for each chunk: its next fetch; TIDE_USE_NONE: none */
    uint32_t *aside;      /* the Fenwick tree, in which fetches are numbered from 1 */
    bool *is_aside;       /* for each fetch: whether a free slot is set aside for it */
    tide_bitset sets[2];  /* sets of fetches (prefetch.c) */
    uint64_t *words;
} tide_prefetch;

/* Create an object without fetches. NO_MEMORY. A zeroed object may be destroyed, too. */
tide_status tide_prefetch_create(tide_prefetch *prefetch, tide_places *places, tide_moves *moves,
                                 const tide_future *future, const tide_pending *pending);
void tide_prefetch_destroy(tide_prefetch *prefetch);
/* Make the command for the next planned fetch. False if there is none that may begin, or if the link to the
 * device is busy. */
bool tide_prefetch_next(tide_prefetch *prefetch, const tide_turn *turn, tide_command *command);

/* Check that every fetch is in its right sets, except those whose chunk changed since it was sorted. Walks
 * all fetches. */
bool tide_prefetch_is_valid(const tide_prefetch *prefetch);

#endif
