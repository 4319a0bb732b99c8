/* An account of each step: the time it spent, the bytes it moved, and how many chunks were ready when an op
 * asked for them. It is the sum of the step's events (docs/trace.md), checked against the step's metrics
 * line. */
#ifndef TIDE_TRACE_TRACE_STEPS_H
#define TIDE_TRACE_TRACE_STEPS_H

#include "src/trace/trace_model.h"

/* A figure of the metrics line that the sum of the events differs from. `member` NULL: there is none. */
typedef struct tide_step_difference {
    const char *member; /* of the metrics line */
    double said;        /* by the line */
    double told;        /* by the events */
} tide_step_difference;

/* Arrays by tier count the copies to the tier and the updates on it. */
typedef struct tide_step_account {
    const tide_traced_step *line; /* the step's metrics line */
    double rest_seconds;          /* of the step: neither compute nor stall */
    /* this and the members below up to `lacked`: sums of the step's events */
    double stall_seconds_by[TIDE_STALL_CAUSE_COUNT];
    double compute_seconds;
    double update_seconds[TIDE_TIER_COUNT];
    uint64_t bytes[TIDE_TIER_COUNT];
    uint64_t bytes_by_reason[TIDE_TIER_COUNT][TIDE_REASON_COUNT];
    uint64_t bytes_by_space[TIDE_TIER_COUNT][TIDE_SPACE_COUNT];
    /* copies of params and activations, the only ones that a plan counts */
    uint64_t planned_copies[TIDE_TIER_COUNT];
    uint64_t evictions, demand_fetches, prefetches; /* moves */
    uint64_t asked, lacked; /* chunks that the ops' requests asked for; those of them that were not ready */
    /* the plan that the step followed; NULL: there was none yet, or it is not in the trace */
    const tide_trace_event *plan;
    tide_step_difference difference;
    bool is_exact; /* the trace lost no event that counts for the step, not even fetches made ahead */
} tide_step_account;

typedef struct tide_trace_steps {
    const tide_trace_model *model;
    tide_step_account *steps; /* of the whole steps, in order */
    uint32_t count;
    /* [steady, steady_end) are the steps that are like each other: the last ones that follow one another,
     * without the warm-up and without the run's last step, which nothing follows, if other steps are left */
    uint32_t steady, steady_end;
    uint64_t *moves, *moved_bytes; /* by chunk: copies either way in the steady steps, and their bytes */
} tide_trace_steps;

/* NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_steps_make(const tide_trace_model *model, tide_trace_steps *steps);
void tide_trace_steps_free(tide_trace_steps *steps); /* zeroed: allowed */

/* Does the event count for a steady step? */
bool tide_trace_is_steady(const tide_trace_steps *steps, const tide_trace_event *event);

/* The step's account; NULL: the trace does not have the step, or not whole. */
tide_step_account *tide_trace_steps_find(const tide_trace_steps *steps, uint64_t step);

/* Stalls of one op or slice, for one chunk and cause. */
typedef struct tide_stall_series {
    const tide_trace_event *longest;
    uint64_t count; /* in the steady steps */
    double seconds; /* of all of them together */
} tide_stall_series;

/* Find the series with the longest stalls of the steady steps, at most `most` of them, longest first. *count
 * is how many it found. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_longest_stalls(const tide_trace_steps *steps,
                                                     tide_stall_series *longest, uint32_t most,
                                                     uint32_t *count);

/* Find the chunks of which most bytes were copied, at most `most` of them, most first. Returns how many it
 * found. */
uint32_t tide_trace_most_moved(const tide_trace_steps *steps, uint32_t *chunks, uint32_t most);

#endif
