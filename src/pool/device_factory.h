/* Makes memory and kernels of a device from its name, "host", "null" or "cuda:N".
 *
 *            kernels                  device                memory of its own
 *     host   the CPU's                offload/host/        none: the machine's, shared with the host tier
 *     null   the CPU's, never called  offload/null/        none
 *     cuda:N the module's             the module's          what the GPU has free, less a reserve
 *
 * The null device stands for the host or for a GPU, whose workspaces, least chunks and memory it then has:
 * "null:cuda:N" for a GPU of this machine; with gpu_memory_bytes, which "null" alone reads, for one that is not here
 * (kernels/planned_gpu.c).
 *
 * A caller who describes a model finds the factory first: the kernels say which workspaces the model's ops need.
 * A pool's create opens the device.
 */
#ifndef TIDE_POOL_DEVICE_FACTORY_H
#define TIDE_POOL_DEVICE_FACTORY_H

#include "kernels/kernels.h"
#include "offload/module.h"
#include "tidepool/pool.h"

typedef struct tide_device_factory {
    const tide_module *module; /* NULL: host or null */
    uint32_t ordinal;          /* number of the GPU */
    bool has_data;             /* false: null */
    const tide_kernels *kernels;
    uint64_t chunk_bytes_min;
    uint64_t available_bytes; /* for slots and region; UINT64_MAX: the device has no memory of its own */
    tide_gpu gpu;             /* all zero without a module */
} tide_device_factory;

/* Find out all about a device that is known before it is opened. Makes a GPU ready (its context, its
 * libraries), which takes a while the first time. ARGUMENT for another name or a GPU that is not there;
 * UNSUPPORTED without module, driver or VMM; NO_MEMORY, DEVICE. */
TIDE_NODISCARD tide_status tide_device_factory_find(const char *device, uint64_t gpu_memory_bytes,
                                                    tide_device_factory *factory);

/* How many threads run the CPU's kernels. Where the caller chose no number, the device chooses the optimizer's
 * threads. */
int tide_device_factory_threads(const tide_pool_options *options);

/* Is this a name of the null device, for the host or for a GPU? NULL is not. */
bool tide_device_factory_is_null(const char *device);

/* Open the device, as tide_device_host_open does. Ignores options.threads_set and takes the process's own. */
TIDE_NODISCARD tide_status tide_device_factory_open(const tide_device_factory *factory,
                                                    const tide_device_options *options, tide_device **device);

enum { TIDE_DEVICE_FACTORY_NAME_BYTES = 16, TIDE_DEVICE_FACTORY_REASON_BYTES = 512 };

/* Write to `name` the device that "auto" means: the first GPU that works and takes chunks of `chunk_bytes`,
 * else the host. For the host `reason` says in one line why no GPU was chosen; otherwise it is "". */
void tide_device_factory_choose(uint64_t chunk_bytes, char name[TIDE_DEVICE_FACTORY_NAME_BYTES],
                                char reason[TIDE_DEVICE_FACTORY_REASON_BYTES]);

#endif
