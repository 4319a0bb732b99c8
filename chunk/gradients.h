/* Where the gradients of a step are: in accumulators or in the params' places. The manager and the pool
 * follow this rule:
 *
 *     values in the place --- GRAD ops add to one fp32 accumulator, READ ops read ---> closing op ends --->
 *     gradient in the place, rounded once ---> update ---> values in the place
 *
 * A param's closing op is the last op of the description with a backward pass that uses the param. In a step
 * all other ops may run before it, any number of times; no op may use the param after it. If a single op
 * makes the gradient and closes it, the accumulator lives only as long as that op; otherwise the accumulator
 * is shared and lives from op to op.
 *
 * A gradient waits when an op has added to it and its closing op has not run yet. That closing op is needed.
 * It may add to other gradients itself; then their closing ops are needed, too. If a needed op could not run,
 * a gradient would be lost. Therefore the manager refuses an op that would close a param which a needed op
 * uses, and an op that would need an op which can't run any more. So every step can be ended: the needed op
 * that comes first in the description may always run next. It closes no param that another needed op uses,
 * because that later op would be the param's closing op.
 *
 * Like the manager, which owns it, this code knows no threads and no clock.
 */
#ifndef TIDE_CHUNK_GRADIENTS_H
#define TIDE_CHUNK_GRADIENTS_H

#include "base/array.h"
#include "chunk/op_record.h"

typedef struct tide_gradient {
    tide_op closing_op; /* TIDE_OP_NONE: no op uses the param backward */
    tide_op maker;      /* the first op that makes it, TIDE_OP_NONE if none does */
    bool is_tied;       /* more than one op makes the gradient */
    bool is_added;      /* an op that makes the gradient has ended in this step */
    bool is_closed;     /* the param's place holds the gradient in this step */
} tide_gradient;

typedef struct tide_gradients {
    const tide_layout *layout;
    tide_gradient *params;
    tide_op_record *ops; /* owned by tide_ops; this object writes only their `needed` */
    uint32_t op_count;
    uint32_t waiting_count; /* gradients that wait for their closing op */
    uint32_t look;          /* number of the latest search for needed ops */
} tide_gradients;

/* Set up for the params of a layout and the records of its ops, which must outlive the gradients. Allocates
 * in `arrays`, whose `lacks` is true afterwards if there was no memory. */
void tide_gradients_create(tide_gradients *gradients, const tide_layout *layout, tide_op_record *ops,
                           uint32_t op_count, tide_arrays *arrays);

/* Is the param's accumulator shared: do several ops add to it, or one that is not the closing op? */
bool tide_gradients_is_shared(const tide_gradients *gradients, uint32_t param);

/* Is `op` the closing op of a param whose gradient some op makes? */
bool tide_gradients_may_close(const tide_gradients *gradients, tide_op op, uint32_t param);

/* Call when a step begins: all places hold values, all accumulators are empty. */
void tide_gradients_begin(tide_gradients *gradients);
/* May the op begin? STATE: no; the message names the op, the params, and the ops that they wait for. */
tide_status tide_gradients_check(tide_gradients *gradients, tide_op op);
/* Does the end of this op, of which `use` is a use, write the param's gradient into the param's place? */
bool tide_gradients_closes(const tide_gradients *gradients, tide_op op, const tide_use *use);
/* Call when the op has ended. */
void tide_gradients_end(tide_gradients *gradients, tide_op op);
/* Check that every closed gradient is added, that an added gradient has an op that makes it, and that
 * waiting_count is right. Walks all params. */
bool tide_gradients_is_valid(const tide_gradients *gradients);
/* May the step end? STATE: no; the message names a param whose gradient waits, and the op that it waits
 * for. */
tide_status tide_gradients_check_end(const tide_gradients *gradients);

#endif
