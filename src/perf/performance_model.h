/* What a run will be like on a machine, before it runs: where every byte goes, whether it fits, and how long a step takes.
 *
 * It is the trainer itself, on the null device: the memory is the run's own, to the byte, and what is refused is refused by
 * the same code with the same words. Time is virtual: the pool's manager, planner and engine run steps, whose kernels, copies
 * and updates last what they do on the machine (machine_profile.h), until steps repeat.
 */
#ifndef TIDE_PERF_PERFORMANCE_MODEL_H
#define TIDE_PERF_PERFORMANCE_MODEL_H

#include "src/perf/machine_profile.h"
#include "src/train/trainer.h"

/* More memory than any run needs: where a machine's is not known, or not to matter. */
#define TIDE_PERFORMANCE_ENOUGH_BYTES (UINT64_C(1) << 60)

enum { TIDE_PERFORMANCE_DEVICE_BYTES = 40 };

/* What a step uses of a machine. */
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
    char largest_op[64];     /* the op that decides the least device budget */
    tide_pool_counters step; /* a mean step's */
    double tokens_per_second;
    double busy_seconds
        [TIDE_RESOURCE_COUNT]; /* of a step, each by itself; the link at the machine's full rate */
    tide_resource bound;       /* the busiest */
    double measured_part;      /* of the kernels' time, what was measured as it is; the rest was inferred */
    uint32_t steps_played;
} tide_performance;

/* `options` as for the run; its device, data, checkpoints and callbacks are not looked at. Threads and link rate are the run's.
 * Statuses and messages of tide_trainer_create without data, and of a step's calls. Any thread, one at a time: the kernels'
 * thread count is the process's. */
TIDE_NODISCARD tide_status tide_performance_make(const tide_trainer_options *options,
                                                 const tide_machine_profile *profile,
                                                 tide_performance *performance);

/* The same as long as `go_on` says so, which is asked between steps; STATE once it says no. */
TIDE_NODISCARD tide_status tide_performance_make_while(const tide_trainer_options *options,
                                                       const tide_machine_profile *profile,
                                                       bool (*go_on)(void *context), void *context,
                                                       tide_performance *performance);

/* The same without a step played: memory alone; `step` and what follows are zero. */
TIDE_NODISCARD tide_status tide_performance_memory(const tide_trainer_options *options,
                                                   const tide_machine_profile *profile,
                                                   tide_performance *performance);

/* What a run leaves open and no memory decides, as the trainer decides it: sequence length, batch, micro-batch. Its budgets and
 * memory are not looked at. Statuses of tide_performance_memory. */
TIDE_NODISCARD tide_status tide_performance_resolve(tide_trainer_options *options);

/* The null device that stands for this machine's: with its memory and its kernels' workspaces. */
void tide_performance_device(const tide_machine_profile *profile, char device[TIDE_PERFORMANCE_DEVICE_BYTES]);

/* Without callbacks, and checks and delays that only slow a run. */
void tide_performance_plain(tide_pool_options *pool);

#endif
