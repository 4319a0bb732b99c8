/* Updates, restores and the host request: tasks, and how their chunks come together.
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
 * PARAM chunks whose next part waits are kept in sets, looked at again when one of the part's chunks was noted: of each tier,
 * and on the host of those whose chunks are all there but for so many fresh ones; of each those that a request waits for
 * apart.
 *
 * Owns these sets, the gathers, the count of running tasks and the host request. Calls places, tensors, dues, moves, victims.
 */
#ifndef TIDE_CHUNK_TASKS_H
#define TIDE_CHUNK_TASKS_H

#include "chunk/victims.h"

enum { TIDE_OPEN_TASKS_MAX = 2 }; /* updates and restores handed out at a time, per tier: one runs, one follows */

/* Waiting on the device, on the host; on the host with 0 to 4 fresh chunks. Then the same of those a request waits for. */
enum {
    TIDE_TASK_WAITS_ON_DEVICE = 0,
    TIDE_TASK_WAITS_ON_HOST,
    TIDE_TASK_READY,
    TIDE_TASK_FIRST = TIDE_TASK_READY + TIDE_TASK_CHUNKS_MAX + 1,
    TIDE_TASK_SETS = 2 * TIDE_TASK_FIRST,
};

typedef struct tide_task_item {
    tide_chunk chunk;
    uint32_t access;
} tide_task_item;

typedef struct tide_task {
    tide_command_kind kind;
    tide_tier tier;
    tide_reason reason;
    tide_chunk chunk;
    uint32_t part;
    uint32_t count; /* 0: no task */
    tide_task_item items[TIDE_TASK_CHUNKS_MAX];
} tide_task;

typedef struct tide_tasks {
    const tide_layout *layout;
    tide_places *places;
    tide_tensors *tensors;
    tide_dues *dues;
    tide_moves *moves;
    tide_victims *victims;
    tide_task gather[TIDE_TIER_COUNT];
    uint32_t running[TIDE_TIER_COUNT];
    tide_use_set sets[TIDE_TASK_SETS]; /* of PARAM chunks */
    uint64_t *words;
    uint16_t *standings; /* per PARAM chunk: bit i: it is in set i */
    tide_task access; /* count 0: none */
    bool access_running;
} tide_tasks;

/* No task. NO_MEMORY. Zeroed ones may be destroyed, too. */
tide_status tide_tasks_create(tide_tasks *tasks, tide_victims *victims, tide_tensors *tensors, tide_dues *dues);
void tide_tasks_destroy(tide_tasks *tasks);

/* The next task whose chunks are all on the host, if the lane may have another; with `first_only` of chunks that a request
 * waits for. */
bool tide_tasks_next_ready(tide_tasks *tasks, bool first_only, tide_command *command);
/* The next move towards a task, or a task that it completes; likewise. */
bool tide_tasks_next_gather(tide_tasks *tasks, const tide_turn *turn, bool first_only, tide_command *command);
/* The same for an open host request that is not handed out, and what its chunks owe. */
bool tide_tasks_next_access(tide_tasks *tasks, const tide_turn *turn, tide_command *command);
/* A task is over: done, failed, or cancelled before it started. */
void tide_tasks_finish(tide_tasks *tasks, const tide_open_command *open, tide_part_end how);
/* Nothing is gathered any more. */
void tide_tasks_forget_gathers(tide_tasks *tasks);

/* --- the host request --- */

/* Open it: manager.h. ARGUMENT. */
tide_status tide_tasks_open_access(tide_tasks *tasks, const tide_use *chunks, uint32_t count);
/* Nobody waits for the host any more. */
void tide_tasks_close_access(tide_tasks *tasks);

/* Is every PARAM chunk that was not noted meanwhile in the sets it belongs to? Walks all. */
bool tide_tasks_is_valid(const tide_tasks *tasks);

static inline bool tide_tasks_access_waits(const tide_tasks *tasks)
{
    return tasks->access.count > 0 && !tasks->access_running;
}

#endif
