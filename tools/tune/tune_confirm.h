/* Real steps of a run, to see what a prediction is worth. */
#ifndef TIDE_TOOLS_TUNE_CONFIRM_H
#define TIDE_TOOLS_TUNE_CONFIRM_H

#include "src/perf/tune.h"

typedef struct tide_confirmed {
    double step_seconds;  /* the median; 0: not one was made */
    double stall_seconds; /* of that step */
    uint32_t steps;
} tide_confirmed;

/* Make the run anew with this choice, on its own device, and make `steps` steps after two that are not counted. Without data tokens are
 * made up; weights and checkpoints are not read, nothing is written. Between steps a wanted stop (stop.h) ends it, with what there
 * is. Statuses of tide_trainer_create and _step. */
TIDE_NODISCARD tide_status tide_tune_confirm(const tide_trainer_options *options, const tide_choice *choice,
                                             uint32_t steps, tide_confirmed *confirmed);

#endif
