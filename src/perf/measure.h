/* This machine, measured: `this` in `tidepool plan --machine this`. */
#ifndef TIDE_PERF_MEASURE_H
#define TIDE_PERF_MEASURE_H

#include "src/perf/machine_profile.h"

/* All but kernels: rates, AdamW by threads, slowdowns, launches. Of "host" or "cuda:N", with so many threads (0: as in training) and
 * chunks. Some ten seconds. Statuses of tide_rates_measure. */
TIDE_NODISCARD tide_status tide_machine_profile_measure(const char *device, uint32_t threads,
                                                        uint64_t chunk_bytes, tide_machine_profile *profile);

/* Whether a profile is of this machine as it is now: processor, device, its GPU's name, and threads. */
bool tide_machine_profile_is_here(const tide_machine_profile *profile, const char *device, uint32_t threads);

/* Where this machine's file is, with so many threads (0: as in training): machine-DEVICE-THREADS.json in $XDG_CACHE_HOME/tidepool
 * or ~/.cache/tidepool. STATE: neither is known. */
TIDE_NODISCARD tide_status tide_machine_profile_path(const char *device, uint32_t threads,
                                                     char path[TIDE_MACHINE_PROFILE_PATH_BYTES]);

#endif
