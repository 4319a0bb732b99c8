/* Where the gradients of a step are: the one rule, for the manager and for the pool.
 *
 *     values in the place --- GRAD ops add to one fp32 accumulator, READ ops read ---> closing op ends --->
 *     gradient in the place, rounded once ---> update ---> values in the place
 *
 * A param's closing op is the last one registered, of those that go backward and use it. Every other op may
 * run before it, as often as it likes, or not at all; nothing may use the param in the step after it. Where
 * one op alone makes the gradient and closes it, the accumulator ends with the op; else it is shared: it
 * lives from op to op.
 *
 * A gradient waits when something was added to it and its closing op has not run. A closing op that is waited
 * for may add to other gradients, which then wait for theirs: all those ops are needed. Were one of them
 * unable to run, a gradient would be lost. So an op is refused that closes what a needed op uses, or that
 * would need an op which can't run any more. Then a step can always be ended: of the needed ops the one
 * registered first may run next. It closes nothing that another of them uses, for that one, being registered
 * later, would close it.
 *
 * Like the manager that owns it: no threads, no clock.
 */
#ifndef TIDE_CHUNK_GRADIENTS_H
#define TIDE_CHUNK_GRADIENTS_H

#include "chunk/array.h"
#include "chunk/op_record.h"

typedef struct tide_gradient {
    tide_op closing_op; /* TIDE_OP_NONE: no op uses the param backward */
    tide_op maker;      /* the first op that makes it, TIDE_OP_NONE if none does */
    bool is_tied;       /* more than one op makes it */
    bool is_added;      /* this step: an op that makes it has ended */
    bool is_closed;     /* this step: the place holds it */
} tide_gradient;

typedef struct tide_gradients {
    const tide_layout *layout;
    tide_gradient *params;
    tide_op_record *ops; /* the owner's; the gradients write only `needed` in them */
    uint32_t op_count;
    uint32_t waiting_count; /* gradients that wait */
    uint32_t look;          /* counts the searches for needed ops */
} tide_gradients;

/* For the params of a sealed layout, which must outlive it; `arrays` may lack memory then. */
void tide_gradients_create(tide_gradients *gradients, const tide_layout *layout, tide_arrays *arrays);
/* Take over the op records: the array may have moved, and the last of its `count` may be new. */
void tide_gradients_take_ops(tide_gradients *gradients, tide_op_record *ops, uint32_t count);

/* Do several ops add to the param's accumulator, or does one that does not close it? All ops have to be added
 * before this call, and before the next. */
bool tide_gradients_is_shared(const tide_gradients *gradients, uint32_t param);

/* Is `op` the closing op of a param whose gradient some op makes? */
bool tide_gradients_may_close(const tide_gradients *gradients, tide_op op, uint32_t param);

/* A step begins: all places hold values, all accumulators nothing. */
void tide_gradients_begin(tide_gradients *gradients);
/* May the op begin? STATE, naming op, params and what they wait for. */
tide_status tide_gradients_check(tide_gradients *gradients, tide_op op);
/* Does the gradient of this param, one of the op's uses, go into its place at the op's end? */
bool tide_gradients_closes(const tide_gradients *gradients, tide_op op, const tide_use *use);
/* The op has ended. */
void tide_gradients_end(tide_gradients *gradients, tide_op op);
/* Closed means added, added means that an op makes it, and who waits is counted. Walks all params. */
bool tide_gradients_is_valid(const tide_gradients *gradients);
/* May the step end? STATE, naming a param that waits and the op it waits for. */
tide_status tide_gradients_check_end(const tide_gradients *gradients);

#endif
