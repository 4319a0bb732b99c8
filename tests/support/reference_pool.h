/* A reference for a pool: it implements tidepool.h with plain arrays and has no chunks, budgets, streams
 * or threads.
 *
 * A test makes the same calls on it as on a real pool, and before each call asks it for the expected
 * answer. Gradients are fp32 sums in the order of the kernels, one for each sum group, added by recursion
 * and rounded once by the reference's own rounding. With the test's optimizer (ref_own_update) all bits must
 * be equal. AdamW is computed in float64 by the header's formula and compared within a bound of fp32's
 * rounding; then the reference takes over the pool's values, so that errors don't add up.
 */
#ifndef TIDE_TESTS_REF_POOL_H
#define TIDE_TESTS_REF_POOL_H

#include "tidepool/tidepool.h"

#include <stdbool.h>

enum {
    REF_PARAMS_MAX = 8,
    REF_ACTIVATIONS_MAX = 3,
    REF_PARTS_MAX = 24,
    REF_OPS_MAX = 20,
    REF_NONE = -1,
};

typedef struct ref_param {
    uint64_t elements;
    tide_param_class of_class; /* with its number of planes, unless the param is frozen */
    /* The planes, rounded to the precision in which the pool keeps them. */
    float *values[TIDE_STATE_PLANES_MAX];
    void *place;     /* MASTER rounded to the dtype, as READ sees it; changes between steps only */
    float *sums;     /* fp32 sums of this step: [sum_groups][elements] */
    float *gradient; /* the rounded gradient of the last step that completed one */
    /* An op of this step has begun to add to the gradient, and the closing op has not ended since. */
    bool dirty;
    bool is_new;    /* the open op overwrites the sums, since nothing was added before */
    bool closed;    /* the param's memory holds the gradient in this step */
    int closing_op; /* the last op that uses it in backward; REF_NONE: no BACKWARD or BOTH op uses it */
} ref_param;

typedef struct ref_activation {
    uint32_t parts;
    uint64_t part_bytes;
    bool alive[REF_PARTS_MAX];
    uint32_t seed[REF_PARTS_MAX]; /* seed of its content (ref_pattern); 0: undefined content */
} ref_activation;

/* Why an op must not begin. */
typedef enum ref_refusal {
    REF_ALLOWED,
    REF_REFUSED_PASS,   /* the op computes gradients, but the pass is forward-only */
    REF_REFUSED_CLOSED, /* memory of a param that the op uses holds a gradient */
    REF_REFUSED_STUCK,  /* a gradient would wait for an op that could not run any more */
} ref_refusal;

typedef struct ref_op {
    char name[16];
    tide_op_description description; /* its arrays are the two below */
    tide_use params[REF_PARAMS_MAX], activations[REF_ACTIVATIONS_MAX];
} ref_op;

typedef struct reference_pool {
    tide_dtype dtype;
    bool own_optimizer;
    uint32_t sum_groups;
    tide_dtype reduce_dtype;
    ref_param params[REF_PARAMS_MAX];
    ref_activation activations[REF_ACTIVATIONS_MAX];
    ref_op ops[REF_OPS_MAX];
    uint32_t param_count, activation_count, op_count;
    uint64_t updates;

    /* The open step. */
    bool step_open;
    tide_step_options step;
    int op, slice;         /* REF_NONE: none is open */
    uint32_t group;        /* the open op's sum group: that of the slice opened last, or 0 */
    uint32_t group_slices; /* slices opened in it */

    /* The training step that ended last; the caller may still abort it. ref_settle applies its update. */
    bool pending;
    tide_step_options pending_step;
    tide_step_result pending_result; /* the norm is exact to 1e-12; the scale comes from that norm */
    uint32_t skipped_in_row;
    float skipped_scale;
} reference_pool;

/* --- numbers --- */

float ref_round(tide_dtype dtype, float value); /* rounds to the nearest, ties to even */
void ref_store(tide_dtype dtype, void *to, const float *values, uint64_t count); /* rounds the values */
void ref_load(tide_dtype dtype, float *to, const void *from, uint64_t count);
/* The amount that a kernel adds, such that fp32 sums of amounts round. */
float ref_amount(uint32_t seed, uint32_t index);
/* Fills `to` with the pattern's bytes from `first` on; `first` is a multiple of 4. */
void ref_pattern(uint32_t seed, uint64_t first, void *to, uint64_t bytes);

/* The test's optimizer: updates one piece of a param with so many planes. `gradient` NULL: zero. */
void ref_own_update(uint32_t planes, const tide_step_options *step, uint64_t update, float scale, bool decay,
                    const float *gradient, float *const state[], uint64_t count);

/* --- the model --- */

/* Allocates zeroed arrays and finds closing ops; the test has set params and ops before. Returns false if
 * there is no memory. */
bool ref_create_values(reference_pool *pool);
void ref_destroy(reference_pool *pool);
/* Returns the dtype in which the pool keeps the value. */
tide_dtype ref_dtype(const reference_pool *pool, tide_param param, tide_value kind);
/* Returns the last kind of value that the param has. */
tide_value ref_last_value(const reference_pool *pool, tide_param param);
void ref_set(reference_pool *pool, tide_param param, tide_value kind, uint64_t first, uint64_t count,
             const float *values);

/* Whether updates wait for the norm. */
bool ref_waits(const reference_pool *pool, const tide_step_options *step);
ref_refusal ref_op_refusal(const reference_pool *pool, tide_op op); /* for the open step, between two ops */
bool ref_slice_may_begin(const reference_pool *pool, uint32_t slice);
/* Whether the slice's sum group is not before the open one, or the open op makes no gradient. */
bool ref_slice_in_order(const reference_pool *pool, uint32_t slice);
bool ref_makes_gradients(const reference_pool *pool); /* whether the open op has GRAD */
/* Whether the open op must overwrite the param's gradient in the open slice. */
bool ref_is_new(const reference_pool *pool, tide_param param);
bool ref_step_may_end(const reference_pool *pool);
bool ref_may_poison(const reference_pool *pool); /* whether an update of the open step may have begun */

void ref_step_begin(reference_pool *pool, const tide_step_options *step);
void ref_op_begin(reference_pool *pool, tide_op op);
void ref_slice(reference_pool *pool, uint32_t slice);
void ref_add(reference_pool *pool, tide_param param, uint32_t seed, float factor, float special);
void ref_op_end(reference_pool *pool);
void ref_step_end(reference_pool *pool);
void ref_step_forget(reference_pool *pool); /* aborts the open step */
/* Applies the update of the step that ended last, which can't be aborted any more, with the pool's
 * gradient scale. With AdamW it only counts the update; ref_adamw_take changes the values. */
void ref_settle(reference_pool *pool);
/* Checks a param's values after an AdamW update of ref_settle's step and takes them over: `got` are
 * MASTER, MOMENTUM and VARIANCE from the pool. Returns the first element out of bounds, or `elements` if
 * all are right. */
uint64_t ref_adamw_take(reference_pool *pool, tide_param param, const float *const got[3]);

#endif
