/* tidepool train --device null: the machine on which the run is played, as tidepool plan predicts it. */
#ifndef TIDE_TOOLS_TRAIN_PREDICT_H
#define TIDE_TOOLS_TRAIN_PREDICT_H

#include "src/perf/performance_model.h"
#include "tools/plan/plan_machine.h"

typedef struct tide_train_prediction {
    tide_plan_machine machine;
    tide_machine_profile_clock *clock;
    char device[TIDE_PERFORMANCE_DEVICE_BYTES];
} tide_train_prediction; /* zeroed: none */

/* Find --machine, measure it where it is this one and was not, tell which it is, and let `options` mean a run on it. As
 * tide_plan_machine_find. Close it in any case, after the trainer. */
TIDE_NODISCARD tide_status tide_train_predict_open(const tide_train_settings *settings,
                                                   tide_trainer_options *options,
                                                   tide_train_prediction *prediction);
/* From now on the trainer, which was made with these options, plays there. */
TIDE_NODISCARD tide_status tide_train_predict_begin(const tide_train_prediction *prediction,
                                                    tide_trainer *trainer);
void tide_train_predict_close(tide_train_prediction *prediction);

#endif
