/* The lines of a trace that are no event: the first one, rows of tables, steps. Each call reads one, of which the reader's
 * `scan` has read nothing yet.
 */
#ifndef TIDE_TRACE_TRACE_ROWS_H
#define TIDE_TRACE_TRACE_ROWS_H

#include "src/trace/trace_members.h"

void tide_trace_read_first(tide_trace_reader *reader);
void tide_trace_read_table(tide_trace_reader *reader);
void tide_trace_read_step(tide_trace_reader *reader);

#endif
