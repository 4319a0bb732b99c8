/* Measures this machine's rates with the device table and kernels that training uses. `tidepool info` prints
 * them, and the null device predicts with them. Takes about a second. */
#ifndef TIDE_PERF_RATES_H
#define TIDE_PERF_RATES_H

#include "src/perf/machine_profile.h"

/* Measure "host" or "cuda:N" with `threads` of the CPU (0: as in training), and set the
 * profile's device, threads, rates, and times of mappings; of AdamW on the host the rate with these threads. Chunks have `chunk_bytes`,
 * raised to the least that the device allows and lowered to 64 MiB. ARGUMENT, NO_MEMORY, UNSUPPORTED, DEVICE:
 * the profile is unchanged. */
TIDE_NODISCARD tide_status tide_rates_measure(const char *device, uint32_t threads, uint64_t chunk_bytes,
                                              tide_machine_profile *profile);

/* Measure only AdamW on the host, with so many threads. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_rates_host_adam(uint32_t threads, double *bytes_per_second);

#endif
