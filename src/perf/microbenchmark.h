/* Measures how long a model's kernels take on a device, by training one or two blocks of the model for a
 * few steps, all in device memory, so that caches and neighbouring kernels are as in a run. The code knows
 * no kernel by name: label, operations and bytes identify each, so new kernels need no change here. */
#ifndef TIDE_PERF_MICROBENCHMARK_H
#define TIDE_PERF_MICROBENCHMARK_H

#include "src/perf/machine_profile.h"
#include "src/train/trainer.h"

/* *needed: is there a kernel of the run's blocks, embedding or head that the profile does not have with
 * its operations and bytes? */
TIDE_NODISCARD tide_status tide_microbenchmark_needed(const tide_trainer_options *options,
                                                      const tide_machine_profile *profile, bool *needed);

/* Train a part of the model on profile->device for about five seconds, and add to the profile, for each
 * kernel, the mean of the middle half of its times. If memory is short, the part has a smaller vocabulary.
 * BUDGET, NO_MEMORY: even that does not fit; UNSUPPORTED: a step would take too long. Statuses of the
 * trainer's calls. */
TIDE_NODISCARD tide_status tide_microbenchmark_run(const tide_trainer_options *options,
                                                   tide_machine_profile *profile);

#endif
