/* `tidepool train --auto`: plan and tune before the run. */
#ifndef TIDE_TOOLS_TRAIN_AUTO_H
#define TIDE_TOOLS_TRAIN_AUTO_H

#include "src/train/trainer.h"
#include "tools/train/train_options.h"

/* Choose chunk size, recompute, the optimizer's place and prefetch, as far as they are not on the command line, by prediction: at
 * most ten seconds of it, and what it takes to measure this machine and the model's kernels once. Nothing chosen changes a bit.
 * Tells what and why on stdout. A wanted stop, or the time, ends the search with the best so far, if that is nothing
 * with the run as given. BUDGET: nothing fits; statuses of measuring and of tide_tune. */
TIDE_NODISCARD tide_status tide_train_auto(const tide_train_settings *settings,
                                           tide_trainer_options *options);

#endif
