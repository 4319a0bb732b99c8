/* Steps: what is fixed at their begin, what their end sets going, and what giving one up undoes. Ops are op's.
 *
 * Owns the open step; [caller], and changes with the lock. Calls launch and engine; and, as the begin and the end of a step
 * are theirs to know, jobs (zero gradients), norm and journal.
 */
#ifndef TIDE_POOL_STEP_H
#define TIDE_POOL_STEP_H

#include "src/pool/engine.h"
#include "src/pool/launch.h"

typedef struct tide_step {
    const tide_ground *ground;
    tide_engine *engine;
    tide_launcher *launcher;
    bool is_open;
    bool first_op_begun;       /* in the open step */
    bool backward_begun;       /* likewise */
    uint32_t no_op;            /* [fixed] the launcher's word for it: the number of ops */
    tide_step_options options; /* of the step begun last */
    uint64_t calls_at_begin;   /* into the manager */
} tide_step;

/* --- [lock] --- */

/* An op begins. */
void tide_step_op_begins(tide_step *step);
/* A backward op begins, or a training step that had none ends. Without clipping its updates begin as its gradients complete:
 * the ones before have to be over by then. */
tide_status tide_step_backward_begins(tide_step *step);
/* Close the step and the op in it, and have the engine give them up. */
tide_status tide_step_give_up(tide_step *step);
/* STATE if a step is open; else wait for the last one's updates. */
tide_status tide_step_settle(tide_step *step, const char *call);

bool tide_step_is_valid(const tide_step *step);

static inline bool tide_step_op_is_open(const tide_step *step)
{
    return step->launcher->op != step->no_op;
}

/* An op has ended, or is given up: launches are nobody's. */
static inline void tide_step_op_ends(tide_step *step)
{
    step->launcher->op = step->no_op;
    step->launcher->access_count = 0;
    step->engine->journal->tracer.op = NULL;
    assert(tide_monitor_is_held(step->engine->monitor) && tide_step_is_valid(step));
}

#endif
