/* The lines of a trace that are no event: the first one, rows of tables, steps. Each call reads one, of which the reader's
 * `scan` has read nothing yet.
 */
#ifndef TIDE_TRACE_TRACE_ROWS_H
#define TIDE_TRACE_TRACE_ROWS_H

#include "src/trace/trace_model.h"
#include "src/trace/trace_scan.h"

typedef struct tide_trace_reader {
    tide_trace_model *model;
    tide_trace_scan scan;
    bool has_begun;              /* the line `trace` has been read */
    bool has_ended;              /* the line `end`: nothing may follow */
    uint64_t dropped;            /* told by events */
    uint32_t passes_before_drop; /* as the last event `dropped` was read */
    uint32_t activations_used;   /* by ops: the highest number plus one */
    uint64_t activations_used_line;
} tide_trace_reader;

void tide_trace_read_first(tide_trace_reader *reader);
void tide_trace_read_table(tide_trace_reader *reader);
void tide_trace_read_step(tide_trace_reader *reader);

#endif
