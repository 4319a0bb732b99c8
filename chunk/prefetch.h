/* Planned fetches, ahead of their uses, in order of need, each into a free slot or its own: the walk.
 *
 * A planned fetch may take a slot only if every planned fetch needed sooner has, or can still have, one. Some
 * of those cannot begin: their chunk has still to be used, or is on its way out, or owes its update. A free slot is set
 * aside for each of them that does not wait in its own.
 *
 *   fetches in order of need   a      b          c       d
 *                              there  to leave   owes    missing     3 slots free: 2 are set aside, d takes the third
 *
 * So nothing fetched ahead has ever to make room for something needed sooner, which would move it twice.
 *
 * Whatever is not as planned (another order of ops, a host request between steps, a slot lent to a task) costs a fetch on
 * demand with a victim of the general rule (victims.h), and the plan goes on from there: it says only what to do
 * at a use and for a use, so it is right again as soon as the uses are. The walk remembers how many of its fetches are
 * there, until something leaves that it had not planned.
 *
 * Owns how far the planned fetches have got. Calls places, moves, future, dues.
 */
#ifndef TIDE_CHUNK_PREFETCH_H
#define TIDE_CHUNK_PREFETCH_H

#include "chunk/future.h"
#include "chunk/moves.h"
#include "chunk/turn.h"

typedef struct tide_prefetch {
    tide_places *places;
    tide_moves *moves;
    const tide_future *future;
    const tide_dues *dues;
    const tide_plan *plan; /* NULL: begin anew */
    uint32_t first;        /* planned fetch: the first for a moment to come */
    uint32_t there;        /* of the fetches from there on, known to be on the device */
    uint64_t departures;   /* not planned, when that was known */
} tide_prefetch;

void tide_prefetch_init(tide_prefetch *prefetch, tide_places *places, tide_moves *moves, const tide_future *future,
                        const tide_dues *dues);
/* Another step begins, or this one is over: the walk begins anew. */
void tide_prefetch_restart(tide_prefetch *prefetch);
/* The next fetch ahead, if the way in has room for it. */
bool tide_prefetch_next(tide_prefetch *prefetch, const tide_turn *turn, tide_command *command);

#endif
