/* Where a slot comes from.
 *
 * A device slot:
 *   1. a free one;
 *   2. of a chunk without content, or whose content the host has changed: nothing to copy, now or later;
 *   3. of the chunk whose next use is farthest, but of a clean one if its next use is at least
 *      CLEAN_NUMERATOR / CLEAN_DENOMINATOR as far: a clean chunk leaves for nothing, a dirty one costs a copy
 *      out on top of the copy back in that either costs. Without a recording: the least recently used, where what was not
 *      used for long counts as equally old.
 *   A dirty victim needs a host slot; if there is none at present, the farthest clean one goes.
 *
 * A host slot:
 *   1. a free one;
 *   2. of a duplicate: the chunk that the device will keep longest, because it is needed there soonest;
 *   3. by promotion (tasks only), one at a time: what the host has updated returns to the device slot that waits for it, the
 *      nearest first, for it has to in any case; else a chunk that lives on the host alone, the farthest, moves to a free
 *      device slot, or to one that a clean chunk leaves.
 *
 * Owns the chunks that may leave or give up a copy, sorted by next use. Calls places, moves, future, pending, priority_buckets.
 */
#ifndef TIDE_CHUNK_VICTIMS_H
#define TIDE_CHUNK_VICTIMS_H

#include "chunk/future.h"
#include "chunk/moves.h"

typedef struct tide_victims {
    const tide_layout *layout;
    tide_places *places;
    tide_moves *moves;
    const tide_future *future;
    const tide_pending *pending;
    tide_priority_buckets device; /* who may leave the device */
    tide_priority_buckets copies; /* whose host slot may be had */
    uint64_t epoch;               /* of the future, in which they were sorted */
    uint64_t since;               /* without a recording: the last use that counts as long ago */
} tide_victims;

/* Nobody stands anywhere. NO_MEMORY. Zeroed ones may be destroyed, too. */
tide_status tide_victims_create(tide_victims *victims, const tide_layout *layout, tide_places *places,
                                tide_moves *moves, const tide_future *future, const tide_pending *pending);
void tide_victims_destroy(tide_victims *victims);

typedef struct tide_victim_rule {
    uint32_t spared;            /* marks of chunks that stay */
    uint32_t spared_duplicates; /* marks of chunks whose host copy stays too */
    bool only_clean;            /* nothing that needs a copy */
} tide_victim_rule;

/* Evict, without a copy, a chunk whose slot holds nothing of worth. False if a rule allows none. */
bool tide_victims_evict_reclaimable(tide_victims *victims, tide_victim_rule rule, tide_reason reason,
                                    tide_command *command);
/* Evict the best victim a rule allows. False if there is none, or its host slot cannot be had now. */
bool tide_victims_evict(tide_victims *victims, tide_victim_rule rule, tide_reason reason,
                        tide_command *command);
/* Make a host slot free, dropping a duplicate if need be. False if there is none. */
bool tide_victims_free_host_slot(tide_victims *victims, uint32_t spared);
/* Give up the host copy of one chunk that the device has too. False if there is none without `spared` marks. */
bool tide_victims_drop_duplicate(tide_victims *victims, uint32_t spared);
/* Move some host chunk to the device so that a host slot becomes free. */
bool tide_victims_promote(tide_victims *victims, const tide_turn *turn, tide_command *command);

/* Does every chunk that has not changed meanwhile stand where it belongs? Walks all chunks. */
bool tide_victims_is_valid(const tide_victims *victims);

#endif
