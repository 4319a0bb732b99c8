/* A small training in any state that a pool can be in, for tests of misuse: two params, one of them tied, three ops.
 *
 *     forward    saved[m] = input + large                         per micro-batch m
 *     head       gradient of both += 0.1 saved[m] + 0.01 large    (of every seventh element)
 *     backward   gradient of large likewise, once more
 */
#ifndef MISUSE_FIXTURE_H
#define MISUSE_FIXTURE_H

#include "tidepool/tidepool.h"

enum {
    FIXTURE_LARGE = 70000, /* elements of the params: one in two chunks, */
    FIXTURE_SMALL = 1000,  /* and one beside it */
    FIXTURE_PART = 300,    /* floats of an activation's part, and of the input in the region */
    FIXTURE_SLICES = 2,
    FIXTURE_STEPS = 3,                                    /* of a whole training */
    FIXTURE_VALUES = 4 * (FIXTURE_LARGE + FIXTURE_SMALL), /* masters, momenta, variances, params */
};

typedef enum fixture_state {
    FIXTURE_CREATED,
    FIXTURE_REGISTERED,
    FIXTURE_SEALED,
    FIXTURE_STEP,     /* the second step has begun */
    FIXTURE_OP,       /* its last op is open, a kernel enqueued */
    FIXTURE_ENDED,    /* its updates are under way */
    FIXTURE_FAILED,   /* in the open op, a kernel */
    FIXTURE_POISONED, /* by gradients that are not finite */
    FIXTURE_STATES,
} fixture_state;

typedef struct fixture {
    tide_pool *pool;
    fixture_state state;
    tide_param params[2];
    tide_activation saved;
    tide_op forward, head, backward;
    uint64_t updates; /* on entering the state */
    float *values;    /* FIXTURE_VALUES of them then, or before the step that poisoned the pool */
} fixture;

const char *fixture_state_name(fixture_state state);
/* Of a host pool with small chunks and all checks on. */
tide_pool_options fixture_options(void);
tide_step_options fixture_step_options(void);
void fixture_register(fixture *r);
/* Create a pool and bring it into the state; `r->values` is the caller's memory. */
void fixture_enter(fixture *r, fixture_state state);
/* On from there to the end of the training; reads all values. The pool is destroyed. */
void fixture_finish(fixture *r, float values[FIXTURE_VALUES]);
void fixture_read_values(const fixture *r, float values[FIXTURE_VALUES]);

#endif
