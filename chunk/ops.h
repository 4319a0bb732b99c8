/* The ops of a description in a layout: which chunks each op and slice uses, and which chunks the op's end
 * changes.
 *
 * Owns the op records (op_record.h) and the gradients (gradients.h). Calls layout and gradients.
 */
#ifndef TIDE_CHUNK_OPS_H
#define TIDE_CHUNK_OPS_H

#include "base/array.h"
#include "chunk/gradients.h"

#define TIDE_SLICE_NONE UINT32_MAX

/* An op's begin, or the begin of one of its slices. */
typedef struct tide_schedule_step {
    tide_op op;
    uint32_t slice; /* TIDE_SLICE_NONE: the op itself, with its params */
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

/* Make the records of all ops of the layout's description; the layout must outlive them. NO_MEMORY. Zeroed
 * ops may be destroyed, too. */
tide_status tide_ops_create(tide_ops *ops, const tide_layout *layout);
void tide_ops_destroy(tide_ops *ops);

/* Find out which chunks the end of each op modifies (tide_op_record.modifies). A plan needs to know none. */
void tide_ops_find_modified(tide_ops *ops);

/* The number of chunks of the op that needs the most: of its params and its largest slice together. Sets *op
 * to that op; both are 0 if there is no op. */
uint32_t tide_ops_largest(const tide_ops *ops, tide_op *op);
/* Set how many schedule steps and uses a step has that runs every op once. */
void tide_ops_totals(const tide_ops *ops, uint32_t *schedule_steps, uint32_t *uses);
/* The chunks that a schedule step requests. */
const tide_chunk_set *tide_ops_step_chunks(const tide_ops *ops, tide_schedule_step schedule_step);

#endif
