/* The CUDA module, libtidepool_cuda.so: found and opened at run time, so that one build runs with and without a driver, a
 * toolkit or a GPU.
 *
 *   this process (library or program)                    libtidepool_cuda.so
 *   tide_module_cuda() ── dlopen, "tide_cuda_module" ──> tide_module {gpus, devices, kernels}
 *   tide_fail, tide_message      <── tide_module_host ── its messages become the calling thread's here
 *
 * The module carries its own copy of the parts of offload/ that it needs and nothing of chunk/ or src/. It is
 * opened once a process and stays: CUDA does not like to be unloaded.
 *
 * Looked for in this order: the folder in TIDEPOOL_MODULES; the folder this code was loaded from (through symbolic links);
 * the library folder beside the program's, wherever the installation was moved to; kernels/cuda of the build folder that it
 * lies in, if that is root's or this user's; the library folder it was made for; wherever the dynamic linker looks.
 */
#ifndef TIDE_OFFLOAD_MODULE_H
#define TIDE_OFFLOAD_MODULE_H

#include "offload/device.h"

struct tide_kernels;

enum { TIDE_MODULE_VERSION = 1, TIDE_GPUS_MAX = 64 };

/* A GPU, as CUDA numbers it. */
typedef struct tide_gpu {
    char name[96];
    char pci[20]; /* "0000:1b:00.0" */
    uint32_t ordinal;
    uint32_t capability_major, capability_minor;
    uint32_t multiprocessors;
    uint64_t memory_bytes;
    /* of the VMM: chunks are multiples of it; 0: no VMM, so tidepool can't use this GPU */
    uint64_t granularity_bytes;
    int32_t numa_node;        /* the one its PCI bus hangs on; -1: unknown or only one */
    uint32_t driver, runtime; /* CUDA versions, 13000 = 13.0 */
} tide_gpu;

/* Functions of the process for the module to call. */
typedef struct tide_module_host {
    tide_status (*fail)(tide_status status,
                        const char *text); /* tide_fail(status, "%s", text) on the calling thread */
    const char *(*message)(void);          /* tide_message */
} tide_module_host;

typedef struct tide_module {
    uint32_t version;          /* TIDE_MODULE_VERSION: another one is refused */
    size_t options_bytes;      /* sizeof(tide_device_options), likewise */
    size_t ops_bytes;          /* sizeof(tide_device_ops) */
    const char *architectures; /* targets of its code: "sm_80 sm_90 ptx_90" */

    /* GPUs that can be seen. UNSUPPORTED, saying why, without a driver or with one that is too old; OK with 0 of them. */
    tide_status (*gpu_count)(uint32_t *count);
    /* ARGUMENT if there is no such GPU. Makes no context. */
    tide_status (*gpu_read)(uint32_t ordinal, tide_gpu *gpu);
    /* Make the GPU's context and its libraries ready, if that was not done, then: the kernels' table, and the
     * bytes of device memory that are free for model data and region: the free memory that CUDA reports, less
     * TIDE_MODULE_RESERVE_BYTES for kernels' code that is loaded when first used. Either may be NULL. One GPU
     * a process. UNSUPPORTED, naming GPU and reason, for one without VMM or older than the module's code;
     * NO_MEMORY; DEVICE. */
    tide_status (*prepare)(uint32_t ordinal, const struct tide_kernels **kernels, uint64_t *available_bytes);
    /* Open the prepared GPU as a device (offload/device.h). As tide_device_host_open. */
    tide_status (*open)(uint32_t ordinal, const tide_device_options *options, tide_device **device);
} tide_module;

#define TIDE_MODULE_RESERVE_BYTES (UINT64_C(512) << 20)

/* Registering host memory takes page tables in device memory, about 2 MiB a GiB of 4 KiB pages: budgets
 * reckon with twice that, a byte for so many of the host's. prepare()'s answer does not count that, since it
 * knows no host budget. */
#define TIDE_MODULE_HOST_BYTES_A_TABLE_BYTE UINT64_C(256)

/* The module's one exported symbol, of this type, is "tide_cuda_module". NULL if the versions differ. */
typedef const tide_module *(*tide_module_entry)(const tide_module_host *host, uint32_t version);

/* The module, opened at the first call (any thread). UNSUPPORTED: there is none, or it can't be loaded, with the dynamic
 * linker's words; it belongs to another version of tidepool. */
tide_status tide_module_cuda(const tide_module **module);

/* "cuda:N" to N. ARGUMENT, naming what was given, for anything else. */
tide_status tide_module_cuda_ordinal(const char *device, uint32_t *ordinal);

#endif
