/* Planned fetches, ahead of their uses, in order of need, each into a free slot or the chunk's own.
 *
 * A planned fetch may take a slot only if every planned fetch needed sooner has, or can still have, one. Some
 * of those cannot begin: their chunk has still to be used, or is on its way out, or its update is pending. A
 * free slot is set aside for each of them that does not wait in its own.
 *
 *   fetches in order of need   a      b          c       d
 *                              there  to leave  pending  missing     3 free slots: 2 set aside, d takes one
 *
 * So no fetch ahead has to make room for one that is needed sooner, which would move its chunk twice.
 *
 * Whatever is not as planned (another order of ops, a host request between steps, a slot lent to a task)
 * costs a fetch on demand with a victim of the general rule (victims.h), and the plan goes on from there: it
 * says only which moves to make at a use and for a use, so it is right again as soon as the uses are. Until
 * then a missing chunk without a planned fetch may find its slot taken by one that is needed later: a step
 * after a forward-only pass between training steps moves a hundredth or two more.
 *
 * No call walks the fetches: of each chunk only the next planned one can begin, and it is sorted again only
 * when its chunk has changed. Fetches whose chunk is missing are in a set; those that a slot is set aside for
 * are summed up in a tree (P. M. Fenwick, "A New Data Structure for Cumulative Frequency Tables", 1994),
 * which tells how many come before another.
 *
 * Owns the place reached in the planned fetches. Calls places, moves, future, pending, bitset.
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
    const tide_step_plan *step; /* whose fetches these are, NULL: none */
    uint64_t planned, epoch;    /* the future's, when this took the fetches over */
    uint64_t rounds;            /* the future's steps that were over when this last looked */
    uint32_t count;
    uint32_t first;       /* the first fetch for a schedule step to come */
    uint32_t *next_fetch; /* per fetch: its chunk's next one, perhaps in the next step */
    uint32_t *fetch_of;   /* per chunk: its next one; TIDE_USE_NONE: none */
    uint32_t *aside;      /* the tree, of fetches numbered from 1 */
    bool *is_aside;       /* per fetch: a free slot is set aside for it */
    tide_bitset sets[2];  /* of fetches: prefetch.c */
    uint64_t *words;
} tide_prefetch;

/* An object with nothing to fetch. NO_MEMORY. A zeroed one may be destroyed, too. */
tide_status tide_prefetch_create(tide_prefetch *prefetch, tide_places *places, tide_moves *moves,
                                 const tide_future *future, const tide_pending *pending);
void tide_prefetch_destroy(tide_prefetch *prefetch);
/* The next fetch ahead, if the way in is not busy. */
bool tide_prefetch_next(tide_prefetch *prefetch, const tide_turn *turn, tide_command *command);

/* Is every fetch whose chunk has not changed meanwhile in its right sets? Walks all fetches. */
bool tide_prefetch_is_valid(const tide_prefetch *prefetch);

#endif
