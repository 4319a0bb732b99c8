/* The reader's state, and the lines of a trace that are no events: the first line, rows of tables, steps.
 * Each call reads one line, which `scan` has just begun. */
#ifndef TIDE_TRACE_TRACE_ROWS_H
#define TIDE_TRACE_TRACE_ROWS_H

#include "src/trace/trace_model.h"
#include "src/trace/trace_scan.h"

typedef struct tide_trace_reader {
    tide_trace_model *model;
    tide_trace_scan scan;
    bool has_begun;                 /* the first line has been read */
    bool has_ended;                 /* the line `end` has been read; no line may follow */
    uint64_t dropped;               /* number of lost events, the sum over the events `dropped` */
    uint32_t passes_before_drop;    /* passes that had begun before the last event `dropped` */
    uint32_t activations_used;      /* the highest number of an activation that an op names, plus one */
    uint64_t activations_used_line; /* the line that names it */
} tide_trace_reader;

void tide_trace_read_first(tide_trace_reader *reader);
void tide_trace_read_table(tide_trace_reader *reader);
void tide_trace_read_step(tide_trace_reader *reader);

#endif
