/* The ops of a description in a layout: the chunks of each op and slice, and which of them its end changes.
 *
 * Owns the op records (op_record.h) and the rule of gradients (gradients.h). Calls layout and gradients.
 */
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

/* Take the ops of the layout's description; the layout must outlive them. NO_MEMORY. Zeroed ops may be destroyed, too. */
tide_status tide_ops_create(tide_ops *ops, const tide_layout *layout);
void tide_ops_destroy(tide_ops *ops);

/* The number of chunks of the op that needs most: those of its params and of its largest slice. Sets *op to
 * that op; both are 0 if there is no op. */
uint32_t tide_ops_largest(const tide_ops *ops, tide_op *op);
/* The schedule steps and uses of a step that runs every op once. */
void tide_ops_totals(const tide_ops *ops, uint32_t *schedule_steps, uint32_t *uses);
/* The chunks that a schedule step requests. */
const tide_chunk_set *tide_ops_step_chunks(const tide_ops *ops, tide_schedule_step schedule_step);

#endif
