/* Finds a device's kernels by the device's name ("host", "null" or "cuda:N"), and opens the device.
 *
 *            kernels                  device                memory of its own
 *     host   the CPU's                offload/host/        none: the machine's, shared with the host tier
 *     null   the CPU's, never called  offload/null/        none
 *     cuda:N the module's             the module's          what the GPU has free, less a reserve
 *
 * The null device simulates the host or a GPU, and takes workspace sizes, the smallest chunk size and the
 * memory size from it. "null" simulates the host, "null:cuda:N" a GPU of this machine, and "null" with
 * gpu_memory_bytes > 0 a GPU that this machine lacks
 * (kernels/planned_gpu.c).
 *
 * Find the factory before you describe a model: its kernels say how much workspace the model's ops need. A
 * pool's create opens the device.
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

/* Fill in the factory for a device's name, without opening the device. For a GPU this makes its CUDA context
 * and loads its libraries, which takes a while the first time. ARGUMENT for an unknown name or a GPU that is
 * not there; UNSUPPORTED without module, driver or VMM; NO_MEMORY, DEVICE. */
TIDE_NODISCARD tide_status tide_device_factory_find(const char *device, uint64_t gpu_memory_bytes,
                                                    tide_device_factory *factory);

/* How many threads run the CPU's kernels: options.threads, or a default for the machine. The device itself
 * chooses how many threads the optimizer has if the caller did not. */
int tide_device_factory_threads(const tide_pool_options *options);

/* Is this a name of the null device, for the host or for a GPU? NULL is not. */
bool tide_device_factory_is_null(const char *device);

/* Open the device, as tide_device_host_open does; a GPU's module gets this process's OpenMP function as
 * options.threads_set. */
TIDE_NODISCARD tide_status tide_device_factory_open(const tide_device_factory *factory,
                                                    const tide_device_options *options, tide_device **device);

enum { TIDE_DEVICE_FACTORY_NAME_BYTES = 16, TIDE_DEVICE_FACTORY_REASON_BYTES = 512 };

/* Write to `name` the device that "auto" means: the first GPU that works and takes chunks of `chunk_bytes`,
 * else the host. For the host `reason` says in one line why no GPU was chosen; otherwise it is "". */
void tide_device_factory_choose(uint64_t chunk_bytes, char name[TIDE_DEVICE_FACTORY_NAME_BYTES],
                                char reason[TIDE_DEVICE_FACTORY_REASON_BYTES]);

#endif
