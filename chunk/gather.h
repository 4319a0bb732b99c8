/* A task, and how its chunks come together.
 *
 * A PARAM chunk that owes an update or a restore runs one task per part, one after the other:
 *
 *   UPDATE    PARAM read and write; MASTER, MOMENTUM, VARIANCE read and write
 *   RESTORE   PARAM written (its first part: nothing of it is worth a copy), MASTER read; on the host
 *   ACCESS    the host request: up to four chunks of any space, on the host
 *
 * On the host a task whose chunks are all there is handed out at once, the first of them in forward order: gradients
 * leave the device as they complete, so most updates find them there, and none waits for another's to arrive. Of those
 * that still miss something, one a tier is gathered at a time; every turn does the first of these that applies:
 *
 *   on the host                                          on the device
 *   1. a chunk the task writes leaves the device,        1. a missing chunk is fetched into a free slot,
 *      with a copy if the device has the only one,          or a victim's slot is freed for it
 *      but a PARAM chunk whose slot is to wait for
 *      the update (KEPT) is only copied
 *   2. a chunk it only reads is written back
 *   3. chunks without content get a host slot, all at once
 *   4. all there: pinned and handed out                  2. all there: pinned and handed out
 *
 * Nothing is pinned before the last step. The chunks are only marked, so that no other task and no prefetch
 * takes them away again; a request of an op may, and the gather then resumes.
 *
 * Owns the task that is gathered on each tier, and how many run there. Calls places, tensors, dues, moves, victims.
 */
#ifndef TIDE_CHUNK_GATHER_H
#define TIDE_CHUNK_GATHER_H

#include "chunk/victims.h"

enum { TIDE_OPEN_TASKS_MAX = 2 }; /* updates and restores handed out at a time, per tier: one runs, one follows */

typedef struct tide_gather {
    const tide_layout *layout;
    tide_places *places;
    tide_tensors *tensors;
    tide_dues *dues;
    tide_moves *moves;
    tide_victims *victims;
    tide_command tasks[TIDE_TIER_COUNT]; /* task_count 0: none is gathered */
    uint32_t running[TIDE_TIER_COUNT];
} tide_gather;

void tide_gather_init(tide_gather *gather, tide_victims *victims, tide_tensors *tensors, tide_dues *dues);

/* One more chunk of a task that is not handed out. */
void tide_task_add(tide_command *task, tide_chunk chunk, uint32_t access);
/* The next part of what a PARAM chunk owes: a task that has no slots yet. */
tide_command tide_gather_due(const tide_gather *gather, tide_chunk chunk);
/* Is all of a host task where it is wanted, but for `*fresh` chunks that need a slot? */
bool tide_gather_is_there(const tide_gather *gather, const tide_command *task, uint32_t *fresh);
/* The next move towards the task; or, if all of it is there, the task. */
bool tide_gather_next(tide_gather *gather, const tide_turn *turn, const tide_command *task, tide_command *command);
/* All is there, and slots are free for what is fresh: pin, and let the executor have it. */
void tide_gather_hand_out(tide_gather *gather, const tide_command *task, tide_command *command);
/* A task is over: done, failed, or cancelled before it started. */
void tide_gather_finish(tide_gather *gather, const tide_command *command, tide_part_end how);
/* Nothing is gathered any more. */
void tide_gather_forget(tide_gather *gather);

#endif
