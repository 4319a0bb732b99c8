/* Shared by the files of the benchmark `step`; bench_step.c describes the measurements.
 *
 *     bench_step.c                    options, rows, rounds
 *     bench_step_figures.c            prints the figures of a row
 *     ../support/bench_step_limit.c   bounds that no step can beat
 *     ../support/bench_step_null.c    the same step in virtual time, without shared resources
 *     bench_step_parts.c              copies, maps and Adam, each alone
 *     bench_step_replay.c             a resident step's launches without manager, engine, pool and trainer
 *     bench_step_session.c            a pool of gpt2 under a budget, its steps and counters
 *     bench_step_timed.c              a device whose kernels take time and no core; counts a device's
 *                                     updates */
#ifndef TIDE_TESTS_BENCH_STEP_H
#define TIDE_TESTS_BENCH_STEP_H

#include "src/model/decoder_internal.h"
#include "src/pool/internal.h"
#include "src/train/trainer_internal.h"

#include <stdio.h>

enum { STEP_CHUNK_BYTES = 4 << 20, STEP_OPS_MAX = 64 };

/* Ends the program with the library's message unless `status` is TIDE_OK. */
void step_ok(tide_status status, const char *what);

/* --- bench_step_parts.c --- */

/* Times of a step's parts, each measured alone. */
typedef struct step_parts {
    /* by one thread; [0] to the device, [1] from it */
    double copy_seconds_per_byte[2];
    double adam_seconds_per_param; /* wall time of all threads */
    double map_seconds;            /* one thread's map and unmap of a chunk */
} step_parts;

typedef struct step_parts_fixture step_parts_fixture;

step_parts_fixture *step_parts_open(void);
/* Sets `parts` to the medians of a few repetitions. No pool may work meanwhile. */
void step_parts_measure(step_parts_fixture *fixture, step_parts *parts);
/* Compares Adam, which some limits are computed from, with reading alone and writing alone
 * (bench_memory.h). No pool may work meanwhile. */
double step_parts_agreement(step_parts_fixture *fixture, const char **relation);
void step_parts_close(step_parts_fixture *fixture);

/* --- bench_step_session.c --- */

typedef struct step_session_options {
    bool timed;
    uint64_t device_bytes; /* 0: as much as everything needs */
    double link_rate;      /* bytes per second each way; 0: not throttled */
    /* timed: [STEP_OPS_MAX], how long each op occupies the compute stream */
    const double *op_seconds;
    const char *data;
} step_session_options;

typedef struct step_session step_session;

/* Means over the measured steps. */
typedef struct step_counts {
    double seconds;
    double median_seconds;
    double h2d_bytes, d2h_bytes, maps, evictions, demand_fetches, prefetches;
    double compute_seconds; /* time that the compute stream was busy */
    double update_seconds;  /* time that the update stream was busy */
    double host_params;     /* params updated on the host */
    double stall_seconds[TIDE_STALL_CAUSE_COUNT];
    /* timed: time by which the compute stream's oversleeping was corrected (bench_step_timed.c) */
    double overslept_seconds;
} step_counts;

step_session *step_session_open(const step_session_options *options);
/* Runs a training step with the gradient clipped to norm `clip` (0: not clipped). */
void step_session_step(step_session *session, double clip);
/* Real form: sets the learning rate to 0, so that updates are computed from now on but change no weight. */
void step_session_rest(step_session *session);
/* Runs `settle` steps and then `steps` measured ones without a pause. */
void step_session_measure(step_session *session, double clip, unsigned settle, unsigned steps,
                          step_counts *counts);
/* Runs one step of a real session with everything resident, alone and without its update. Returns the
 * seconds that the compute stream was busy, and sets those of each op's own kernels (op_seconds may be
 * NULL). */
double step_session_compute(step_session *session, double op_seconds[STEP_OPS_MAX]);
const tide_pool_plan *step_session_plan(const step_session *session);
const tide_decoder *step_session_model(const step_session *session);
tide_pool *step_session_pool(const step_session *session);
/* Waits for updates. Ends the program unless the values of the first and the last param are finite. */
void step_session_check(step_session *session);
void step_session_close(step_session *session);

/* Options of the trainer. Recompute is fixed, so that every budget computes the same, and as `auto` would
 * choose where the params do not fit. */
tide_trainer_options step_trainer_options(uint64_t device_bytes, const char *data);
/* Tokens of a step, which is one sequence: 256, or 32 on a machine without bf16 instructions, where
 * compute would hide everything else. */
uint32_t step_tokens(void);
/* Sets the least device budget and the bytes of model data and of the region. */
void step_plan(tide_pool_plan *plan);

/* --- bench_step_replay.c --- */

/* Prints a figure: the time of a real session's steps with everything resident over that of their launches
 * replayed on the bare device, in turn. */
void step_replay_print(step_session *session, double clip, unsigned rounds, unsigned steps);

/* --- bench_step_limit.c --- */

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

/* bench_step.c describes the forms. */
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

/* --- bench_step_figures.c --- */

enum { STEP_LINKS = 4, STEP_ROUNDS_MAX = 3, STEP_REQUIRED_BUDGET = 25 };

extern const char *const step_form_names[STEP_FORMS];
extern const char *const step_link_names[STEP_LINKS];

typedef struct step_row {
    step_form form;
    double share;
    unsigned budget, link;
    double link_rate; /* bytes per second each way; 0: not throttled */
    double clip;
} step_row;

/* The figures of one round of a row. */
typedef struct step_sample {
    step_counts counts;
    step_limit limits;
    /* the same step in virtual time with the same durations, without shared resources */
    step_null_play played;
    step_limit played_limits;
} step_sample;

typedef struct step_rounds {
    step_sample samples[STEP_ROUNDS_MAX];
    unsigned count;
} step_rounds;

/* The round with the median ratio of step to limit. */
const step_sample *step_rounds_median(const step_rounds *rounds);
/* Prints by how much the largest limit exceeds the step played in virtual time, over all rows printed,
 * since a limit that a step beats is wrong. Prints nothing if there was no row. */
void step_limits_print(void);
/* `params`: number of all trained params, on the host and the device. */
void step_row_print(const step_row *row, const step_rounds *found, double params, uint64_t budget_bytes);

/* --- bench_step_timed.c --- */

typedef struct step_timed_sums {
    uint64_t compute_ns;    /* time that the compute stream was occupied */
    uint64_t update_ns;     /* time that the update stream was occupied */
    uint64_t update_params; /* params that the device updated */
    /* time by which the compute stream slept less, because kernels were taken to begin before the thread
     * came to them */
    uint64_t overslept_ns;
} step_timed_sums;

/* Counts from now on the params that the pool's device updates, which the CPU's kernels do as before. The
 * pool is idle. */
void step_counted_install(tide_pool *pool);

/* Replaces the pool's own kernels by sleeps as long as their bytes take at this bandwidth. The pool is
 * idle. */
void step_timed_install(tide_pool *pool, double device_bytes_per_second);
/* Replaces the pool's chunk copies too by sleeps of so many seconds a byte, [0] to the device and [1] from
 * it: nothing is moved, and copies take neither cores nor memory bandwidth. The pool is idle. */
void step_timed_install_copies(tide_pool *pool, const double seconds_per_byte[2]);
/* Occupies the compute stream for the time of the open op. */
tide_status step_timed_launch(tide_pool *pool, double seconds);
step_timed_sums step_timed_sums_get(void);

#endif
