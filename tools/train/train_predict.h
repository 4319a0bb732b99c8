/* tidepool train --device null: finds the machine that the null device imitates, whose times tidepool plan
 * predicts, too. */
#ifndef TIDE_TOOLS_TRAIN_PREDICT_H
#define TIDE_TOOLS_TRAIN_PREDICT_H

#include "src/perf/performance_model.h"
#include "tools/plan/plan_machine.h"

typedef struct tide_train_prediction {
    tide_plan_machine machine;
    tide_machine_profile_clock *clock;
    char device[TIDE_PERFORMANCE_DEVICE_BYTES];
} tide_train_prediction; /* zeroed: no prediction */

/* Find --machine, measure it if it is this machine and not measured yet, print its rates, and set `options`
 * for a run on it. Statuses of tide_plan_machine_find. Close the prediction in any case, after the trainer is
 * destroyed. */
TIDE_NODISCARD tide_status tide_train_predict_open(const tide_train_settings *settings,
                                                   tide_trainer_options *options,
                                                   tide_train_prediction *prediction);
/* Let the trainer's device imitate the machine from now on. The trainer must have been created with the same
 * options. */
TIDE_NODISCARD tide_status tide_train_predict_begin(const tide_train_prediction *prediction,
                                                    tide_trainer *trainer);
void tide_train_predict_close(tide_train_prediction *prediction);

#endif
