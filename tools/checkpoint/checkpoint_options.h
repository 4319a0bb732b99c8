/* The command line of `tidepool checkpoint`. */
#ifndef TIDE_TOOLS_CHECKPOINT_OPTIONS_H
#define TIDE_TOOLS_CHECKPOINT_OPTIONS_H

#include "tools/options.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct tide_checkpoint_settings {
    const char *dir;
    uint64_t step; /* 0: the newest */
    bool quick;
    bool json;
} tide_checkpoint_settings;

extern const tide_option_table tide_checkpoint_table;

#endif
