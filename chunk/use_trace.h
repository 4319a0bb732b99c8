/* A recorded step as the planner takes it: uses of chunks, schedule step by schedule step. */
#ifndef TIDE_CHUNK_USE_TRACE_H
#define TIDE_CHUNK_USE_TRACE_H

#include "chunk/layout.h"

/* The effects of a use on its chunk. */
enum {
    TIDE_TRACE_CREATES = 1u << 0,  /* the chunk had no content: nothing to copy in */
    TIDE_TRACE_MODIFIES = 1u << 1, /* a copy on the host is worth nothing afterwards */
    TIDE_TRACE_ENDS = 1u << 2,     /* no content afterwards: nothing to copy out */
    /* The chunk has to go to the host afterwards, with a copy if modified, and the host changes it (its
     * update); the next use copies it in again. */
    TIDE_TRACE_LEAVES = 1u << 3,
};

typedef struct tide_trace_use {
    uint32_t schedule_step;
    tide_chunk chunk;
    uint32_t flags; /* take effect when the use ends */
    /* The use lasts so many schedule steps beyond its own: an op holds its params through its slices. */
    uint32_t held_schedule_steps;
} tide_trace_use;

/* One step. Uses are in order of schedule steps; a chunk is used at most once at a time. All chunks used at a
 * schedule step have to be on the device together. No use lasts beyond the step. */
typedef struct tide_use_trace {
    uint32_t schedule_step_count;
    uint32_t chunk_count; /* chunks are numbered below it; not all are used */
    uint32_t use_count;
    tide_trace_use *uses;
} tide_use_trace;

#endif
