/* What the files of the benchmark `step` share; bench_step.c says what is measured.
 *
 *   bench_step.c          options, rows, rounds
 *   bench_step_figures.c  what is printed of a row
 *   bench_step_limit.c    what no step can be faster than
 *   bench_step_null.c     the same step in virtual time, where nothing shares anything
 *   bench_step_parts.c    copies, maps and Adam, each alone
 *   bench_step_replay.c    what a resident step costs with nobody around it
 *   bench_step_session.c  a pool of gpt2 under a budget, its steps, what it counted
 *   bench_step_timed.c    a device that takes time and no core; what a device updates
 */
#ifndef TIDE_TESTS_BENCH_STEP_H
#define TIDE_TESTS_BENCH_STEP_H

#include "src/model/decoder_internal.h"
#include "src/pool/internal.h"
#include "src/train/trainer_internal.h"

#include <stdio.h>

enum { STEP_CHUNK_BYTES = 4 << 20, STEP_OPS_MAX = 64 };

/* End the program with the library's message unless `status` is OK. */
void step_ok(tide_status status, const char *what);

/* --- bench_step_parts.c --- */

/* What the parts of a step cost alone. */
typedef struct step_parts {
    double copy_seconds_per_byte[2]; /* one thread; to the device, from it */
    double adam_seconds_per_param;   /* all threads, by the clock */
    double map_seconds;              /* one thread; a map and an unmap of a chunk */
} step_parts;

typedef struct step_parts_fixture step_parts_fixture;

step_parts_fixture *step_parts_open(void);
/* The medians of a few repetitions, now. No pool works meanwhile. */
void step_parts_measure(step_parts_fixture *fixture, step_parts *parts);
/* How Adam, of which limits are made, stands to reading and writing alone: bench_memory.h. No pool works meanwhile. */
double step_parts_agreement(step_parts_fixture *fixture, const char **relation);
void step_parts_close(step_parts_fixture *fixture);

/* --- bench_step_session.c --- */

typedef struct step_session_options {
    bool timed;
    uint64_t device_bytes;    /* 0: all that is needed */
    double link_rate;         /* bytes a second, each way; 0: not throttled */
    const double *op_seconds; /* timed: [STEP_OPS_MAX], how long each op occupies the compute stream */
    const char *data;
} step_session_options;

typedef struct step_session step_session;

/* What a step did, on average over those measured. */
typedef struct step_counts {
    double seconds;
    double median_seconds;
    double h2d_bytes, d2h_bytes, maps, evictions, demand_fetches, prefetches;
    double compute_seconds; /* the compute stream was busy (timed: occupied) */
    double update_seconds;  /* likewise the update stream */
    double host_params;     /* updated on the host */
    double stall_seconds[TIDE_STALL_CAUSE_COUNT];
    double overslept_seconds; /* timed: the compute stream's, given back (bench_step_timed.c) */
} step_counts;

step_session *step_session_open(const step_session_options *options);
/* A training step, clipped to `clip` (0: not). */
void step_session_step(step_session *session, double clip);
/* Real: updates are computed and change no weight from now on, as the learning rate is 0. */
void step_session_rest(step_session *session);
/* `settle` steps, then `steps` measured ones, one after another without a pause. */
void step_session_measure(step_session *session, double clip, unsigned settle, unsigned steps,
                          step_counts *counts);
/* One step with nothing else under way and its update left out: seconds of the compute stream, and of each op's own
 * kernels (op_seconds may be NULL). Real, with everything resident. */
double step_session_compute(step_session *session, double op_seconds[STEP_OPS_MAX]);
const tide_pool_plan *step_session_plan(const step_session *session);
const tide_decoder *step_session_model(const step_session *session);
tide_pool *step_session_pool(const step_session *session);
/* Dies unless values of the first and the last param are finite. Waits for updates. */
void step_session_check(step_session *session);
void step_session_close(step_session *session);

/* Recompute is fixed, so that every budget computes the same: it is what `auto` chooses where params do not fit. */
tide_trainer_options step_trainer_options(uint64_t device_bytes, const char *data);
/* A sequence of so many tokens is a step: 256, or 32 where the machine has no instructions for products of bf16 and
 * compute would hide everything else. */
uint32_t step_tokens(void);
/* The least device budget, the bytes of model data and of the region. */
void step_plan(tide_pool_plan *plan);

/* --- bench_step_replay.c --- */

/* A figure: steps of a real session with everything resident over their launches replayed on the bare device, in turn. */
void step_replay_print(step_session *session, double clip, unsigned rounds, unsigned steps);

/* --- bench_step_limit.c --- */

/* In params; bytes are of the pool's own kernels on the compute stream. */
typedef struct step_sizes {
    double params, wte_params, block_params;
    double own_bytes, last_bytes; /* of a step; of its last op, the embedding's backward */
} step_sizes;

step_sizes step_sizes_of(const tide_model_config *config, double params);

/* What part of compute lies before the head, what part the head takes, its two neighbours, and a step's first op and its
 * last, with what follows it before the norm. */
