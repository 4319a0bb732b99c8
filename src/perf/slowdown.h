/* Measures how much streams slow each other, with loads like those of training. */
#ifndef TIDE_PERF_SLOWDOWN_H
#define TIDE_PERF_SLOWDOWN_H

#include "offload/device.h"

/* Measure "host" or "cuda:N" with so many threads (0: as in training). *launch_ns: from the end of a kernel
 * to the begin of the next. Takes some seconds. Statuses of tide_rates_measure. */
TIDE_NODISCARD tide_status tide_slowdown_measure(const char *device, uint32_t threads,
                                                 tide_slowdowns *slowdowns, double *launch_ns);

#endif
