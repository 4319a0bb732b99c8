/* A trace as a timeline for ui.perfetto.dev: what was done, where each chunk was, what waited for what. */
#ifndef TIDE_TOOLS_TRACE_TIMELINE_H
#define TIDE_TOOLS_TRACE_TIMELINE_H

#include "src/trace/trace_model.h"
#include "tools/trace/timeline.h"

/* NO_MEMORY, IO; the message does not name the file. */
TIDE_NODISCARD tide_status tide_trace_timeline_write(const tide_trace_model *model, FILE *out);

#endif
