/* Lines of a trace into a model: what trace_model.h is made with. Each line is read by the one list of its members:
 * tables and steps by trace_rows.c, events by src/trace/trace_fields.h.
 */
#ifndef TIDE_TRACE_TRACE_READ_H
#define TIDE_TRACE_TRACE_READ_H

#include "src/trace/trace_rows.h"

void tide_trace_reader_begin(tide_trace_reader *reader, tide_trace_model *model);
/* ARGUMENT: the line is no line of a trace; NO_MEMORY. `text[bytes]` is 0. */
TIDE_NODISCARD tide_status tide_trace_reader_line(tide_trace_reader *reader, const char *path, uint64_t line,
                                                  const char *text, size_t bytes);

#endif
