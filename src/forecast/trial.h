/* How long a model's kernels take on a device, found by training it: one or two blocks of it, all in device memory, for a few
 * steps, so that caches and neighbours are as in a run. No kernel is known here by name: what a new one declares is enough. */
#ifndef TIDE_FORECAST_TRIAL_H
#define TIDE_FORECAST_TRIAL_H

#include "src/forecast/platform.h"
#include "src/train/trainer.h"

/* *needed: some kernel that the run's blocks and ends launch has not been measured as it is. */
TIDE_NODISCARD tide_status tide_trial_needed(const tide_trainer_options *options, const tide_platform *platform, bool *needed);

/* Train a part of the model on platform->device, for some five seconds; of each kernel's times the mean of the middle half goes into
 * the platform. Where memory is short the vocabulary is, too. BUDGET, NO_MEMORY: not even that can be had; UNSUPPORTED: a step would
 * take longer than anybody waits. Statuses of the trainer's calls. */
TIDE_NODISCARD tide_status tide_trial_run(const tide_trainer_options *options, tide_platform *platform);

#endif
