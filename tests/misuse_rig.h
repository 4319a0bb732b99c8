/* A small training in any state that a pool can be in, for tests of misuse: two params, one of them tied, three ops.
 *
 *     forward    saved[m] = input + large                         per micro-batch m
 *     head       gradient of both += 0.1 saved[m] + 0.01 large    (of every seventh element)
 *     backward   gradient of large likewise, once more
 */
#ifndef MISUSE_RIG_H
#define MISUSE_RIG_H

#include "tidepool/tidepool.h"

enum {
    RIG_LARGE = 70000, /* elements of the params: one in two chunks, */
    RIG_SMALL = 1000,  /* and one beside it */
    RIG_PART = 300,    /* floats of an activation's part, and of the input in the region */
    RIG_SLICES = 2,
    RIG_STEPS = 3,                                /* of a whole training */
    RIG_VALUES = 4 * (RIG_LARGE + RIG_SMALL), /* masters, momenta, variances, params */
};

typedef enum rig_state {
    RIG_CREATED,
    RIG_REGISTERED,
    RIG_SEALED,
    RIG_STEP,   /* the second step has begun */
    RIG_OP,     /* its last op is open, a kernel enqueued */
    RIG_ENDED,  /* its updates are under way */
    RIG_FAILED, /* in the open op, a kernel */
    RIG_POISONED,   /* by gradients that are not finite */
    RIG_STATES,
} rig_state;

typedef struct rig {
    tide_pool *pool;
    rig_state state;
    tide_param params[2];
    tide_activation saved;
    tide_op forward, head, backward;
    uint64_t updates; /* on entering the state */
    float *values;    /* RIG_VALUES of them then, or before the step that poisoned the pool */
} rig;

const char *rig_state_name(rig_state state);
/* Of a host pool with small chunks and all checks on. */
tide_pool_options rig_options(void);
tide_step_options rig_step_options(void);
void rig_register(rig *r);
/* Create a pool and bring it into the state; `r->values` is the caller's memory. */
void rig_enter(rig *r, rig_state state);
/* On from there to the end of the training; reads all values. The pool is destroyed. */
void rig_finish(rig *r, float values[RIG_VALUES]);
void rig_read_values(const rig *r, float values[RIG_VALUES]);

#endif
