/* Chooses the next update or restore, carries out the host request, and brings the chunks of each such task
 * together (assembles it, assemble.c).
 *
 * Sets hold the PARAM chunks whose next piece waits to be handed out: one set for each tier, and three more
 * for host pieces that can be handed out at once, because all their chunks are on the host except 0, 1 or 2
 * without content, which only need a zeroed slot. When a chunk of a piece changes, the PARAM chunk is sorted
 * into the sets again. PARAM chunks for which a request waits are in sets of their own.
 *
 * Owns these sets, the host request, the task that is assembled on each tier, and how many tasks run there.
 * Calls places, tensors, pending, moves, victims.
 */
#ifndef TIDE_CHUNK_TASKS_H
#define TIDE_CHUNK_TASKS_H

#include "chunk/victims.h"

/* The most updates and restores that are handed out at the same time on a tier: one that runs, and one that
 * follows it at once. */
enum { TIDE_OPEN_TASKS_MAX = 2 };

/* The sets of PARAM chunks whose next piece waits: on the device; on the host; on the host, ready except for
 * 0, 1 or 2 slots to zero (TIDE_TASK_READY + n). From TIDE_TASK_FIRST on the same sets follow for chunks for
 * which a request waits. */
enum {
    TIDE_TASK_WAITS_ON_DEVICE = 0,
    TIDE_TASK_WAITS_ON_HOST,
    TIDE_TASK_READY,
    TIDE_TASK_FIRST = TIDE_TASK_READY + TIDE_TASK_CHUNKS_MAX + 1,
    TIDE_TASK_SETS = 2 * TIDE_TASK_FIRST,
};

typedef struct tide_tasks {
    const tide_layout *layout;
    tide_places *places;
    tide_tensors *tensors;
    tide_pending *pending;
    tide_moves *moves;
    tide_victims *victims;
    /* the task that is being assembled on each tier; task_count 0: none */
    tide_command assembling[TIDE_TIER_COUNT];
    uint32_t running[TIDE_TIER_COUNT]; /* updates and restores that run on each tier */
    tide_bitset sets[TIDE_TASK_SETS];  /* sets of PARAM chunks */
    uint64_t *words;
    uint16_t *entries;   /* for each PARAM chunk: bit i is set if it is in set i */
    tide_command access; /* the host request; task_count 0: none is open */
    bool access_running;
    tide_chunk accessed; /* the chunk with the mark ACCESSED, or TIDE_CHUNK_NONE */
} tide_tasks;

/* Create an object without tasks. NO_MEMORY. A zeroed object may be destroyed, too. */
tide_status tide_tasks_create(tide_tasks *tasks, tide_victims *victims, tide_tensors *tensors,
                              tide_pending *pending);
void tide_tasks_destroy(tide_tasks *tasks);

/* Make the command for the next host task that is ready, unless the host has TIDE_OPEN_TASKS_MAX.
 * `first_only`: only a task for which a request waits. */
bool tide_tasks_next_ready(tide_tasks *tasks, bool first_only, tide_command *command);
/* Make the command for the next move that a task needs to be ready, or for a task that has become ready by
 * that. `first_only` as above. */
bool tide_tasks_next_assembly(tide_tasks *tasks, const tide_turn *turn, bool first_only,
                              tide_command *command);
/* Make the next command for the open host request, whose ACCESS has not been handed out: a pending update of
 * its chunks, a move, or the ACCESS. */
bool tide_tasks_next_access(tide_tasks *tasks, const tide_turn *turn, tide_command *command);
/* Call when a task has ended: done, failed, or cancelled before it started. */
void tide_tasks_finish(tide_tasks *tasks, const tide_command *command, tide_piece_end how);

/* --- the host request --- */

/* Open the host request (manager.h). ARGUMENT. */
tide_status tide_tasks_open_access(tide_tasks *tasks, const tide_use *chunks, uint32_t count);
/* Close the host request, which is done or given up. */
void tide_tasks_close_access(tide_tasks *tasks);

/* --- assembling --- */

/* Are all chunks of a host task on the host, except `*needs_zero` chunks without content, which need a zeroed
 * slot? */
bool tide_assemble_is_there(const tide_tasks *tasks, const tide_command *task, uint32_t *needs_zero);
/* Make the command for the next move that the task needs or, if it is ready, for the task. */
bool tide_assemble_next(tide_tasks *tasks, const tide_turn *turn, const tide_command *task,
                        tide_command *command);
/* Pin the chunks of a task and make its command. All chunks must be on its tier, except ones without content,
 * for which slots must be free. */
void tide_assemble_hand_out(tide_tasks *tasks, const tide_command *task, tide_command *command);
/* Stop assembling tasks on both tiers. */
void tide_assemble_forget(tide_tasks *tasks);

/* Check that every PARAM chunk is in its right sets, except chunks that changed since they were sorted. Walks
 * all PARAM chunks. */
bool tide_tasks_is_valid(const tide_tasks *tasks);

static inline bool tide_tasks_access_waits(const tide_tasks *tasks)
{
    return tasks->access.task_count > 0 && !tasks->access_running;
}

#endif
