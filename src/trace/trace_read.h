/* Adds a trace's lines to a model. Events are read by the list of their members in trace_fields.h, the other
 * lines by trace_rows.c. */
#ifndef TIDE_TRACE_TRACE_READ_H
#define TIDE_TRACE_TRACE_READ_H

#include "src/trace/trace_rows.h"

void tide_trace_reader_begin(tide_trace_reader *reader, tide_trace_model *model);
/* Read the next line, number `line` of `path`. `text[bytes]` is 0. ARGUMENT: the line does not belong in a
 * trace. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_reader_line(tide_trace_reader *reader, const char *path, uint64_t line,
                                                  const char *text, size_t bytes);

#endif
