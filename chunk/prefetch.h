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
    const tide_step_plan *step; /* the plan whose fetches these are; NULL: none */
    uint64_t planned, epoch;    /* the future's values when these fetches were taken over */
    uint64_t rounds;            /* the number of steps that had ended when the fetches were last sorted */
    uint32_t count;
    uint32_t first;       /* the first fetch for a schedule step that has not begun */
    uint32_t *next_fetch; /* for each fetch: the next fetch of its chunk, which may be in the next step */
    uint32_t *fetch_of;   /* for each chunk: its next fetch; TIDE_USE_NONE: it has none */
    uint32_t *aside;      /* the tree; its fetches are numbered from 1 */
    bool *is_aside;       /* for each fetch: whether a free slot is set aside for it */
    tide_bitset sets[2];  /* sets of fetches (prefetch.c) */
    uint64_t *words;
} tide_prefetch;

/* Create an object without fetches. NO_MEMORY. A zeroed one may be destroyed, too. */
tide_status tide_prefetch_create(tide_prefetch *prefetch, tide_places *places, tide_moves *moves,
                                 const tide_future *future, const tide_pending *pending);
void tide_prefetch_destroy(tide_prefetch *prefetch);
/* Make the command for the next planned fetch, unless the link to the device is busy. */
bool tide_prefetch_next(tide_prefetch *prefetch, const tide_turn *turn, tide_command *command);

/* Check: is every fetch whose chunk has not changed since it was sorted in its right sets? Walks all
 * fetches. */
bool tide_prefetch_is_valid(const tide_prefetch *prefetch);

#endif
