/* The registered params, activations and ops, in order of their numbers.
 *
 * Registration, plan.c and seal.c write the model; after seal all threads read it without a lock. `covered`
 * is the exception: values.c changes it, with the lock. Calls the layout.
 */
#ifndef TIDE_POOL_MODEL_H
#define TIDE_POOL_MODEL_H

#include "chunk/layout.h"
#include "tidepool/pool.h"

typedef struct tide_pool_param {
    const char *name; /* owned by `registered` */
    uint64_t elements;
    tide_param_class of_class;               /* the class in force: a trained param has planes */
    uint64_t first_block;                    /* number of its first norm block */
    tide_chunk first_chunk, last_chunk;      /* in the PARAM space */
    uint64_t data_offset_bytes;              /* from the PARAM space's start */
    uint64_t shared_offset_bytes;            /* its shared accumulator in the region; UINT64_MAX: none */
    uint64_t covered[TIDE_STATE_PLANES_MAX]; /* [caller] elements set since the poisoning */
} tide_pool_param;

static inline bool tide_pool_param_is_frozen(const tide_pool_param *param)
{
    return param->of_class.frozen;
}

typedef struct tide_pool_activation {
    const char *name; /* owned by `registered` */
    uint32_t parts;
    uint64_t part_bytes;
    uint64_t offset_bytes; /* of part 0 in the ACTIVATION space */
} tide_pool_activation;

typedef struct tide_pool_op {
    tide_op_description description; /* its arrays and name are the model's copies */
    uint64_t *accumulator_offsets;   /* in the region per param use; UINT64_MAX: no op makes its gradient */
} tide_pool_op;

typedef struct tide_model {
    tide_layout *registered; /* names and sizes, never sealed; refuses a tensor that does not fit */
    tide_pool_param *params;
    uint32_t param_count;
    uint32_t trained_count; /* params that are not frozen */
    tide_pool_activation *activations;
    uint32_t activation_count;
    tide_pool_op *ops;
    uint32_t op_count;
} tide_model;

void tide_model_destroy(tide_model *model);

#endif
