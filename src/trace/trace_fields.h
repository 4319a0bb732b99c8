/* The format of an event's line: the members of each kind and the words of each enum. The writer, the reader
 * and the page of `tidepool trace html` share these lists. docs/trace.md explains them;
 * tests/trace/test_trace.py checks that lists and documentation agree.
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
    TIDE_TRACE_WORD,            /* an enum, written as the word of its number */
    TIDE_TRACE_TEXT,
    TIDE_TRACE_BOOL,
} tide_trace_type;

/* The word for an enum's constant; NULL: the enum has no such constant. */
typedef const char *(*tide_trace_words)(uint32_t number);

const char *tide_trace_dtype_word(uint32_t dtype);
const char *tide_trace_space_word(uint32_t space);
const char *tide_trace_pass_word(uint32_t pass);
const char *tide_trace_reason_word(uint32_t reason);
const char *tide_trace_move_word(uint32_t move);
const char *tide_trace_mapping_word(uint32_t mapping);
const char *tide_trace_awaited_word(uint32_t awaited);
const char *tide_trace_holding_word(uint32_t holding);
const char *tide_trace_tier_word(uint32_t tier);
const char *tide_trace_stand_word(uint32_t stand);
const char *tide_trace_content_word(uint32_t content);

typedef struct tide_trace_field {
    const char *name;
    tide_trace_type type;
    /* in tide_trace_event; `t_ns` is stored in begin_ns, and a reader sets end_ns to it, too */
    size_t offset;
    tide_trace_words words; /* of a WORD */
} tide_trace_field;

typedef struct tide_trace_shape {
    const char *name; /* the value of the line's `event` */
    const tide_trace_field *fields;
    uint32_t field_count;
} tide_trace_shape;

/* The shape of a kind of event. Every shape begins with `step` and `pass`. */
const tide_trace_shape *tide_trace_shape_of(tide_trace_kind kind);

#endif
