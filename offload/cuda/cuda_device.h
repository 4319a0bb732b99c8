/* A GPU as a device (offload/device.h). The CUDA module opens it. */
#ifndef TIDE_OFFLOAD_CUDA_DEVICE_H
#define TIDE_OFFLOAD_CUDA_DEVICE_H

#include "offload/device.h"

/* Open the GPU of that ordinal. Statuses as of tide_device_host_open, and: ARGUMENT if there is no such GPU,
 * or if a chunk is not a multiple of its granularity (2 MiB so far); UNSUPPORTED, with the reason in the
 * message, if there is no driver or an old one, no virtual memory management, or if an option works only on
 * the host device (hazard_check, guard, fault_handler, link throttle, delays). */
tide_status tide_device_cuda_open(const tide_device_options *options, uint32_t ordinal, tide_device **device);

/* How many threads the host executor's team gets on a machine with `processors` processors: `asked` or, if
 * that is 0, all but two, but at least one. Two are kept free because the caller's thread and the engine's
 * have to answer a GPU within microseconds, while Adam's team never sleeps as long as there are updates. The
 * number of threads never changes the results by a single bit. */
uint32_t tide_cuda_executor_threads(uint32_t asked, uint32_t processors);

#endif
