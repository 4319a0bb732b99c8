/* A pool as its header states it, in plain arrays: it knows nothing of chunks, budgets, streams or threads.
 *
 * A test does to it what it does to a real pool, and asks it before each call what that call must answer. Gradients are fp32
 * sums in the order of the kernels, rounded once by rounding of its own; an optimizer of one's own (ref_own_update) gives
 * the same bits here and there. AdamW is worked out in float64 by the header's formula and compared within a bound of fp32's
 * rounding; then the model takes over the pool's bits, so that no drift adds up.
 */
#ifndef TIDE_TESTS_REF_POOL_H
#define TIDE_TESTS_REF_POOL_H

#include "tidepool/tidepool.h"

#include <stdbool.h>

enum {
    REF_PARAMS_MAX = 8,
    REF_ACTIVATIONS_MAX = 3,
    REF_PARTS_MAX = 4,
    REF_OPS_MAX = 20,
    REF_NONE = -1,
};

typedef struct ref_param {
    uint64_t elements;
    tide_param_class of_class;            /* with planes, if it is not frozen */
    float *values[TIDE_STATE_PLANES_MAX]; /* its planes, as rounded as they are kept */
    void *place;        /* MASTER rounded, in the dtype: what READ finds. Changes between steps only */
    float *accumulator; /* fp32 sum of this step */
    float *gradient;    /* rounded, of the last step in which one was complete */
    bool dirty;         /* an op of this step has begun to add to it, its closing op has not ended since */
    bool is_new;        /* the open op is to overwrite its accumulator: nothing was added before */
    bool closed;        /* its place holds its gradient in this step */
    int closing_op;     /* REF_NONE: no BACKWARD or BOTH op uses it */
} ref_param;

typedef struct ref_activation {
    uint32_t parts;
    uint64_t part_bytes;
    bool alive[REF_PARTS_MAX];
    uint32_t seed[REF_PARTS_MAX]; /* of its content (ref_pattern); 0: anything */
} ref_activation;

/* Why an op may not begin. */
typedef enum ref_refusal {
    REF_ALLOWED,
    REF_REFUSED_PASS,   /* it makes gradients, the pass is forward-only */
    REF_REFUSED_CLOSED, /* a param that it uses holds its gradient */
    REF_REFUSED_STUCK,  /* a gradient would wait for an op that could not run any more */
} ref_refusal;

typedef struct ref_op {
    char name[16];
    tide_op_description description; /* its arrays are those below */
    tide_use params[REF_PARAMS_MAX], activations[REF_ACTIVATIONS_MAX];
} ref_op;

typedef struct reference_pool {
    tide_dtype dtype;
    bool own_optimizer;
    ref_param params[REF_PARAMS_MAX];
    ref_activation activations[REF_ACTIVATIONS_MAX];
    ref_op ops[REF_OPS_MAX];
    uint32_t param_count, activation_count, op_count;
    uint64_t updates;

    /* the open step */
    bool step_open;
    tide_step_options step;
    int op, slice; /* REF_NONE: none is open */

    /* The training step that ended last and may still be given up: its update is applied by ref_settle. */
    bool pending;
    tide_step_options pending_step;
    tide_step_result pending_result; /* the norm to 1e-12, the scale of that norm */
    uint32_t skipped_in_row;
    float skipped_scale;
} reference_pool;

/* --- numbers --- */

float ref_round(tide_dtype dtype, float value); /* to the nearest of the dtype, ties to even */
void ref_store(tide_dtype dtype, void *to, const float *values, uint64_t count); /* rounded */
void ref_load(tide_dtype dtype, float *to, const void *from, uint64_t count);
float ref_amount(uint32_t seed, uint32_t index); /* what a kernel adds: sums of such are rounded in fp32 */
void ref_pattern(uint32_t seed, uint64_t first, void *to,
                 uint64_t bytes); /* from its byte `first` on, a multiple of 4 */

/* One piece of a param by an optimizer of one's own, which keeps so many planes. `gradient` NULL: zero. */
void ref_own_update(uint32_t planes, const tide_step_options *step, uint64_t update, float scale, bool decay,
                    const float *gradient, float *const state[], uint64_t count);

/* --- the model --- */

bool ref_create_values(
    reference_pool *pool); /* after params and ops are drawn: arrays, zero; closing ops. False: no memory */
void ref_destroy(reference_pool *pool);
tide_dtype ref_dtype(const reference_pool *pool, tide_param param, tide_value kind); /* in which it is kept */
tide_value ref_last_value(const reference_pool *pool, tide_param param); /* that it has, from PARAM on */
void ref_set(reference_pool *pool, tide_param param, tide_value kind, uint64_t first, uint64_t count,
             const float *values);

bool ref_waits(const reference_pool *pool, const tide_step_options *step); /* do updates wait for the norm? */
ref_refusal ref_op_refusal(const reference_pool *pool,
                           tide_op op); /* of the step that is open, between two ops */
bool ref_slice_may_begin(const reference_pool *pool, uint32_t slice);
bool ref_step_may_end(const reference_pool *pool);
bool ref_may_poison(const reference_pool *pool); /* may an update of the open step have begun? */

void ref_step_begin(reference_pool *pool, const tide_step_options *step);
void ref_op_begin(reference_pool *pool, tide_op op);
void ref_slice(reference_pool *pool, uint32_t slice);
void ref_add(reference_pool *pool, tide_param param, uint32_t seed, float factor, float special);
void ref_op_end(reference_pool *pool);
void ref_step_end(reference_pool *pool);
void ref_step_forget(reference_pool *pool); /* the open step is given up */
/* The step that ended last can't be given up any more: its update is applied, with the pool's scale. AdamW changes nothing
 * here but the count: ref_adamw_take does. */
void ref_settle(reference_pool *pool);
/* What the pool's values must be after an AdamW update of ref_settle's step, and are from now on: `got` MASTER, MOMENTUM
 * and VARIANCE of the param. The first element out of bounds, or `elements`. */
uint64_t ref_adamw_take(reference_pool *pool, tide_param param, const float *const got[3]);

#endif
