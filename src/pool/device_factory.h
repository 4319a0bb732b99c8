/* What a device's name means: where memory and kernels of "host", "null" and "cuda:N" come from.
 *
 *            kernels                  device                memory of its own
 *     host   the CPU's                offload/host/        none: the machine's, shared with the host tier
 *     null   the CPU's, never called  offload/null/        none
 *     cuda:N the module's             the module's          what the GPU has free, less a reserve
 *
 * The null device plans for the host, or, named so, for a GPU, whose workspaces, least chunks and memory it then has:
 * "null:cuda:N", one that is here, or "null:gpu:BYTES", one that has so much for slots and region (planned.h).
 *
 * A pool asks at create, so that what needs the kernels (a model's workspaces) can be planned before anything is
 * allocated; seal opens the device.
 */
#ifndef TIDE_POOL_DEVICE_FACTORY_H
#define TIDE_POOL_DEVICE_FACTORY_H

#include "kernels/kernels.h"
#include "offload/module.h"
#include "tidepool/pool.h"

typedef struct tide_device_factory {
    const tide_module *module; /* NULL: host or null */
    uint32_t ordinal;          /* the GPU's */
    bool has_data;             /* false: null */
    const tide_kernels *kernels;
    uint64_t chunk_bytes_min;
    uint64_t available_bytes; /* for slots and region; UINT64_MAX: the device has no memory of its own */
    tide_gpu gpu;             /* all zero without a module */
} tide_device_factory;

/* Everything that can be known of a device before it is opened; makes a GPU ready (its context, its libraries), which the
 * first time takes a while. ARGUMENT for a name that is none of the three or a GPU that is not there; UNSUPPORTED without
 * module, driver or VMM; NO_MEMORY, DEVICE. */
TIDE_NODISCARD tide_status tide_device_factory_find(const char *device, tide_device_factory *factory);

/* Is this the device that computes nothing, whatever it stands for? NULL is not. */
bool tide_device_factory_is_null(const char *device);

/* Open it. As tide_device_host_open; whatever options.threads_set is, the process's own is taken. */
TIDE_NODISCARD tide_status tide_device_factory_open(const tide_device_factory *factory,
                                                    const tide_device_options *options, tide_device **device);

enum { TIDE_DEVICE_FACTORY_NAME_BYTES = 16, TIDE_DEVICE_FACTORY_REASON_BYTES = 512 };

/* The device that "auto" means here: the first GPU that can be used and takes chunks of `chunk_bytes`, else the host. Then
 * `reason` says in one line why no GPU; otherwise it is "". */
void tide_device_factory_choose(uint64_t chunk_bytes, char name[TIDE_DEVICE_FACTORY_NAME_BYTES],
                                char reason[TIDE_DEVICE_FACTORY_REASON_BYTES]);

/* The table that the pool's streams run: a model takes its kernels, and asks for its workspaces, here. */
const tide_kernels *tide_pool_kernels(const tide_pool *pool);

/* How its host slots were pinned, at seal; all 0 before, and on a device that pins nothing. */
tide_pinning_times tide_pool_pinning(const tide_pool *pool);

#endif
