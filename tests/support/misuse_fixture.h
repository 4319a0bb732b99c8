/* A small training that a test of misuse can put into each state of a pool: two params and three ops,
 * which all use the first param.
 *
 *     forward    saved[m] = input + large                         per micro-batch m
 *     head       gradient of both += 0.1 saved[m] + 0.01 large    (of every seventh element)
 *     backward   gradient of large += the same once more
 */
#ifndef MISUSE_FIXTURE_H
#define MISUSE_FIXTURE_H

#include "tidepool/tidepool.h"

enum {
    FIXTURE_LARGE = 70000, /* elements of param "large", which spans two chunks */
    FIXTURE_SMALL = 1000,  /* elements of param "small" */
    FIXTURE_PART = 300,    /* floats of the activation per micro-batch, and of the input in the region */
    FIXTURE_SLICES = 2,
    FIXTURE_STEPS = 3,                                    /* of a whole training */
    FIXTURE_VALUES = 4 * (FIXTURE_LARGE + FIXTURE_SMALL), /* masters, momenta, variances, params */
};

typedef enum fixture_state {
    FIXTURE_CREATED,
    FIXTURE_STEP,     /* the second step has begun */
    FIXTURE_OP,       /* the step's last op is open with one kernel enqueued */
    FIXTURE_ENDED,    /* the step has ended and its updates are in flight */
    FIXTURE_FAILED,   /* a kernel of the open op has failed */
    FIXTURE_POISONED, /* gradients that are not finite have poisoned the pool */
    FIXTURE_STATES,
} fixture_state;

typedef struct fixture {
    tide_description *description;
    tide_pool *pool;
    fixture_state state;
    tide_param params[2];
    tide_activation saved;
    tide_op forward, head, backward;
    uint64_t updates; /* number of updates when the state was entered */
    /* FIXTURE_VALUES values when the state was entered; if poisoned, those before the poisoning step */
    float *values;
} fixture;

const char *fixture_state_name(fixture_state state);
/* Options of a host pool with small chunks and all checks on. */
tide_pool_options fixture_options(void);
tide_step_options fixture_step_options(void);
/* Describes the model; sets params, saved and ops of `r`. The caller destroys the description. */
tide_description *fixture_describe(fixture *r);
/* Creates a pool and puts it into the state. `r->values` is the caller's memory. */
void fixture_enter(fixture *r, fixture_state state);
/* Continues from the state to the end of the training, reads all values and destroys the pool. */
void fixture_finish(fixture *r, float values[FIXTURE_VALUES]);
void fixture_read_values(const fixture *r, float values[FIXTURE_VALUES]);

#endif
