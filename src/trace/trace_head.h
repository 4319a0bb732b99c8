/* Writes a trace's first line and its tables, in the order of docs/trace.md. */
#ifndef TIDE_TRACE_TRACE_HEAD_H
#define TIDE_TRACE_TRACE_HEAD_H

#include "src/trace/trace.h"

/* Gets each line with its newline; a status other than OK stops the writing. */
typedef tide_status (*tide_trace_put)(void *context, const char *line, size_t bytes);

/* Write the lines through `put`. `path` is only for messages. NO_MEMORY, or the status that `put`
 * returned. */
tide_status tide_trace_head_write(const tide_trace_head *head, uint64_t keep_steps, const char *path,
                                  tide_trace_put put, void *context);

#endif
