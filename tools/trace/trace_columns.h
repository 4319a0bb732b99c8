/* A trace's events as columns of numbers, for the page that draws them (page/data.js reads them). The columns
 * of one kind of event follow those of another; a column is its numbers one after the other, each as a varint
 * (7 bits in a byte, lowest first). The columns are the members that the format gives the kind
 * (src/trace/trace_fields.h), without those that no drawing needs; a chunk's place is one number.
 *
 *   plan -> description_write (JSON: kinds and columns) -> events_write (base64) -> free
 */
#ifndef TIDE_TOOLS_TRACE_COLUMNS_H
#define TIDE_TOOLS_TRACE_COLUMNS_H

#include "src/trace/trace_model.h"

#include <stdio.h>

/* The part of the trace that is written: the events that reach into [begin_ns, end_ns), cut at begin_ns, and
 * each chunk's place at begin_ns. */
typedef struct tide_trace_window {
    uint64_t begin_ns, end_ns;
} tide_trace_window;

typedef struct tide_trace_columns tide_trace_columns;

/* The model must outlive the columns. NO_MEMORY; *columns is set on success only. */
TIDE_NODISCARD tide_status tide_trace_columns_plan(const tide_trace_model *model, tide_trace_window window,
                                                   tide_trace_columns **columns);

/* Write the members origin_ns, kinds and enums of a JSON object, without its braces. If a write fails,
 * ferror(out) says so. */
void tide_trace_columns_description_write(const tide_trace_columns *columns, FILE *out);
void tide_trace_columns_events_write(const tide_trace_columns *columns, FILE *out);

void tide_trace_columns_free(tide_trace_columns *columns); /* NULL: allowed */

#endif
