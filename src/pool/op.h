/* Ops and slices, and the gradients' way into the params' own places.
 *
 * An op begins when all its chunks are mapped and their copies enqueued: the compute stream, not the caller, waits for the
 * copies. An op ends by enqueuing, for each gradient that it closes (chunk/gradients.h), the rounding of the accumulator into
 * the param's place and the norm of what then stands there; then a record closes the op's work, and its number is the mark
 * that evictions and updates of the op's chunks wait for.
 *
 * Owns the open op and what it holds; [caller]. Calls step, holds, launch, engine, journal, order.
 */
#ifndef TIDE_POOL_OP_H
#define TIDE_POOL_OP_H

#include "src/pool/holds.h"
#include "src/pool/model.h"
#include "src/pool/step.h"

typedef struct tide_open_op {
    const tide_ground *ground;
    const tide_model *model;
    tide_engine *engine;
    tide_launcher *launcher; /* knows which op is open */
    tide_step *step;
    tide_holds holds;
    uint32_t slice; /* while an op is open; UINT32_MAX: none */
} tide_open_op;

bool tide_open_op_is_valid(const tide_open_op *open);

static inline bool tide_open_op_is_there(const tide_open_op *open)
{
    return tide_step_op_is_open(open->step);
}

/* The open one. */
static inline const tide_pool_op *tide_open_op_registered(const tide_open_op *open)
{
    assert(tide_open_op_is_there(open));
    return &open->model->ops[open->launcher->op];
}

#endif
