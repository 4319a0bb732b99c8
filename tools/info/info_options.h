/* The command line of `tidepool info`. */
#ifndef TIDE_TOOLS_INFO_OPTIONS_H
#define TIDE_TOOLS_INFO_OPTIONS_H

#include "tools/options.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct tide_info_settings {
    bool json;
    const char *device;
    uint64_t threads;
} tide_info_settings;

extern const tide_option_table tide_info_table;

#endif
