/* A recorded step in the form that the planner reads: the uses of chunks, schedule step by schedule step. */
#ifndef TIDE_CHUNK_USE_TRACE_H
#define TIDE_CHUNK_USE_TRACE_H

#include "chunk/layout.h"

/* The effects of a use on its chunk. */
enum {
    TIDE_TRACE_CREATES = 1u << 0, /* the chunk had no content, so there is nothing to copy in */
    /* the use changes the chunk, so that its host copy is invalid afterwards */
    TIDE_TRACE_MODIFIES = 1u << 1,
    TIDE_TRACE_ENDS = 1u << 2, /* the chunk has no content afterwards, so there is nothing to copy out */
    /* after the use the host updates the chunk: the chunk is copied out if it is dirty, and must be copied in
     * for its next use */
    TIDE_TRACE_LEAVES = 1u << 3,
};

typedef struct tide_trace_use {
    uint32_t schedule_step;
    tide_chunk chunk;
    uint32_t flags; /* TIDE_TRACE_..., in effect when the use ends */
    /* how many schedule steps after its own the use lasts: an op holds its params during its slices */
    uint32_t held_schedule_steps;
} tide_trace_use;

/* One step. Uses are in order of schedule steps. All chunks in use at a schedule step must be on the device
 * together. Uses of the same chunk do not overlap, and no use lasts beyond the step. */
typedef struct tide_use_trace {
    uint32_t schedule_step_count;
    uint32_t chunk_count; /* chunk numbers are below this; some may have no use */
    uint32_t use_count;
    tide_trace_use *uses;
} tide_use_trace;

#endif
