/* A trace's timeline while it is drawn: what tools/trace/trace_timeline.c, trace_places.c and trace_arrows.c share. */
#ifndef TIDE_TOOLS_TRACE_PICTURE_H
#define TIDE_TOOLS_TRACE_PICTURE_H

#include "chunk/array.h"
#include "src/trace/trace_fields.h"
#include "src/trace/trace_model.h"
#include "tools/trace/timeline.h"

#include <string.h>

/* The tracks, in the order in which one makes another necessary: so an arrow goes where it should also where several
 * of its spans begin at one time. */
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
    TIDE_LANE_DEVICE_MEMORY,
    TIDE_LANE_HOST_MEMORY,
    TIDE_LANE_LINK,
    TIDE_LANE_DEVICE_SLOTS,
    TIDE_LANE_HOST_SLOTS,
    TIDE_LANES,
} tide_picture_lane;

typedef struct tide_picture {
    const tide_trace_model *model;
    tide_timeline *timeline;
    uint32_t tracks[TIDE_LANES];
    uint32_t *chunk_texts; /* NONE until one is needed */
    /* of each event its span, NONE without; of an op's first event in a pass, the whole op's */
    uint32_t *spans;
    uint64_t begin_ns, end_ns; /* of all events */
    tide_arrays memory;
} tide_picture;

/* Its tracks, range and lists, of a picture that has a model and a timeline. False: no memory. */
bool tide_picture_make(tide_picture *picture);

/* A chunk's name as a text of the timeline. */
uint32_t tide_picture_chunk_text(tide_picture *picture, uint32_t chunk);

/* Where chunks are: a track a slot, counters of both tiers. False: no memory. */
bool tide_picture_places(tide_picture *picture);

/* Arrows, when all spans are there. False: no memory. */
bool tide_picture_arrows(tide_picture *picture);

#endif
