/* Where a slot comes from.
 *
 * A device slot:
 *   1. a free one;
 *   2. of a chunk without content, or whose content the host has changed: nothing to copy, now or later;
 *   3. of the chunk whose next use is farthest, but of a clean one if its next use is at least
 *      CLEAN_NUMERATOR / CLEAN_DENOMINATOR as far: a clean chunk leaves without a copy, a dirty one costs a
 *      copy out on top of the copy back in that either costs. Without a recording: the least recently used,
 *      where all chunks without a recent use count as equally old.
 *   A dirty victim needs a host slot; if there is none at present, the farthest clean one leaves.
 *
 * A host slot:
 *   1. a free one;
 *   2. of a duplicate: the chunk that the device will keep longest, because it is needed there soonest;
 *   3. by promotion (tasks only), one at a time: a chunk that the host has updated returns to the device
 *      slot that waits for it, as it has to in any case, the nearest first; else the farthest chunk that is
 *      on the host alone moves to a free device slot, or to one that a clean chunk leaves.
 *
 * Owns the chunks that may leave or give up a copy, sorted by next use. Calls places, moves, future, pending,
 * priority_buckets.
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
    tide_priority_buckets device; /* chunks that may leave the device */
    tide_priority_buckets copies; /* chunks whose host slot may be taken */
    uint64_t epoch;               /* the future's epoch for which the buckets are sorted */
    uint64_t since;               /* without a recording: uses up to this one count as equally long ago */
} tide_victims;

/* Create victims with empty buckets. NO_MEMORY. A zeroed object may be destroyed, too. */
tide_status tide_victims_create(tide_victims *victims, const tide_layout *layout, tide_places *places,
                                tide_moves *moves, const tide_future *future, const tide_pending *pending);
void tide_victims_destroy(tide_victims *victims);

typedef struct tide_victim_rule {
    uint32_t spared;            /* chunks with these marks stay on the device */
    uint32_t spared_duplicates; /* chunks with these marks keep their host copies, too */
    bool only_clean;            /* chunks that need a copy stay on the device */
} tide_victim_rule;

/* Evict, without a copy, a chunk whose slot has no content that is needed. False if the rule allows none. */
bool tide_victims_evict_reclaimable(tide_victims *victims, tide_victim_rule rule, tide_reason reason,
                                    tide_command *command);
/* Evict the best victim that the rule allows. False if there is none, or its host slot cannot be had now. */
bool tide_victims_evict(tide_victims *victims, tide_victim_rule rule, tide_reason reason,
                        tide_command *command);
/* Make a host slot free; drops a duplicate if necessary. False if no slot can be made free. */
bool tide_victims_free_host_slot(tide_victims *victims, uint32_t spared);
/* Give up the host copy of one chunk that the device has too. False if there is none without `spared`
 * marks. */
bool tide_victims_drop_duplicate(tide_victims *victims, uint32_t spared);
/* Move a chunk from the host to the device, so that its host slot becomes free. */
bool tide_victims_promote(tide_victims *victims, const tide_turn *turn, tide_command *command);

/* Check: is every chunk that has not changed since it was sorted in its right buckets? Walks all chunks. */
bool tide_victims_is_valid(const tide_victims *victims);

#endif
