/* A trace in memory (docs/trace.md), for the subcommands of `tidepool trace`.
 *
 * The reader takes FILE and the segments beside it (FILE.step-NUMBER, in order of their numbers). It checks
 * every line, and every number against the tables that it refers to. A file that breaks off within its last
 * line and has no line `end` is the trace of a run that was killed: the reader takes the whole lines and sets
 * `is_cut`. It refuses any other fault with one line of message, which says the file, the line's number, the
 * fault and the right form.
 *
 * Events of a step from before it was `given up` get `step` 0, so that no step counts them.
 *
 * The model owns everything in it; texts live as long as the model.
 */
#ifndef TIDE_TRACE_TRACE_MODEL_H
#define TIDE_TRACE_TRACE_MODEL_H

#include "base/array.h"
#include "tidepool/pool.h"

typedef struct tide_traced_pair {
    const char *name, *value;
} tide_traced_pair;

typedef struct tide_traced_param {
    const char *name;
    uint64_t elements;
    bool frozen, decays;
    uint32_t plane_count;
    uint32_t planes[TIDE_STATE_PLANES_MAX]; /* of each plane of the optimizer state: bytes for 32 elements */
} tide_traced_param;

typedef struct tide_traced_segment {
    uint32_t param;
    uint64_t first_element, elements;
} tide_traced_segment;

typedef struct tide_traced_chunk {
    tide_space space;
    uint32_t index;
    uint64_t bytes;
    const tide_traced_segment *params; /* of a PARAM chunk: the parts of params in it */
    uint32_t param_count;
    const uint32_t *of; /* of a STATE chunk: the PARAM chunks whose state it holds */
    uint32_t of_count;
} tide_traced_chunk;

typedef struct tide_traced_use {
    uint32_t tensor, access;
} tide_traced_use;

typedef struct tide_traced_op {
    const char *name;
    tide_pass pass;
    uint32_t slices;
    uint64_t workspace_bytes;
    const tide_traced_use *params, *activations;
    uint32_t param_count, activation_count;
} tide_traced_op;

typedef struct tide_traced_activation {
    const char *name;
    uint32_t parts;
    uint64_t part_bytes, offset_bytes;
} tide_traced_activation;

typedef struct tide_traced_machine {
    const char *name;
    uint32_t cores;
    uint64_t memory_bytes;
    double flops_per_second, device_bytes_per_second, host_bytes_per_second, link_bytes_per_second;
    uint64_t map_ns, unmap_ns;
} tide_traced_machine;

/* A step's metrics line. */
typedef struct tide_traced_step {
    uint64_t step, tokens;
    double loss; /* NAN if null */
    double step_seconds, compute_seconds, stall_seconds, stall_seconds_by[TIDE_STALL_CAUSE_COUNT];
    double predicted_step_seconds; /* NAN if null */
    double adam_host_seconds, adam_device_seconds;
    uint64_t h2d_bytes, d2h_bytes, evictions, demand_fetches, prefetches;
    uint64_t device_bytes_peak, host_bytes_peak;
    bool skipped;
    uint32_t slowest_rank; /* these two: 0 if the line does not have them */
    double slowest_seconds;
    bool is_whole; /* the trace has its pass and lost no event of it */
    uint32_t pass; /* index into `passes`; UINT32_MAX: the trace has no such pass */
} tide_traced_step;

typedef struct tide_traced_pass {
    uint64_t pass;
    uint64_t number; /* of a training step; 0: a forward-only pass */
    bool training, clips, given_up;
    /* times of its events `pass` and `pass end`; end_ns is UINT64_MAX if there is no `pass end` */
    uint64_t begin_ns, end_ns;
} tide_traced_pass;

typedef struct tide_trace_model {
    const char *path;
    const char *version, *device;
    uint32_t rank, ranks;
    uint64_t run; /* the same in all traces of a run of several ranks; 0: a run of one */
    tide_dtype dtype;
    uint64_t chunk_bytes, device_memory_bytes, host_memory_bytes, region_bytes, trace_steps;
    uint32_t device_slots, host_slots;
    tide_traced_pair *settings;
    tide_traced_machine machine;
    tide_traced_param *params;
    tide_traced_chunk *chunks;
    tide_traced_op *ops;
    tide_traced_activation *activations;
    tide_trace_event *events; /* in order of begin_ns; events with the same begin in order of lines */
    /* in order of their numbers; of a step that was given up and repeated only the last try */
    tide_traced_step *steps;
    tide_traced_pass *passes; /* in order of lines */
    uint32_t setting_count, param_count, chunk_count, op_count, activation_count, step_count, pass_count;
    uint64_t event_count;
    uint64_t dropped;   /* events that the writer lost */
    bool is_cut;        /* there is no line `end` */
    tide_arrays memory; /* of texts and of the lists in rows */
} tide_trace_model;

/* IO: the file can't be read. ARGUMENT: it is no trace, or a damaged one. NO_MEMORY. `*model` is set on
 * success only. */
TIDE_NODISCARD tide_status tide_trace_model_read(const char *path, tide_trace_model **model);

void tide_trace_model_free(tide_trace_model *model); /* NULL: allowed */

/* The value of the run's setting of that name; NULL: there is none. */
const char *tide_trace_model_setting(const tide_trace_model *model, const char *name);

#endif
