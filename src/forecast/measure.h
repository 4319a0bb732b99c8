/* This machine, measured: `this` in `tidepool plan --machine this`. */
#ifndef TIDE_FORECAST_MEASURE_H
#define TIDE_FORECAST_MEASURE_H

#include "src/forecast/platform.h"

/* All but kernels: rates, AdamW by threads, paces, launches. Of "host" or "cuda:N", with so many threads (0: as in training) and
 * chunks. Some ten seconds. Statuses of tide_rates_measure. */
TIDE_NODISCARD tide_status tide_platform_measure(const char *device, uint32_t threads, uint64_t chunk_bytes,
                                                 tide_platform *platform);

/* Whether a platform is of this machine as it is now: processor, device, its GPU's name, and threads. */
bool tide_platform_is_here(const tide_platform *platform, const char *device, uint32_t threads);

/* Where this machine's file is, with so many threads (0: as in training): machine-DEVICE-THREADS.json in $XDG_CACHE_HOME/tidepool
 * or ~/.cache/tidepool. STATE: neither is known. */
TIDE_NODISCARD tide_status tide_platform_path(const char *device, uint32_t threads, char path[TIDE_PLATFORM_PATH_BYTES]);

#endif
