/* The registered ops and their uses: which chunks each op and slice uses, and which of them its end changes.
 * Nothing changes after seal. */
#ifndef TIDE_CHUNK_OPS_H
#define TIDE_CHUNK_OPS_H

#include "base/array.h"
#include "chunk/gradients.h"

#define TIDE_SLICE_NONE UINT32_MAX

/* An op's begin, or the begin of one of its slices. */
typedef struct tide_schedule_step {
    tide_op op;
    uint32_t slice; /* TIDE_SLICE_NONE: the op's params */
} tide_schedule_step;

typedef struct tide_ops {
    tide_arrays arrays;
    const tide_layout *layout;
    tide_gradients gradients;
    tide_op_record *records;
    uint32_t count;
    tide_chunk_set set; /* the set that is being built */
    uint32_t *seen;     /* for each chunk: the number of the set that last included it */
    uint32_t stamp;
} tide_ops;

/* Create an empty list of ops for a sealed layout, which must outlive it. NO_MEMORY. A zeroed list may be
 * destroyed, too. */
tide_status tide_ops_create(tide_ops *ops, const tide_layout *layout);
void tide_ops_destroy(tide_ops *ops);

/* Could the op be added to a manager for this layout, sealed or not? ARGUMENT, naming op and tensor: no name,
 * an unknown pass, an array that is NULL or longer than there are tensors, unknown tensor, a tensor named
 * twice, no access or one that does not fit its kind, GRAD in a FORWARD op, an ACTIVATION tensor whose parts
 * differ from `slices`. */
tide_status tide_op_check(const tide_layout *layout, const tide_op_description *description);
/* Add the next op. ARGUMENT as tide_op_check; NO_MEMORY. */
tide_status tide_ops_add(tide_ops *ops, const tide_op_description *description, tide_op *op);

/* Call when all ops have been added: finds out which chunks the end of each op modifies. */
void tide_ops_seal(tide_ops *ops);

/* The number of chunks of the op that needs most: those of its params and of its largest slice. Sets *op to
 * that op; both are 0 if there is no op. */
uint32_t tide_ops_largest(const tide_ops *ops, tide_op *op);
/* The schedule steps and uses of a step that runs every op once. */
void tide_ops_totals(const tide_ops *ops, uint32_t *schedule_steps, uint32_t *uses);
/* The chunks that a schedule step requests. */
const tide_chunk_set *tide_ops_step_chunks(const tide_ops *ops, tide_schedule_step schedule_step);

#endif
