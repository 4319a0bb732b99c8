/* How a trace's events stand in its lines: the one list of members that the writer and the readers share.
 * docs/trace.md says what they mean; tests/trace/test_trace.py holds the two together.
 */
#ifndef TIDE_TRACE_TRACE_FIELDS_H
#define TIDE_TRACE_TRACE_FIELDS_H

#include "tidepool/pool.h"

enum { TIDE_TRACE_FORMAT = 3 };

typedef enum tide_trace_type {
    TIDE_TRACE_COUNT64 = 0,
    TIDE_TRACE_COUNT32,
    TIDE_TRACE_COUNT64_OR_NULL, /* 0 stands for null */
    TIDE_TRACE_COUNT32_OR_NULL, /* TIDE_TRACE_NONE stands for null */
    TIDE_TRACE_TEXT,
    TIDE_TRACE_BOOL,
} tide_trace_type;

typedef struct tide_trace_field {
    const char *name;
    tide_trace_type type;
    size_t offset; /* in tide_trace_event; t_ns is begin_ns and end_ns both */
} tide_trace_field;

typedef struct tide_trace_shape {
    const char *name; /* the line's `event` */
    const tide_trace_field *fields;
    uint32_t field_count;
} tide_trace_shape;

/* Of a kind; `step` and `pass` are in every shape, first. */
const tide_trace_shape *tide_trace_shape_of(tide_trace_kind kind);

#endif
