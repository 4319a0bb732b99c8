/* The manager's expectation of coming steps: the recorded schedule, and the plan made from it.
 *
 * At a step's end, if the recording or the placement of updates has changed, the future makes a trace of the
 * step, which says what each use does to its chunk, and has the planner make a plan of it (planner.h).
 *
 * Owns the schedule and the plans. Calls ops, pending (which tier updates a chunk) and planner.
 */
#ifndef TIDE_CHUNK_FUTURE_H
#define TIDE_CHUNK_FUTURE_H

#include "chunk/pending.h"
#include "chunk/planner.h"
#include "chunk/priority_buckets.h"
#include "chunk/schedule.h"

/* A recorded step of one kind, and the plan for it. */
typedef struct tide_step_plan {
    tide_planner *planner;
    tide_use_trace trace;
    uint32_t recorded;     /* number of the recording that the plan was made from */
    uint32_t placements;   /* number of the placement that the plan was made for */
    uint64_t number;       /* counts plans: 1 for the first */
    uint32_t slots;        /* device slots that the plan may use */
    const tide_plan *plan; /* NULL: there is no plan */
} tide_step_plan;

typedef struct tide_future {
    tide_arrays arrays;
    const tide_ops *ops;
    const tide_pending *pending;
    tide_schedule schedule;
    tide_step_plan plans[TIDE_SCHEDULE_KINDS];
    /* scratch for making a trace: for each chunk, how many ACTIVATION parts with content lie in it */
    uint32_t *live_parts;
    uint8_t *part_live; /* scratch for making a trace: for each part, whether it has content */
    bool prefetch;
    uint32_t spread;      /* keys per use: one for its chunk, the others for the chunk's STATE chunks */
    uint32_t never_first; /* keys below it are those of uses, the others of chunks that are never used */
    uint32_t device_slots;
    uint32_t least_slots; /* the fewest device slots with which every op can run */
    uint64_t planned;     /* plans made so far */
    uint64_t rounds;      /* steps that have ended */
    /* grows when all keys change: with another recording, or when a step is given up */
    uint64_t epoch;
    const tide_recording *active; /* the recording that keys refer to; NULL: none */
    uint32_t active_number;
    uint64_t re_recordings;
} tide_future;

/* Create a future without a recording. NO_MEMORY; UNSUPPORTED: a step has
 * more uses than can be numbered. A zeroed future may be destroyed, too. */
tide_status tide_future_create(tide_future *future, const tide_ops *ops, const tide_pending *pending,
                               uint32_t device_slots, uint32_t least_slots, bool prefetch);
void tide_future_destroy(tide_future *future);

/* --- the step as it comes --- */

void tide_future_step_begin(tide_future *future, bool training);
/* Call when an op or a slice begins. */
void tide_future_schedule_step(tide_future *future, tide_op op, uint32_t slice);
/* Call when the step has ended: plans each kind of step whose recording or placement has changed. */
void tide_future_step_end(tide_future *future);
void tide_future_step_abort(tide_future *future);

/* --- what comes next --- */

/* Keys by which buckets (priority_buckets.h) sort chunks, below tide_future_keys. No two chunks have the same
 * key. With a recording a key is the number of a use times the keys per use, plus an offset, so that
 * optimizer state, which has no uses of its own, is next to its PARAM chunk. */
uint32_t tide_future_keys(const tide_future *future);
tide_horizon tide_future_horizon(const tide_future *future);
/* The key of a PARAM or ACTIVATION chunk's next use, even if the chunk has a pending update. Needs a
 * recording. */
uint32_t tide_future_use_key(const tide_future *future, tide_chunk chunk);
/* The key of the next use for which the device needs a chunk's present content. There is none (the never key)
 * for a chunk that the host will update before, nor for state that the host updates. The next use of state
 * that the device updates is its PARAM chunk's update: just before that chunk's next use if the update is
 * pending, else after the chunk's last use in a step. Needs a recording. */
uint32_t tide_future_worth_key(const tide_future *future, tide_chunk chunk);
/* The key of a chunk that is never used. */
uint32_t tide_future_never_key(const tide_future *future, tide_chunk chunk);
/* The number of schedule steps until the use whose key tide_future_worth_key returns. */
uint32_t tide_future_worth_distance(const tide_future *future, tide_chunk chunk);
/* The plan of the active recording (tide_schedule_active), NULL if it has none. */
static inline const tide_step_plan *tide_future_plan(const tide_future *future)
{
    const tide_step_plan *step =
        future->active ? &future->plans[future->active - future->schedule.recordings] : NULL;
    return step && step->plan && step->recorded == future->active_number ? step : NULL;
}

/* The number in the plan of the first use of the schedule step that has just begun; TIDE_USE_NONE if the step
 * follows no plan. */
static inline uint32_t tide_future_planned_use(const tide_future *future)
{
    const bool follows = future->schedule.mode == TIDE_SCHEDULE_FOLLOWING && tide_future_plan(future);
    return follows ? future->active->schedule_step_first[future->schedule.cursor - 1] : TIDE_USE_NONE;
}

#endif
