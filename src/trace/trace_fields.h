/* The members of each event's line in a trace: one list that the writer and the readers share. docs/trace.md
 * explains them; tests/trace/test_trace.py checks that list and documentation agree.
 */
#ifndef TIDE_TRACE_TRACE_FIELDS_H
#define TIDE_TRACE_TRACE_FIELDS_H

#include "tidepool/pool.h"

enum { TIDE_TRACE_FORMAT = 3 };

typedef enum tide_trace_type {
    TIDE_TRACE_COUNT64 = 0,
    TIDE_TRACE_COUNT32,
    TIDE_TRACE_COUNT64_OR_NULL, /* 0 is written as null */
    TIDE_TRACE_COUNT32_OR_NULL, /* TIDE_TRACE_NONE is written as null */
    TIDE_TRACE_TEXT,
    TIDE_TRACE_BOOL,
} tide_trace_type;

typedef struct tide_trace_field {
    const char *name;
    tide_trace_type type;
    size_t offset; /* in tide_trace_event; a reader sets begin_ns and end_ns to t_ns */
} tide_trace_field;

typedef struct tide_trace_shape {
    const char *name; /* the value of the line's `event` */
    const tide_trace_field *fields;
    uint32_t field_count;
} tide_trace_shape;

/* The shape of a kind of event. Every shape begins with `step` and `pass`. */
const tide_trace_shape *tide_trace_shape_of(tide_trace_kind kind);

#endif
