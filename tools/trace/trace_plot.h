/* A plot, in letters, of the slots of both tiers over time. */
#ifndef TIDE_TOOLS_TRACE_PLOT_H
#define TIDE_TOOLS_TRACE_PLOT_H

#include "src/trace/trace_model.h"

#include <stdio.h>

/* Print the content of the device's and the host's slots from `begin_ns` to `end_ns`, in at most ten lines.
 * NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_plot(const tide_trace_model *model, uint64_t begin_ns, uint64_t end_ns,
                                           FILE *out);

#endif
