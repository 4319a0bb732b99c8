/* How long ops' kernels took, and those that took longer than usual, which no stall shows. */
#ifndef TIDE_TOOLS_TRACE_SLOW_H
#define TIDE_TOOLS_TRACE_SLOW_H

#include "src/trace/trace_steps.h"

/* Find the medians of busy nanoseconds in the steady steps, two for each op: medians[2 * op] of its kernels
 * outside slices, medians[2 * op + 1] of a slice; 0 without any. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_op_medians(const tide_trace_steps *steps, double *medians);

typedef struct tide_slow_op {
    const tide_trace_event *event;
    double median_seconds; /* of the op's slices, if the event is a slice, else of the op itself */
} tide_slow_op;

/* Find the ops of the steady steps whose kernels ran for more than 1.5 times the median, and at least a
 * thousandth of a step longer than it; the largest loss first. *all is how many there are, and `slow` holds
 * the first `most` of them. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_slow_ops(const tide_trace_steps *steps, tide_slow_op *slow,
                                               uint32_t most, uint64_t *all);

#endif
