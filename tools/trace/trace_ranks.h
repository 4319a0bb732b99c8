/* tidepool trace summary for the traces of several ranks of one run. */
#ifndef TIDE_TOOLS_TRACE_RANKS_H
#define TIDE_TOOLS_TRACE_RANKS_H

#include "tools/trace/trace_files.h"

#include <stdio.h>

/* Print a line for each rank: how long its steps took, the parts of them that were compute and stalls, and in
 * how many steps it was the slowest. Means over the steady steps (trace_steps.h). NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_ranks_print(const tide_traces *traces, FILE *out);

#endif
