/* A recorded step in the form that the planner reads: the uses of chunks, schedule step by schedule step. */
#ifndef TIDE_CHUNK_USE_TRACE_H
#define TIDE_CHUNK_USE_TRACE_H

#include "chunk/layout.h"

/* The effects of a use on its chunk. */
enum {
    TIDE_TRACE_CREATES = 1u << 0, /* the chunk had no content, so there is nothing to copy in */
    /* the use changes the chunk, so that its host copy is worth nothing afterwards */
    TIDE_TRACE_MODIFIES = 1u << 1,
    TIDE_TRACE_ENDS = 1u << 2, /* the chunk has no content afterwards, so there is nothing to copy out */
    /* afterwards the chunk has to go to the host, with a copy if it was changed, and the host updates it; the
     * next use copies it in again */
    TIDE_TRACE_LEAVES = 1u << 3,
};

typedef struct tide_trace_use {
    uint32_t schedule_step;
    tide_chunk chunk;
    uint32_t flags; /* these take effect when the use ends */
    /* the use lasts so many schedule steps longer than its own, because an op holds its params through its
     * slices */
    uint32_t held_schedule_steps;
} tide_trace_use;

/* One step. Uses are in order of schedule steps; a chunk is used at most once at a time. All chunks used at a
 * schedule step have to be on the device together. No use lasts beyond the step. */
typedef struct tide_use_trace {
    uint32_t schedule_step_count;
    uint32_t chunk_count; /* chunk numbers are below this; some may have no use */
    uint32_t use_count;
    tide_trace_use *uses;
} tide_use_trace;

#endif