typedef struct step_shares {
    double forward, head, last_forward, first_backward;
    double embedding, last_backward;
} step_shares;

/* Of the ops' seconds alone. */
step_shares step_shares_of(const tide_decoder *model, const double op_seconds[STEP_OPS_MAX]);
/* Of all compute, where the pool's own kernels take `own_seconds` beside the ops' `op_seconds`. */
step_shares step_shares_beside(step_shares of_ops, double op_seconds, double own_seconds,
                               const step_sizes *sizes);

/* bench_step.c says what they are. */
typedef enum step_form { STEP_FORM_REAL = 0, STEP_FORM_TIMED, STEP_FORM_DMA, STEP_FORMS } step_form;

typedef struct step_limit_inputs {
    step_form form;
    bool clips;
    uint32_t cores;
    step_sizes sizes;
    step_shares shares; /* of compute, the pool's own kernels included */
    step_parts parts;
    double link_seconds_per_byte[2]; /* to the device, from it */
    double compute_seconds;          /* real: of a step with everything resident and nothing to update */
} step_limit_inputs;

/* Seconds that each resource needs for a step. */
typedef struct step_limit {
    double compute, in, out, maps, copies;
    double adam, update;      /* on the host, on the device */
    double without_link, all; /* the slowest of them, with no regard to order */
    const char *by;
    double ordered; /* no order of moves and updates can be faster */
} step_limit;

step_limit step_limit_of(const step_limit_inputs *inputs, const step_counts *counts);
/* A throttled copy takes its time on the link or its memcpy's, whichever is longer. */
double step_link_seconds(double bytes, double rate, double copy_seconds_per_byte);

/* --- bench_step_null.c --- */

/* What is under way while compute is idle: the first of these. */
typedef enum step_idle {
    STEP_IDLE_UPDATE = 0, /* an update, on the host or the device */
    STEP_IDLE_OUT,
    STEP_IDLE_IN,
    STEP_IDLE_ELSE,
    STEP_IDLE_COUNT,
} step_idle;

typedef struct step_null_options {
    /* of the measured session, budgets included; the device is the null device */
    const tide_trainer_options *trainer;
    bool clips;
    const double *op_seconds; /* [STEP_OPS_MAX] */
    double device_rate;       /* bytes a second of the pool's own kernels */
    double link_seconds_per_byte[2], adam_seconds_per_param, map_seconds;
    double params;
} step_null_options;

typedef struct step_null_play {
    step_counts counts; /* stalls and what only a pool counts: 0 */
    double idle_seconds[STEP_IDLE_COUNT];
} step_null_play;

/* A settled step's mean in virtual time. */
step_null_play step_null_played(const step_null_options *options);

/* --- bench_step_figures.c --- */

enum { STEP_LINKS = 4, STEP_ROUNDS_MAX = 3, STEP_REQUIRED_BUDGET = 25 };

extern const char *const step_form_names[STEP_FORMS];
extern const char *const step_link_names[STEP_LINKS];

typedef struct step_row {
    step_form form;
    double share;
    unsigned budget, link;
    double link_rate; /* bytes a second, each way; 0: not throttled */
    double clip;
} step_row;

/* A row's figures, measured once. */
typedef struct step_sample {
    step_counts counts;
    step_limit limits;
    step_null_play played; /* with the same durations, where nothing is shared */
    step_limit played_limits;
} step_sample;

typedef struct step_rounds {
    step_sample samples[STEP_ROUNDS_MAX];
    unsigned count;
} step_rounds;

/* The one with the median ratio to its limit. */
const step_sample *step_rounds_median(const step_rounds *rounds);
/* How far the largest of the limits lies above what was played in virtual time, over all rows printed: a limit that a step
 * beats is none. Nothing if there was no row. */
void step_limits_print(void);
/* `params`: all that are trained, wherever they are updated. */
void step_row_print(const step_row *row, const step_rounds *found, double params, uint64_t budget_bytes);

/* --- bench_step_timed.c --- */

typedef struct step_timed_sums {
    uint64_t compute_ns;    /* the compute stream was occupied */
    uint64_t update_ns;     /* the update stream was */
    uint64_t update_params; /* updated by the device */
    uint64_t overslept_ns;  /* the compute stream slept so much less: kernels begin before it comes to them */
} step_timed_sums;

/* Count what the pool's device updates from now on, by the CPU's kernels as before. The pool is sealed and idle. */
void step_counted_install(tide_pool *pool);

/* The kernels of the pool itself take their bytes over this bandwidth from now on. The pool is sealed and idle. */
void step_timed_install(tide_pool *pool, double device_bytes_per_second);
/* Chunk copies of the pool, too, take time from now on, and neither cores nor memory bandwidth: seconds a byte to the
 * device and from it. Nothing is moved. The pool is sealed and idle. */
void step_timed_install_copies(tide_pool *pool, const double seconds_per_byte[2]);
/* Occupy the compute stream for the time of the open op. */
tide_status step_timed_launch(tide_pool *pool, double seconds);
step_timed_sums step_timed_sums_get(void);

#endif
