/* The command line of `tidepool export`. */
#ifndef TIDE_TOOLS_EXPORT_OPTIONS_H
#define TIDE_TOOLS_EXPORT_OPTIONS_H

#include "tools/options.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct tide_export_settings {
    const char *checkpoint;
    const char *out;
    int dtype; /* run's, bf16, fp16, fp32 */
    uint64_t max_shard_bytes;
} tide_export_settings;

/* The default size of a shard, as in transformers. */
#define TIDE_EXPORT_SHARD_TEXT  "5GB"
#define TIDE_EXPORT_SHARD_BYTES UINT64_C(5000000000)

extern const tide_option_table tide_export_table;

#endif
