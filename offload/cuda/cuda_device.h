/* A GPU as a device (offload/device.h). The CUDA module opens it. */
#ifndef TIDE_OFFLOAD_CUDA_DEVICE_H
#define TIDE_OFFLOAD_CUDA_DEVICE_H

#include "offload/device.h"

/* As tide_device_host_open, for the GPU of that ordinal. ARGUMENT also where there is no such GPU and for chunks that
 * are no multiple of its granularity (2 MiB so far). UNSUPPORTED, naming it: no driver or one too old, no virtual
 * memory management, or an option that only the host device can honour (hazard_check, guard, fault_handler, link
 * throttle, delays). */
tide_status tide_device_cuda_open(const tide_device_options *options, uint32_t ordinal, tide_device **device);

/* How many threads the host executor's team gets, on a machine of so many processors: `asked`, or, if that is 0,
 * all but two, at least one: the caller's thread and the engine's have to answer a GPU within microseconds,
 * and Adam's team never sleeps while there are updates. The number never changes a bit of the result. */
uint32_t tide_cuda_executor_threads(uint32_t asked, uint32_t processors);

#endif
