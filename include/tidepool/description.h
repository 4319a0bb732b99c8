/* The description of a model: its params, the activations that outlive an op, and the ops of its steps.
 *
 * You describe a model once. A plan (tide_pool_plan_make) says how much memory a run of the model needs,
 * without allocating it; a pool (tide_pool_create) runs the model. Many plans and pools can be made from one
 * description, with different budgets or chunk sizes.
 *
 * Add params in the order in which forward first uses them, since params added one after another share
 * chunks, and ops in the order in which a training step runs them. A call that fails adds nothing; nothing
 * can be removed. The first plan or pool fixes the description: from then on the calls that add return STATE.
 *
 * pool.h explains the statuses. Only one thread at a time may use a description.
 */
#ifndef TIDEPOOL_DESCRIPTION_H
#define TIDEPOOL_DESCRIPTION_H

#include "tidepool/types.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tide_description tide_description;
typedef uint32_t tide_param; /* each of the three kinds is numbered from 0 as added */
typedef uint32_t tide_activation;
typedef uint32_t tide_op;

/* Make an empty description. All params will have dtype `dtype`. `nonmodel_bytes` (at most 2^50) is the size
 * of your part of the pool's region (tide_region). ARGUMENT, NO_MEMORY. */
TIDE_API tide_status tide_description_create(tide_dtype dtype, uint64_t nonmodel_bytes,
                                             tide_description **description);
/* Destroy a description, after the plans and pools made from it. NULL is allowed. */
TIDE_API void tide_description_destroy(tide_description *description);

/* Add a param of `rank` dimensions (1 to 4), each at least 1; the pool uses only their product. The name
 * is copied and must be unique. `of_class` (types.h) is copied; if it is NULL, the param is trained with
 * AdamW's state and without decay. A step updates every param that is not frozen; if all are frozen, the
 * pool makes forward-only passes alone. A frozen param has neither decay nor state. A state other than
 * AdamW's needs an optimizer of your own (pool.h, section 9). A chunk holds only params with the same
 * state, or only frozen params; there are at most 8 such groups, each of at most 2^48 elements. */
TIDE_API tide_status tide_description_add_param(tide_description *description, const char *name,
                                                const uint64_t *shape, uint32_t rank,
                                                const tide_param_class *of_class, tide_param *param);

/* Add an activation tensor that outlives an op. It has `parts` parts (one per micro-batch; 1 to 2^20) of
 * `part_bytes` (at least 1) each; all activations together have at most 2^50 bytes. The name is copied and
 * must be unique among activations. */
TIDE_API tide_status tide_description_add_activation(tide_description *description, const char *name,
                                                     uint32_t parts, uint64_t part_bytes,
                                                     tide_activation *activation);

/* Add an op (tide_op_description in types.h: pass, params and activations with access, slices, workspace).
 * ARGUMENT, naming op and tensor: no name; an unknown pass; a tensor that was not added or is named twice; an
 * access that does not suit the tensor; GRAD in a FORWARD op or for a frozen param; a number of slices that
 * differs from an activation's number of parts.
 *
 * FORWARD ops that training steps never run (only evaluation or sampling does) may be added anywhere in the
 * order. */
TIDE_API tide_status tide_description_add_op(tide_description *description, const tide_op_description *of_op,
                                             tide_op *op);

TIDE_API bool tide_description_find_param(const tide_description *description, const char *name,
                                          tide_param *param);
/* The number of elements of a param; 0 if there is no such param. */
TIDE_API uint64_t tide_description_param_elements(const tide_description *description, tide_param param);

#ifdef __cplusplus
}
#endif

#endif
