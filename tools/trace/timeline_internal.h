/* What tools/trace/timeline.c collects and tools/trace/timeline_write.c writes. */
#ifndef TIDE_TOOLS_TIMELINE_INTERNAL_H
#define TIDE_TOOLS_TIMELINE_INTERNAL_H

#include "tools/trace/timeline.h"

/* Where a text may stand in the file: told once each, then named by its number. */
typedef enum text_role {
    TEXT_EVENT_NAME = 0,
    TEXT_NOTE_NAME,
    TEXT_NOTE_VALUE,
    TEXT_ROLES,
} text_role;

typedef struct text {
    char *text;
    bool told[TEXT_ROLES];
} text;

typedef struct track {
    const char *axis; /* of a counter; static */
    char *name;
    uint32_t parent, rank;
    bool nests, counts;
    tide_timeline_unit unit;
    bool used;           /* it, or one below it, has content */
    uint32_t lanes;      /* of a track with spans */
    uint64_t first_uuid; /* of lane 0; the others follow */
} track;

typedef struct span {
    uint64_t begin_ns, end_ns, source;
    uint32_t track, text, lane;
    bool instant;
} span;

/* One of an arrow's two ends. It is told with the begin of the span from which it goes; and with that of the span to
 * which it goes, or, where that is not later, with its end. */
typedef struct arrow {
    uint32_t span, number;
    bool ends_here, at_end;
} arrow;

typedef struct value {
    uint64_t t_ns, value;
    uint32_t counter;
} value;

struct tide_timeline {
    char *process;
    uint32_t number;
    tide_timeline_describe describe;
    void *context;
    bool failed; /* no memory */

    text *texts;
    /* numbers of texts, NONE where free; a power of two of them, half of them free at least */
    uint32_t *buckets;
    track *tracks;
    span *spans;
    arrow *arrows;
    value *values;
    uint32_t text_count, text_capacity, bucket_count, track_count, track_capacity, span_count, span_capacity,
        arrow_count, arrow_capacity, value_count, value_capacity;
};

#endif
