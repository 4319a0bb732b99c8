/* The sessions that bench_step.c measures: steps of gpt2 in a pool under a budget, on the host device or on
 * one whose kernels, and in the form dma copies too, take time and no core. bench_step_session.c has more. */
#ifndef TIDE_TESTS_BENCH_STEP_SESSION_H
#define TIDE_TESTS_BENCH_STEP_SESSION_H

#include "tests/support/bench_step.h"

typedef struct step_session_options {
    step_form form;
    uint64_t device_bytes; /* 0: as much as everything needs */
    double link_rate;      /* bytes per second each way; 0: not throttled */
    const char *data;
    /* The rest is for the forms timed and dma, whose device sleeps. */
    const double *op_seconds; /* [STEP_OPS_MAX] seconds of each op */
    double device_rate;       /* bytes per second of the pool's own kernels */
    /* dma: seconds of a copy, [0] to the device and [1] from it */
    double copy_seconds_per_byte[2];
} step_session_options;

typedef struct step_session {
    step_session_options options;
    tide_trainer *trainer; /* the form real */
    tide_pool *pool;
    tide_decoder *model; /* the trainer's; the sleeping forms own it */
    tide_trainer_plan plan;
    /* nanoseconds that each op's own kernels took */
    _Atomic uint64_t op_ns[STEP_OPS_MAX];
} step_session;

step_session *step_session_open(const step_session_options *options);
void step_session_close(step_session *session);
/* Runs `settle` steps and then `steps` measured ones without a pause, with the gradient clipped to norm
 * `clip` (0: not clipped), and waits for their updates. */
step_counts step_session_measure(step_session *session, double clip, unsigned settle, unsigned steps);
/* Runs one step of a real session with everything resident, alone and without its update. Returns the
 * seconds that the compute stream was busy, and sets those of each op's own kernels (op_seconds may be
 * NULL). */
double step_session_compute(step_session *session, double op_seconds[STEP_OPS_MAX]);

/* Options of the trainer. Recompute is fixed, so that every budget computes the same, and as `auto` would
 * choose where the params do not fit. A step is one sequence of 256 tokens, or of 32 on a machine without
 * bf16 instructions, where compute would hide everything else. */
tide_trainer_options step_trainer_options(uint64_t device_bytes, const char *data);

/* Prints a figure: the time of a real session's steps with everything resident over that of their launches
 * replayed on the bare device, in turn. From then on, updates are computed but change no weight. */
void step_replay_print(step_session *session, double clip, unsigned rounds, unsigned steps);

#endif
