/* What is to come: the recorded step, and the plan made from it.
 *
 * At a step's end, if the recording or the placement of updates is new, a trace is made (trace.h) and planned (planner.h).
 *
 * Owns the schedule and the plans. Calls ops, dues, trace, planner.
 */
#ifndef TIDE_CHUNK_FUTURE_H
#define TIDE_CHUNK_FUTURE_H

#include "chunk/planner.h"
#include "chunk/trace.h"
#include "chunk/use_set.h"

/* A recorded step of one kind, and the plan for it. */
typedef struct tide_step_plan {
    tide_planner *planner;
    tide_use_trace trace;
    uint32_t *first_use;   /* per moment, in the trace */
    uint32_t recorded;     /* number of the recording */
    uint32_t placements;   /* of the dues, when it was made */
    const tide_plan *plan; /* NULL: none */
} tide_step_plan;

typedef struct tide_future {
    const tide_ops *ops;
    const tide_dues *dues;
    tide_schedule schedule;
    tide_tracer tracer;
    tide_step_plan plans[TIDE_SCHEDULE_KINDS];
    bool prefetch;
    uint32_t device_slots;
    uint32_t least_slots; /* of what ops need at once */
    uint64_t planned;     /* plans made so far */
    uint64_t re_recordings;
} tide_future;

/* Nothing recorded. Ops are complete; `dues` is not sealed yet. NO_MEMORY. Zeroed ones may be destroyed, too. */
tide_status tide_future_create(tide_future *future, const tide_ops *ops, const tide_dues *dues, uint32_t device_slots,
                               uint32_t least_slots, bool prefetch);
void tide_future_destroy(tide_future *future);

/* --- the step as it comes --- */

void tide_future_step_begin(tide_future *future, bool training);
/* An op, or one of its slices, begins. */
void tide_future_moment(tide_future *future, tide_op op, uint32_t slice);
/* The step is over: plan what is new. */
void tide_future_step_end(tide_future *future);
void tide_future_step_abort(tide_future *future);

/* --- what comes next --- */

/* Is there a recording to tell? */
static inline bool tide_future_is_known(const tide_future *future)
{
    return tide_schedule_active(&future->schedule) != NULL;
}

/* Moments to a chunk's next use, updated or not; 0 without a recording. */
uint64_t tide_future_next_use(const tide_future *future, tide_chunk chunk);
/* The plan for what the schedule now expects, NULL if there is none. */
const tide_step_plan *tide_future_plan(const tide_future *future);
/* The first planned use of the moment that has just begun, TIDE_USE_NONE if no plan is followed. */
uint32_t tide_future_planned_use(const tide_future *future);

#endif
