/* A trace's first line and its tables, in the order of docs/trace.md. */
#ifndef TIDE_TRACE_TRACE_HEAD_H
#define TIDE_TRACE_TRACE_HEAD_H

#include "src/trace/trace.h"

/* Gets each line, newline included; not OK ends it. */
typedef tide_status (*tide_trace_put)(void *context, const char *line, size_t bytes);

/* `path` is named where memory lacks. NO_MEMORY, or what `put` returned. */
tide_status tide_trace_head_write(const tide_trace_head *head, uint64_t keep_steps, const char *path,
                                  tide_trace_put put, void *context);

#endif
