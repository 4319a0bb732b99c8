/* A plot of step time and stall against chunk size, as SVG. */
#ifndef TIDE_TOOLS_TUNE_PLOT_H
#define TIDE_TOOLS_TUNE_PLOT_H

#include "tidepool/status.h"

#include <stdint.h>

enum { TIDE_TUNE_POINTS_MAX = 32 };

typedef struct tide_tune_point {
    uint64_t chunk_bytes;
    double step_seconds, stall_seconds; /* predicted */
    double real_step_seconds;           /* 0: not measured */
} tide_tune_point;

/* Draw at least one point, sorted by chunk size. `title` is plain text. IO: the file can't be written; its
 * old content may be lost. */
TIDE_NODISCARD tide_status tide_tune_plot(const char *path, const char *title, const tide_tune_point *points,
                                          uint32_t count);

#endif
