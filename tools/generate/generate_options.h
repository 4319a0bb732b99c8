/* The command line of `tidepool generate`. */
#ifndef TIDE_TOOLS_GENERATE_OPTIONS_H
#define TIDE_TOOLS_GENERATE_OPTIONS_H

#include "tools/options.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct tide_generate_settings {
    const char *model, *checkpoint; /* NULL: not given */
    const char *prompt_ids;         /* a file; "-": standard input */
    uint32_t tokens;
    double temperature;
    uint32_t top_k;
    uint64_t seed;
    int dtype;          /* auto, bf16, fp16, fp32 */
    const char *device; /* auto, or a device's name */
    uint64_t device_memory_bytes, host_memory_bytes, chunk_bytes;
    uint32_t threads;
    bool report;
} tide_generate_settings;

extern const tide_option_table tide_generate_table;

#endif
