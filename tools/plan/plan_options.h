/* The command line of `tidepool plan`: a run, a machine, and the questions about them. */
#ifndef TIDE_TOOLS_PLAN_OPTIONS_H
#define TIDE_TOOLS_PLAN_OPTIONS_H

#include "tools/train/train_options.h"

typedef struct tide_plan_settings {
    /* the settings that change a run's memory and time; the others are the defaults of `tidepool train` */
    tide_train_settings run;
    const char *machine; /* "this", a file, a preset */
    uint64_t ram_bytes;  /* 0: not given */
    bool json;
    bool largest;
    const char *compare; /* NULL: not given */
    int accounting;      /* none, zero, tidepool, patrickstar */
    uint64_t ranks;      /* of a plan, too: run.trainer.pool.ranks.count */
    double params;       /* 0: the model's number */
} tide_plan_settings;

extern const tide_option_table tide_plan_table;

/* Read the command line and check each option against the others. ARGUMENT: the message is complete. */
TIDE_NODISCARD tide_status tide_plan_settings_parse(int count, char *const *arguments,
                                                    tide_plan_settings *settings);

#endif
