/* Predicts a run on a machine: its use of memory to the byte, whether the run fits, and how long a step
 * takes.
 *
 * Memory is the trainer's own plan (tide_trainer_draft_make), so a run is refused with the trainer's
 * messages. Time is virtual: a player (src/pool/player.h) plays steps of the described model until they
 * repeat. Each op lasts as long as its kernels take on the machine; kernels, copies and updates have the
 * machine's speeds (machine_profile.h). */
#ifndef TIDE_PERF_PERFORMANCE_MODEL_H
#define TIDE_PERF_PERFORMANCE_MODEL_H

#include "src/perf/machine_profile.h"
#include "src/train/trainer.h"

/* More memory than any run needs, for a machine whose memory is unknown or must not matter. */
#define TIDE_PERFORMANCE_ENOUGH_BYTES (UINT64_C(1) << 60)

enum { TIDE_PERFORMANCE_DEVICE_BYTES = 24 };

/* The parts of a machine that a step keeps busy. */
typedef enum tide_resource {
    TIDE_RESOURCE_COMPUTE = 0,
    TIDE_RESOURCE_LINK_IN,
    TIDE_RESOURCE_LINK_OUT,
    TIDE_RESOURCE_HOST_ADAM,
    TIDE_RESOURCE_DEVICE_ADAM,
    TIDE_RESOURCE_COUNT,
} tide_resource;

const char *tide_resource_name(tide_resource resource);

typedef struct tide_performance {
    tide_trainer_plan plan;  /* pool.largest_op is NULL */
    char largest_op[64];     /* the op that decides the smallest device budget */
    tide_pool_counters step; /* the mean of the steps that were run */
    double tokens_per_second;
    /* seconds a step in which each resource is busy; for the link, its bytes divided by its rate, with the
     * run's limit and without slowdowns */
    double busy_seconds[TIDE_RESOURCE_COUNT];
    tide_resource bound;  /* the busiest resource */
    double measured_part; /* the part of the ops' kernels' time that was measured; the rest was inferred */
    uint32_t steps_played;
} tide_performance;

typedef struct tide_performance_how {
    bool (*go_on)(void *context); /* asked before each step, ends the prediction with STATE; NULL: play on */
    void *context;
    /* Do not play a run whose kernels alone make it slower than this: then only `plan` (as in
     * tide_performance_memory), `largest_op` and `measured_part` are predicted, and the other members are 0. */
    double tokens_per_second_least;
} tide_performance_how;

/* Predict a run with these options. Device, data, checkpoints and callbacks are ignored; threads and link
 * rate are the run's. `how` may be NULL. Statuses and messages of tide_trainer_create without data, and of a
 * step's calls. Any thread, but one call at a time, since the kernels' thread count is global to the
 * process. */
TIDE_NODISCARD tide_status tide_performance_make(const tide_trainer_options *options,
                                                 const tide_machine_profile *profile,
                                                 const tide_performance_how *how,
                                                 tide_performance *performance);

/* Predict memory only, without any step: `step` and the members after it are zero, and so is
 * plan.pool.device_updates. */
TIDE_NODISCARD tide_status tide_performance_memory(const tide_trainer_options *options,
                                                   const tide_machine_profile *profile,
                                                   tide_performance *performance);

/* Set the sequence length, batch and micro-batch that the options leave open as the trainer would. Ignores
 * budgets and memory. Statuses of tide_performance_memory. */
TIDE_NODISCARD tide_status tide_performance_resolve(tide_trainer_options *options);

/* Set the device of the options to the null device that imitates this machine's device, with its memory and
 * its kernels' workspaces. `device` receives the name, at which the options then point. */
void tide_performance_device(const tide_machine_profile *profile, tide_pool_options *pool,
                             char device[TIDE_PERFORMANCE_DEVICE_BYTES]);

/* Remove callbacks, and the checks and delays that only slow a run. */
void tide_performance_plain(tide_pool_options *pool);

#endif
