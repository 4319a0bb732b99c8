/* Chooses whose slot is taken when a slot is needed.
 *
 * A device slot is taken in this order:
 *   1. a free one;
 *   2. that of a chunk that has no content or whose content the host has changed: its content is not needed;
 *   3. that of the chunk whose next use is farthest; but the farthest clean chunk's if its next use is at
 *      least CLEAN_NUMERATOR / CLEAN_DENOMINATOR as far, since a clean chunk only costs a copy in later, a
 *      dirty one a copy out as well. Without a recording: that of the least recently used chunk, where all
 *      chunks not used recently count as equally old.
 *   A dirty victim needs a host slot; if none can be had at present, the farthest clean chunk is the victim.
 *
 * A host slot is taken in this order:
 *   1. a free one;
 *   2. that of a duplicate (a chunk that both tiers have): of the one needed soonest on the device, since
 *      that one stays there longest;
 *   3. by a promotion (only for tasks, one at a time): a chunk that the host has updated returns to the
 *      device slot that it kept, which it has to in any case, the one needed soonest first; if there is none,
 *      the chunk needed latest that only the host has moves to a free device slot, or to one from which a
 *      clean chunk is evicted.
 *
 * Owns the buckets of chunks that may be evicted, and of those whose host slot may be taken, sorted by next
 * use. Calls places, moves, future, pending, priority_buckets.
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
    uint64_t epoch;               /* tide_future.epoch when the buckets were last sorted anew */
    uint64_t since;               /* without a recording: last uses up to this number count as equally old */
} tide_victims;

/* Create victims with empty buckets. NO_MEMORY. A zeroed object may be destroyed, too. */
tide_status tide_victims_create(tide_victims *victims, const tide_layout *layout, tide_places *places,
                                tide_moves *moves, const tide_future *future, const tide_pending *pending);
void tide_victims_destroy(tide_victims *victims);

typedef struct tide_victim_rule {
    uint32_t spared;            /* chunks with these marks are no victims */
    uint32_t spared_duplicates; /* host copies of chunks with these marks are not dropped */
    bool only_clean;            /* only chunks that need no copy out are victims */
} tide_victim_rule;

/* Evict, without a copy, a chunk whose content is not needed (device slot, 2). False if the rule allows
 * none. */
bool tide_victims_evict_reclaimable(tide_victims *victims, tide_victim_rule rule, tide_reason reason,
                                    tide_command *command);
/* Evict the first victim that the rule allows. False if there is none, or if a dirty one can't get a host
 * slot at present. */
bool tide_victims_evict(tide_victims *victims, tide_victim_rule rule, tide_reason reason,
                        tide_command *command);
/* Make sure that a host slot is free, if necessary by dropping a duplicate without `spared` marks. False if
 * that is not possible. */
bool tide_victims_free_host_slot(tide_victims *victims, uint32_t spared);
/* Drop the host copy of one duplicate without `spared` marks. False if there is none. */
bool tide_victims_drop_duplicate(tide_victims *victims, uint32_t spared);
/* Make the next command of a promotion, which frees a host slot. False if there is none at present. */
bool tide_victims_promote(tide_victims *victims, const tide_turn *turn, tide_command *command);

/* Check that every chunk is in its right buckets, except chunks that changed since they were sorted. Walks
 * all chunks. */
bool tide_victims_is_valid(const tide_victims *victims);

#endif
