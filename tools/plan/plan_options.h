/* The command line of `tidepool plan`: a run, a machine, and what is asked of both. */
#ifndef TIDE_TOOLS_PLAN_OPTIONS_H
#define TIDE_TOOLS_PLAN_OPTIONS_H

#include "tools/train/train_options.h"

typedef struct tide_plan_settings {
    /* what of a run changes its memory and time; the rest as `tidepool train` has it */
    tide_train_settings run;
    const char *machine; /* "this", a file, a preset */
    uint64_t ram_bytes;  /* 0: not given */
    bool json;
    bool largest;
    const char *compare; /* NULL: not asked for */
    int accounting;      /* none, zero, tidepool, patrickstar */
    uint64_t ranks;
    double params; /* 0: the model's */
} tide_plan_settings;

extern const tide_option_table tide_plan_table;

/* Read it and check what one option says against another. ARGUMENT: the message is complete. */
TIDE_NODISCARD tide_status tide_plan_settings_parse(int count, char *const *arguments,
                                                    tide_plan_settings *settings);

#endif
