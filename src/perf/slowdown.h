/* How streams slow each other: measured with loads that are like training's. */
#ifndef TIDE_PERF_SLOWDOWN_H
#define TIDE_PERF_SLOWDOWN_H

#include "offload/device.h"

/* Of "host" or "cuda:N" with so many threads (0: as in training). `launch_ns`: from a kernel's end to the next one's begin.
 * Some seconds. Statuses of tide_rates_measure. */
TIDE_NODISCARD tide_status tide_slowdown_measure(const char *device, uint32_t threads,
                                                 tide_slowdowns *slowdowns, double *launch_ns);

#endif
