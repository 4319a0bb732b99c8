/* A trace's steps, each with its account: where its time went, what it moved and what was there when it was asked
 * for. Of the events that its metrics line counts (docs/trace.md), checked against that line.
 */
#ifndef TIDE_TRACE_TRACE_STEPS_H
#define TIDE_TRACE_TRACE_STEPS_H

#include "src/trace/trace_model.h"

/* A figure that the events do not add up to. `member` NULL: there is none. */
typedef struct tide_step_difference {
    const char *member; /* of the metrics line */
    double said, told;  /* by the line; by the events */
} tide_step_difference;

/* By tier: copies to it, updates on it. */
typedef struct tide_step_account {
    const tide_traced_step *line;                    /* its number, seconds, sums */
    double rest_seconds;                             /* of the step: neither compute nor stall */
    double stall_seconds_by[TIDE_STALL_CAUSE_COUNT]; /* these four as the events tell */
    double compute_seconds;
    double update_seconds[TIDE_TIER_COUNT];
    uint64_t bytes[TIDE_TIER_COUNT];
    uint64_t bytes_by_reason[TIDE_TIER_COUNT][TIDE_REASON_COUNT];
    uint64_t bytes_by_space[TIDE_TIER_COUNT][TIDE_SPACE_COUNT];
    uint64_t planned_copies[TIDE_TIER_COUNT]; /* of the spaces that a plan counts: params and activations */
    uint64_t evictions, demand_fetches, prefetches; /* moves */
    uint64_t asked, lacked;       /* chunks that requests asked for, and that were not there */
    const tide_trace_event *plan; /* in force; NULL: none yet, or not in the trace */
    tide_step_difference difference;
    bool is_exact; /* whole, and so is what came before it: fetches made ahead and all */
} tide_step_account;

typedef struct tide_trace_steps {
    const tide_trace_model *model;
    tide_step_account *steps; /* the whole ones, in order */
    uint32_t count;
    uint32_t steady,
        steady_end;  /* [steady, steady_end) are one another's like: the last that follow each other, without
                                    warm-up and, if others are left, the run's last, which ends with nothing behind it */
    uint64_t *moves; /* by chunk: copies either way in the steady steps */
    uint64_t *moved_bytes; /* likewise */
} tide_trace_steps;

/* NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_steps_make(const tide_trace_model *model, tide_trace_steps *steps);
void tide_trace_steps_free(tide_trace_steps *steps); /* zeroed: allowed */

/* Whether the event counts for a steady step. */
bool tide_trace_is_steady(const tide_trace_steps *steps, const tide_trace_event *event);

/* The step's account, NULL if it is not there or not whole. */
tide_step_account *tide_trace_steps_find(const tide_trace_steps *steps, uint64_t step);

/* Stalls of one op or slice, for one chunk and cause. */
typedef struct tide_stall_series {
    const tide_trace_event *longest;
    uint64_t count; /* in the steady steps */
    double seconds; /* all together */
} tide_stall_series;

/* The series with the longest stalls of the steady steps, longest first; `count`: how many, at most `most`.
 * NO_MEMORY. */
TIDE_NODISCARD tide_status tide_trace_longest_stalls(const tide_trace_steps *steps,
                                                     tide_stall_series *longest, uint32_t most,
                                                     uint32_t *count);

/* Chunks that moved, most bytes first; how many, at most `most`. */
uint32_t tide_trace_most_moved(const tide_trace_steps *steps, uint32_t *chunks, uint32_t most);

#endif
