/* Measures this machine: the profile `this` in `tidepool plan --machine this`. */
#ifndef TIDE_PERF_MEASURE_H
#define TIDE_PERF_MEASURE_H

#include "src/perf/machine_profile.h"

/* Measure everything but kernels: rates, AdamW by threads, slowdowns, launches. `device` is "host" or
 * "cuda:N"; `threads` 0: as in training. Takes about ten seconds. Statuses of tide_rates_measure. */
TIDE_NODISCARD tide_status tide_machine_profile_measure(const char *device, uint32_t threads,
                                                        uint64_t chunk_bytes, tide_machine_profile *profile);

/* Does the profile describe this machine as it is now? Compares the processor's or GPU's name, the device
 * and the threads. */
bool tide_machine_profile_is_here(const tide_machine_profile *profile, const char *device, uint32_t threads);

/* The path of this machine's profile: machine-DEVICE-THREADS.json in $XDG_CACHE_HOME/tidepool or
 * ~/.cache/tidepool; `threads` 0: as in training. STATE: neither folder is known. */
TIDE_NODISCARD tide_status tide_machine_profile_path(const char *device, uint32_t threads,
                                                     char path[TIDE_MACHINE_PROFILE_PATH_BYTES]);

#endif
