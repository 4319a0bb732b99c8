/* Updates, restores and the host request: which is next, and how its chunks come together (assemble.c).
 *
 * Sets hold the PARAM chunks whose next piece waits: one set per tier, and three more on the host, for pieces
 * of which no chunk is missing there, or one, or two, and those that are missing need nothing but zeros. When
 * a chunk of a piece changes, its PARAM chunk is put into the right sets again. The chunks that a request
 * waits for have sets of their own.
 *
 * Owns these sets, the host request, the task that is assembled on each tier, and how many run there. Calls
 * places, tensors, pending, moves, victims.
 */
#ifndef TIDE_CHUNK_TASKS_H
#define TIDE_CHUNK_TASKS_H

#include "chunk/victims.h"

/* The most updates and restores that a tier has at the same time: one runs, the next one waits. */
enum { TIDE_OPEN_TASKS_MAX = 2 };

/* Sets of PARAM chunks whose next piece waits on the device; on the host; on the host with 0 to 2 chunks that
 * need zeros and all others there. The sets from TIDE_TASK_FIRST on are the same for chunks that a request
 * waits for. */
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
    uint16_t *entries;   /* for each PARAM chunk: bit i says whether it is in set i */
    tide_command access; /* the host request; task_count 0: none is open */
    bool access_running;
    tide_chunk accessed; /* the chunk with the mark ACCESSED; TIDE_CHUNK_NONE: none */
} tide_tasks;

/* Create an object without tasks. NO_MEMORY. A zeroed one may be destroyed, too. */
tide_status tide_tasks_create(tide_tasks *tasks, tide_victims *victims, tide_tensors *tensors,
                              tide_pending *pending);
void tide_tasks_destroy(tide_tasks *tasks);

/* Make the command for the next task whose chunks are all on the host, if the host may get another task.
 * `first_only`: only a task that a request waits for. */
bool tide_tasks_next_ready(tide_tasks *tasks, bool first_only, tide_command *command);
/* Make the command for the next move that a task needs, or for a task that has all its chunks. `first_only`
 * as above. */
bool tide_tasks_next_assembly(tide_tasks *tasks, const tide_turn *turn, bool first_only,
                              tide_command *command);
/* Make the next command for the open host request, which has not been handed out: a move, a pending update of
 * its chunks, or the ACCESS command. */
bool tide_tasks_next_access(tide_tasks *tasks, const tide_turn *turn, tide_command *command);
/* Call when a task has ended: done, failed, or cancelled before it started. */
void tide_tasks_finish(tide_tasks *tasks, const tide_command *command, tide_piece_end how);

/* --- the host request --- */

/* Open the host request (manager.h). ARGUMENT. */
tide_status tide_tasks_open_access(tide_tasks *tasks, const tide_use *chunks, uint32_t count);
/* Close the host request, which is done or given up. */
void tide_tasks_close_access(tide_tasks *tasks);

/* --- assembling --- */

/* Are all chunks of a host task there, but for `*needs_zero` chunks that need a slot? */
bool tide_assemble_is_there(const tide_tasks *tasks, const tide_command *task, uint32_t *needs_zero);
/* Make the command for the next move that the task needs; or for the task, if all its chunks are there. */
bool tide_assemble_next(tide_tasks *tasks, const tide_turn *turn, const tide_command *task,
                        tide_command *command);
/* Pin the chunks of a task and make its command. All chunks must be there, except some that need zeros, for
 * which slots must be free. */
void tide_assemble_hand_out(tide_tasks *tasks, const tide_command *task, tide_command *command);
/* Give up the assembly of tasks on both tiers. */
void tide_assemble_forget(tide_tasks *tasks);

/* Check: is every PARAM chunk in its right sets? Leaves out chunks that have changed since they were sorted.
 * Walks all PARAM chunks. */
bool tide_tasks_is_valid(const tide_tasks *tasks);

static inline bool tide_tasks_access_waits(const tide_tasks *tasks)
{
    return tasks->access.task_count > 0 && !tasks->access_running;
}

#endif
