/* Bounds of a training step of gpt2, and the same step in virtual time: for the benchmark `step`, which
 * measures the durations, and for the test schedule_loss, which has them as constants.
 *
 *     bench_step_limit.c   bounds that no step can beat
 *     bench_step_null.c    the step in virtual time, without shared resources */
#ifndef TIDE_TESTS_BENCH_STEP_H
#define TIDE_TESTS_BENCH_STEP_H

#include "src/model/decoder_internal.h"
#include "src/pool/internal.h"
#include "src/train/trainer.h"

enum { STEP_CHUNK_BYTES = 4 << 20, STEP_OPS_MAX = 64 };

/* Times of a step's parts, each measured alone. */
typedef struct step_parts {
    /* by one thread; [0] to the device, [1] from it */
    double copy_seconds_per_byte[2];
    double adam_seconds_per_param; /* wall time of all threads */
    double map_seconds;            /* one thread's map and unmap of a chunk */
} step_parts;

/* Means over the measured steps. */
typedef struct step_counts {
    double seconds;
    double median_seconds;
    double h2d_bytes, d2h_bytes, maps, evictions, demand_fetches, prefetches;
    double compute_seconds; /* time that the compute stream was busy */
    double update_seconds;  /* time that the update stream was busy */
    double host_params;     /* params updated on the host */
    double stall_seconds[TIDE_STALL_CAUSE_COUNT];
    /* timed: time by which the compute stream's oversleeping was corrected (bench_step_session.c) */
    double overslept_seconds;
} step_counts;

/* Numbers of params, and bytes that the pool's own kernels move on the compute stream. */
typedef struct step_sizes {
    double params, wte_params, block_params;
    /* own_bytes: in a step; last_bytes: in its last op, the embedding's backward */
    double own_bytes, last_bytes;
} step_sizes;

step_sizes step_sizes_of(const tide_model_config *config, double params);

/* Parts of a step's compute time: everything before the head, the head, the ops next to the head, the
 * first op (embedding), and the last op with the pool's kernels that follow it before the norm
 * (last_backward). */
typedef struct step_shares {
    double forward, head, last_forward, first_backward;
    double embedding, last_backward;
} step_shares;

/* Shares of the ops' own seconds. */
step_shares step_shares_of(const tide_decoder *model, const double op_seconds[STEP_OPS_MAX]);
/* Shares of all compute, where the pool's own kernels take `own_seconds` in addition to the ops'
 * `op_seconds`. */
step_shares step_shares_beside(step_shares of_ops, double op_seconds, double own_seconds,
                               const step_sizes *sizes);

/* tests/bench/bench_step.c describes the forms. */
typedef enum step_form { STEP_FORM_REAL = 0, STEP_FORM_TIMED, STEP_FORM_DMA, STEP_FORMS } step_form;

typedef struct step_limit_inputs {
    step_form form;
    bool clips;
    uint32_t cores;
    step_sizes sizes;
    step_shares shares; /* shares of compute, the pool's own kernels included */
    step_parts parts;
    /* [0] to the device, [1] from it */
    double link_seconds_per_byte[2];
    /* real: seconds of a step with everything resident and nothing to update */
    double compute_seconds;
} step_limit_inputs;

/* Seconds that a step needs of each resource, and the limits that follow. */
typedef struct step_limit {
    double compute, in, out, maps, copies;
    double adam, update; /* on the host; on the device */
    /* the slowest of them, without and with the link, whatever the order of the work */
    double without_link, all;
    const char *by;
    /* the least time with the best order of moves and updates */
    double ordered;
} step_limit;

step_limit step_limit_of(const step_limit_inputs *inputs, const step_counts *counts);
/* Seconds of a throttled copy: the longer of its time on the link and its memcpy's. */
double step_link_seconds(double bytes, double rate, double copy_seconds_per_byte);

/* --- bench_step_null.c --- */

/* Why compute is idle: the first of these that is under way. */
typedef enum step_idle {
    STEP_IDLE_UPDATE = 0, /* on the host or the device */
    STEP_IDLE_OUT,
    STEP_IDLE_IN,
    STEP_IDLE_ELSE,
    STEP_IDLE_COUNT,
} step_idle;

typedef struct step_null_options {
    /* Options of the measured session, budgets included; the device becomes the null device. */
    const tide_trainer_options *trainer;
    bool clips;
    const double *op_seconds; /* [STEP_OPS_MAX] seconds of each op */
    double device_rate;       /* bytes per second of the pool's own kernels */
    double link_seconds_per_byte[2], adam_seconds_per_param, map_seconds;
    double params;
} step_null_options;

typedef struct step_null_play {
    step_counts counts; /* stalls and the pool's other counters stay 0 */
    double idle_seconds[STEP_IDLE_COUNT];
} step_null_play;

/* Means of the steps in virtual time, after some to settle. */
step_null_play step_null_played(const step_null_options *options);

#endif
