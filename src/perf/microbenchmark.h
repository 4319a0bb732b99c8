/* How long a model's kernels take on a device, found by training it: one or two blocks of it, all in device memory, for a few
 * steps, so that caches and neighbours are as in a run. No kernel is known here by name: what a new one declares is enough. */
#ifndef TIDE_PERF_MICROBENCHMARK_H
#define TIDE_PERF_MICROBENCHMARK_H

#include "src/perf/machine_profile.h"
#include "src/train/trainer.h"

/* *needed: some kernel that the run's blocks and ends launch has not been measured as it is. */
TIDE_NODISCARD tide_status tide_microbenchmark_needed(const tide_trainer_options *options,
                                                      const tide_machine_profile *profile, bool *needed);

/* Train a part of the model on profile->device, for some five seconds; of each kernel's times the mean of the middle half goes into
 * the profile. Where memory is short the vocabulary is, too. BUDGET, NO_MEMORY: not even that can be had; UNSUPPORTED: a step would
 * take longer than anybody waits. Statuses of the trainer's calls. */
TIDE_NODISCARD tide_status tide_microbenchmark_run(const tide_trainer_options *options,
                                                   tide_machine_profile *profile);

#endif
