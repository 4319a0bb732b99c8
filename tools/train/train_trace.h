/* --trace of tidepool train: what its first lines say of the run. */
#ifndef TIDE_TOOLS_TRAIN_TRACE_H
#define TIDE_TOOLS_TRAIN_TRACE_H

#include "src/trace/trace.h"
#include "tools/train/train_options.h"

/* NULL without --trace. As tide_trace_open. */
TIDE_NODISCARD tide_status tide_train_trace_open(const tide_train_settings *settings, tide_trace **trace);

/* Of the trainer that runs with these options; `machine` is a GPU's name or that of a machine that is played on, NULL: this processor's. As tide_trace_begin. */
TIDE_NODISCARD tide_status tide_train_trace_begin(tide_trace *trace, const tide_train_settings *settings,
                                                  const tide_trainer_options *options, tide_trainer *trainer,
                                                  const char *freeze, const char *machine);

#endif
