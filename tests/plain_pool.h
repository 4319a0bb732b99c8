/* A pool as its header states it, in plain arrays: it knows nothing of chunks, budgets, streams or threads.
 *
 * A test does to it what it does to a real pool, and asks it before each call what that call must answer. Gradients are fp32
 * sums in the order of the kernels, rounded once by rounding of its own; an optimizer of one's own (plain_own_update) gives
 * the same bits here and there. AdamW is worked out in float64 by the header's formula and compared within a bound of fp32's
 * rounding; then the model takes over the pool's bits, so that no drift adds up.
 */
#ifndef TIDE_TESTS_PLAIN_POOL_H
#define TIDE_TESTS_PLAIN_POOL_H

#include "tidepool/tidepool.h"

#include <stdbool.h>

enum {
    PLAIN_PARAMS_MAX = 8,
    PLAIN_ACTIVATIONS_MAX = 3,
    PLAIN_PARTS_MAX = 4,
    PLAIN_OPS_MAX = 20,
    PLAIN_NONE = -1,
};

typedef struct plain_param {
    uint64_t elements;
    tide_param_class of_class; /* with planes, if it is not frozen */
    float *values[TIDE_STATE_PLANES_MAX]; /* its planes, as rounded as they are kept */
    void *place;        /* MASTER rounded, in the dtype: what READ finds. Changes between steps only */
    float *accumulator; /* fp32 sum of this step */
    float *gradient;    /* rounded, of the last step in which one was complete */
    bool dirty;         /* an op of this step has begun to add to it, its closing op has not ended since */
    bool is_new;        /* the open op is to overwrite its accumulator: nothing was added before */
    bool closed;        /* its place holds its gradient in this step */
    int closing_op;     /* PLAIN_NONE: no BACKWARD or BOTH op uses it */
} plain_param;

typedef struct plain_activation {
    uint32_t parts;
    uint64_t part_bytes;
    bool alive[PLAIN_PARTS_MAX];
    uint32_t seed[PLAIN_PARTS_MAX]; /* of its content (plain_pattern); 0: anything */
} plain_activation;

/* Why an op may not begin. */
typedef enum plain_refusal {
    PLAIN_ALLOWED,
    PLAIN_REFUSED_PASS,   /* it makes gradients, the pass is forward-only */
    PLAIN_REFUSED_CLOSED, /* a param that it uses holds its gradient */
    PLAIN_REFUSED_STUCK,  /* a gradient would wait for an op that could not run any more */
} plain_refusal;

typedef struct plain_op {
    char name[16];
    tide_op_description description; /* its arrays are those below */
    tide_use params[PLAIN_PARAMS_MAX], activations[PLAIN_ACTIVATIONS_MAX];
} plain_op;

typedef struct plain_pool {
    tide_dtype dtype;
    bool own_optimizer;
    plain_param params[PLAIN_PARAMS_MAX];
    plain_activation activations[PLAIN_ACTIVATIONS_MAX];
    plain_op ops[PLAIN_OPS_MAX];
    uint32_t param_count, activation_count, op_count;
    uint64_t updates;

    /* the open step */
    bool step_open;
    tide_step_options step;
    int op, slice; /* PLAIN_NONE: none is open */

    /* The training step that ended last and may still be given up: its update is applied by plain_settle. */
    bool pending;
    tide_step_options pending_step;
    tide_step_result pending_result; /* the norm to 1e-12, the scale of that norm */
    uint32_t skipped_in_row;
    float skipped_scale;
} plain_pool;

/* --- numbers --- */

float plain_round(tide_dtype dtype, float value); /* to the nearest of the dtype, ties to even */
void plain_store(tide_dtype dtype, void *to, const float *values, uint64_t count); /* rounded */
void plain_load(tide_dtype dtype, float *to, const void *from, uint64_t count);
float plain_amount(uint32_t seed, uint32_t index); /* what a kernel adds: sums of such are rounded in fp32 */
void plain_pattern(uint32_t seed, uint64_t first, void *to, uint64_t bytes); /* from its byte `first` on, a multiple of 4 */

/* One piece of a param by an optimizer of one's own, which keeps so many planes. `gradient` NULL: zero. */
void plain_own_update(uint32_t planes, const tide_step_options *step, uint64_t update, float scale, bool decay,
                      const float *gradient, float *const state[], uint64_t count);

/* --- the model --- */

bool plain_create_values(plain_pool *pool); /* after params and ops are drawn: arrays, zero; closing ops. False: no memory */
void plain_destroy(plain_pool *pool);
tide_dtype plain_dtype(const plain_pool *pool, tide_param param, tide_value kind); /* in which it is kept */
tide_value plain_last_value(const plain_pool *pool, tide_param param); /* that it has, from PARAM on */
void plain_set(plain_pool *pool, tide_param param, tide_value kind, uint64_t first, uint64_t count, const float *values);

bool plain_waits(const plain_pool *pool, const tide_step_options *step); /* do updates wait for the norm? */
plain_refusal plain_op_refusal(const plain_pool *pool, tide_op op); /* of the step that is open, between two ops */
bool plain_slice_may_begin(const plain_pool *pool, uint32_t slice);
bool plain_step_may_end(const plain_pool *pool);
bool plain_may_poison(const plain_pool *pool); /* may an update of the open step have begun? */

void plain_step_begin(plain_pool *pool, const tide_step_options *step);
void plain_op_begin(plain_pool *pool, tide_op op);
void plain_slice(plain_pool *pool, uint32_t slice);
void plain_add(plain_pool *pool, tide_param param, uint32_t seed, float factor, float special);
void plain_op_end(plain_pool *pool);
void plain_step_end(plain_pool *pool);
void plain_step_forget(plain_pool *pool); /* the open step is given up */
/* The step that ended last can't be given up any more: its update is applied, with the pool's scale. AdamW changes nothing
 * here but the count: plain_adamw_take does. */
void plain_settle(plain_pool *pool);
/* What the pool's values must be after an AdamW update of plain_settle's step, and are from now on: `got` MASTER, MOMENTUM
 * and VARIANCE of the param. The first element out of bounds, or `elements`. */
uint64_t plain_adamw_take(plain_pool *pool, tide_param param, const float *const got[3]);

#endif
