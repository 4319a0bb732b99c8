/* `tidepool train --auto`: plan and tune before the run. */
#ifndef TIDE_TOOLS_TRAIN_AUTO_H
#define TIDE_TOOLS_TRAIN_AUTO_H

#include "src/train/trainer.h"
#include "tools/train/train_options.h"

/* Choose chunk size, recompute, optimizer placement and prefetch, except those that the command line gives,
 * by predicting the step time of each candidate. Prints the choice and the reason on stdout. The search takes
 * at most ten seconds; before it the machine and the model's kernels are measured, once. No choice changes a
 * bit of the results. A signal, or the end of the time, ends the search with the best candidate so far; if
 * none has fit yet, the run stays as given. BUDGET: nothing fits; statuses of measuring and of tide_tune. */
TIDE_NODISCARD tide_status tide_train_auto(const tide_train_settings *settings,
                                           tide_trainer_options *options);

#endif
