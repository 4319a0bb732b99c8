/* --trace of tidepool train: opens the trace and writes the run's settings to its head. */
#ifndef TIDE_TOOLS_TRAIN_TRACE_H
#define TIDE_TOOLS_TRAIN_TRACE_H

#include "src/trace/trace.h"
#include "tools/train/train_options.h"

/* Sets *trace to NULL without --trace. Statuses of tide_trace_open. */
TIDE_NODISCARD tide_status tide_train_trace_open(const tide_train_settings *settings, tide_trace **trace);

/* Write the head of the trace. The trainer must have been created with these options. `machine` is the name
 * of the GPU, or of the machine that the null device imitates; NULL: this processor's name is used. `run` is
 * the number that all ranks share. Statuses of tide_trace_begin. */
TIDE_NODISCARD tide_status tide_train_trace_begin(tide_trace *trace, const tide_train_settings *settings,
                                                  const tide_trainer_options *options, tide_trainer *trainer,
                                                  const char *freeze, const char *machine, uint64_t run);

#endif
