/* A trace as a picture for ui.perfetto.dev: spans on tracks, arrows between spans, counters over time.
 *
 *     trace_spans.c      the events' spans, on a track for each stream and for each kind of work
 *     trace_places.c     a track for each slot: the chunk in it and, below the chunk, its states
 *     trace_arrows.c     arrows from each cause to its effect
 *     trace_labels.c     the name and the arguments of a span, made from its event when it is written
 *     trace_chrome.c     writes the picture as JSON
 *
 * Every adding function may run out of memory, which sets memory.lacks and makes later calls do nothing.
 */
#ifndef TIDE_TOOLS_TRACE_PICTURE_H
#define TIDE_TOOLS_TRACE_PICTURE_H

#include "base/array.h"
#include "src/trace/trace_model.h"
#include "tools/trace/trace_text.h"

/* The tracks that every picture has; trace_places.c adds those of the slots. Of spans that begin at the same
 * time, the writer puts those of an earlier track first. So the tracks stand in an order in which causes come
 * before effects, and each arrow finds its beginning in the file before its end. */
typedef enum tide_picture_lane {
    TIDE_LANE_PASSES = 0,
    TIDE_LANE_HOST,
    TIDE_LANE_MOVES,
    TIDE_LANE_MAPPING,
    TIDE_LANE_OUT,
    TIDE_LANE_IN,
    TIDE_LANE_DEVICE_UPDATES,
    TIDE_LANE_HOST_UPDATES,
    TIDE_LANE_COMPUTE,
    TIDE_LANE_STALLS,
    TIDE_LANES,
} tide_picture_lane;

typedef enum tide_picture_counter {
    TIDE_COUNTER_SLOTS = 0, /* these three are the device's; plus TIDE_COUNTERS_OF_TIER they are the host's */
    TIDE_COUNTER_BYTES,
    TIDE_COUNTER_BUDGET,
    TIDE_COUNTERS_OF_TIER,
    TIDE_COUNTER_LINK_IN = 2 * TIDE_COUNTERS_OF_TIER,
    TIDE_COUNTER_LINK_OUT,
    TIDE_COUNTERS,
} tide_picture_counter;

/* How trace_labels.c makes a span's name from its event. Only the first two have arguments. */
typedef enum tide_picture_label {
    TIDE_LABEL_EVENT = 0,
    TIDE_LABEL_SLICE,
    TIDE_LABEL_OP, /* an op without its slice */
    TIDE_LABEL_CHUNK,
    TIDE_LABEL_DEVICE_STATE,
    TIDE_LABEL_HOST_STATE,
} tide_picture_label;

typedef struct tide_picture_track {
    char name[32];
    uint64_t rank; /* tracks stand in this order, from top to bottom */
    bool nests;    /* a span that lies within another is drawn below it */
    /* rows of the track: spans that overlap go to different lanes; trace_chrome.c counts the lanes */
    uint32_t lanes;
    uint64_t tid; /* of lane 0; the other lanes' follow */
} tide_picture_track;

typedef struct tide_picture_span {
    uint64_t begin_ns, end_ns;
    uint64_t event;
    uint32_t track, lane;
    tide_picture_label label;
    bool instant;
} tide_picture_span;

/* One of the two ends of an arrow. It stands at the begin of its span; but if the arrow's second span begins
 * no later than the first one, the second end stands at that span's end. */
typedef struct tide_picture_arrow {
    uint32_t span, number;
    bool ends_here, at_end;
} tide_picture_arrow;

typedef struct tide_picture_value {
    uint64_t t_ns, value;
    tide_picture_counter counter;
} tide_picture_value;

typedef struct tide_picture {
    const tide_trace_model *model;
    uint64_t begin_ns, end_ns;  /* of all events */
    tide_picture_track *tracks; /* the first TIDE_LANES are those of tide_picture_lane */
    tide_picture_span *spans;
    tide_picture_arrow *arrows;
    tide_picture_value *values;
    uint32_t track_count, span_count, arrow_count, value_count;
    uint32_t last_values[TIDE_COUNTERS]; /* each counter's last value, NONE without any */
    uint32_t
        *span_of; /* each event's span, NONE without; for the first event of an op with slices, the op's */
    tide_arrays memory;
} tide_picture;

/* Returns the track's number. */
uint32_t tide_picture_track_add(tide_picture *picture, const char *name, uint64_t rank, bool nests);
/* Returns the span's number. */
uint32_t tide_picture_span_add(tide_picture *picture, const tide_picture_span *span);
/* Call in order of time for each counter; the last of several values at one time counts. */
void tide_picture_value_add(tide_picture *picture, tide_picture_counter counter, uint64_t t_ns,
                            uint64_t value);
/* Add an arrow between the spans of two events, if both have one. The second span must end later than the
 * first one begins. */
void tide_picture_arrow_add(tide_picture *picture, uint64_t from_event, uint64_t to_event);

void tide_picture_spans(tide_picture *picture);
void tide_picture_places(tide_picture *picture);
void tide_picture_arrows(tide_picture *picture); /* when all spans are there */

const char *tide_picture_label_make(const tide_picture *picture, const tide_picture_span *span,
                                    char text[TIDE_TEXT_NAME_BYTES]);
/* If the span has arguments, write them as the member `args` of a JSON object that has other members before
 * it. */
void tide_picture_arguments_write(const tide_picture *picture, const tide_picture_span *span, FILE *out);

/* Write the begin of the file, the text between two pictures, and the file's end. IO. */
void tide_pictures_begin(FILE *out);
void tide_pictures_next(FILE *out);
TIDE_NODISCARD tide_status tide_pictures_end(FILE *out);
/* Write the picture's tracks, spans, arrows and values, once. NO_MEMORY; IO. */
TIDE_NODISCARD tide_status tide_picture_write(tide_picture *picture, FILE *out);

/* Draw the traces, each of another rank, one after the other and write them. NO_MEMORY, IO; the message does
 * not name the file. Bytes may still be in the stream's buffer. */
TIDE_NODISCARD tide_status tide_trace_pictures_write(const tide_trace_model *const *models, uint32_t count,
                                                     FILE *out);

#endif
