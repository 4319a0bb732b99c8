/* Measures real steps of a run, to test a prediction. */
#ifndef TIDE_TOOLS_TUNE_CONFIRM_H
#define TIDE_TOOLS_TUNE_CONFIRM_H

#include "src/perf/tune.h"

typedef struct tide_confirmed {
    double step_seconds;  /* the median; 0: no step was counted */
    double stall_seconds; /* of the step with the median time */
    uint32_t steps;
} tide_confirmed;

/* Create the run with this choice, on its own device, and run `steps` steps after two that are not counted.
 * Without data the tokens are invented. Reads no weights and no checkpoints, writes nothing. If a signal asks
 * for the end (stop.h), stops between two steps and returns the steps so far. Statuses of tide_trainer_create
 * and _step. */
TIDE_NODISCARD tide_status tide_tune_confirm(const tide_trainer_options *options, const tide_choice *choice,
                                             uint32_t steps, tide_confirmed *confirmed);

#endif
