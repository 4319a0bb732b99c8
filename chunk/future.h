/* What is to come: the recorded step, and the plan made from it.
 *
 * At a step's end, if the recording or the placement of updates is new, a trace is made, which says what each use does to its
 * chunk, and planned (planner.h).
 *
 * Owns the schedule and the plans. Calls ops, pending (which side updates a chunk) and planner.
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
    uint32_t recorded;     /* number of the recording */
    uint32_t placements;   /* of the pending updates, when it was made */
    uint64_t number;       /* of plans made by then */
    uint32_t slots;        /* of the device, that it could be made for */
    const tide_plan *plan; /* NULL: none */
} tide_step_plan;

typedef struct tide_future {
    tide_arrays arrays;
    const tide_ops *ops;
    const tide_pending *pending;
    tide_schedule schedule;
    tide_step_plan plans[TIDE_SCHEDULE_KINDS];
    uint32_t *live_parts; /* while a trace is made, per chunk: ACTIVATION parts with content */
    uint8_t *part_live;   /* likewise, per part */
    bool prefetch;
    uint32_t spread;      /* keys a use: the chunk's own and its optimizer states' */
    uint32_t never_first; /* keys of uses are below, then each chunk has one */
    uint32_t device_slots;
    uint32_t least_slots; /* of what ops need at once */
    uint64_t planned;     /* plans made so far */
    uint64_t rounds;      /* steps that are over */
    uint64_t epoch; /* counts changes of what keys mean: another recording, or a step given up in its midst */
    const tide_recording *active; /* what they mean now, NULL: there is no recording; and its number */
    uint32_t active_number;
    uint64_t re_recordings;
} tide_future;

/* Nothing recorded. Ops are complete; `pending` is not sealed yet. NO_MEMORY; UNSUPPORTED: a step of
 * more uses than can be numbered. Zeroed ones may be destroyed, too. */
tide_status tide_future_create(tide_future *future, const tide_ops *ops, const tide_pending *pending,
                               uint32_t device_slots, uint32_t least_slots, bool prefetch);
void tide_future_destroy(tide_future *future);

/* --- the step as it comes --- */

void tide_future_step_begin(tide_future *future, bool training);
/* An op, or one of its slices, begins. */
void tide_future_schedule_step(tide_future *future, tide_op op, uint32_t slice);
/* The step is over: plan what is new. */
void tide_future_step_end(tide_future *future);
void tide_future_step_abort(tide_future *future);

/* --- what comes next --- */

/* Keys for buckets (priority_buckets.h), below tide_future_keys. A key is one chunk's alone. With a recording it is the number of a use,
 * spread so that optimizer state, which has no uses, stands beside that of its PARAM chunk. */
uint32_t tide_future_keys(const tide_future *future);
tide_horizon tide_future_horizon(const tide_future *future);
/* Of a PARAM or ACTIVATION chunk's next use, updated or not. Needs a recording. */
uint32_t tide_future_use_key(const tide_future *future, tide_chunk chunk);
/* Of the next time that a chunk is worth having on the device. What the host updates is not until then, nor is its state. State on the
 * device is next used by its PARAM chunk's update: before the chunk's next use if the update is pending by now, else after its
 * last use in a step. Needs a recording. */
uint32_t tide_future_worth_key(const tide_future *future, tide_chunk chunk);
/* Of a chunk that is never used. */
uint32_t tide_future_never_key(const tide_future *future, tide_chunk chunk);
/* Schedule steps to what worth_key says. */
uint32_t tide_future_worth_distance(const tide_future *future, tide_chunk chunk);
/* The plan for what the schedule now expects, NULL if there is none. */
static inline const tide_step_plan *tide_future_plan(const tide_future *future)
{
    const tide_step_plan *step =
        future->active ? &future->plans[future->active - future->schedule.recordings] : NULL;
    return step && step->plan && step->recorded == future->active_number ? step : NULL;
}

/* The first planned use of the schedule step that has just begun, TIDE_USE_NONE if no plan is followed. */
static inline uint32_t tide_future_planned_use(const tide_future *future)
{
    const bool follows = future->schedule.mode == TIDE_SCHEDULE_FOLLOWING && tide_future_plan(future);
    return follows ? future->active->schedule_step_first[future->schedule.cursor - 1] : TIDE_USE_NONE;
}

#endif
