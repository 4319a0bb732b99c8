/* Ops that took longer than they do: a slow kernel is no stall. */
#ifndef TIDE_TOOLS_TRACE_SLOW_H
#define TIDE_TOOLS_TRACE_SLOW_H

#include "src/trace/trace_steps.h"

typedef struct tide_slow_op {
    const tide_trace_event *event;
    double median_seconds; /* of its likes: the same op, its slices taken together */
} tide_slow_op;

/* Those of the steady steps whose kernels ran for more than 1.5 times the median and lost a thousandth of a step, at
 * least; the one that lost most comes first. `all` says how many there are, `slow` holds the first of them, at most
 * `most`. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_slow_ops(const tide_trace_steps *steps, tide_slow_op *slow,
                                               uint32_t most, uint64_t *all);

#endif
