/* The CUDA module, libtidepool_cuda.so, has all code that needs CUDA. The library finds and opens it at run
 * time, so that one build runs with and without a driver, a toolkit or a GPU.
 *
 *   this process (library or program)                    libtidepool_cuda.so
 *   tide_module_cuda() ── dlopen, "tide_cuda_module" ──> tide_module {gpus, devices, kernels}
 *   tide_fail, tide_message      <── tide_module_host ── its messages become the calling thread's here
 *
 * The module has its own copy of the parts of offload/ that it needs, and nothing of chunk/ or src/. A
 * process opens it once and never closes it, since CUDA does not unload cleanly.
 *
 * The library looks for it in this order: the folder in TIDEPOOL_MODULES; the folder that this code was
 * loaded from (with symbolic links followed); the library folder that belongs to the program's folder, even
 * if the installation was moved; kernels/cuda of the build folder that this code lies in, if root or this
 * user owns it; the library folder given at build time; the places that the dynamic linker searches.
 */
#ifndef TIDE_OFFLOAD_MODULE_H
#define TIDE_OFFLOAD_MODULE_H

#include "offload/device.h"

struct tide_kernels;

enum { TIDE_MODULE_VERSION = 4, TIDE_GPUS_MAX = 64 };

/* The smallest chunk on a GPU: the unit of its mappings. */
#define TIDE_GPU_CHUNK_BYTES_LEAST (UINT64_C(2) << 20)

/* A GPU that CUDA sees. */
typedef struct tide_gpu {
    char name[96];
    char pci[20]; /* "0000:1b:00.0" */
    uint32_t ordinal;
    uint32_t capability_major, capability_minor;
    uint32_t multiprocessors;
    uint64_t memory_bytes;
    /* the unit of its VMM: chunks must be multiples of it; 0: no VMM, so tidepool can't use this GPU */
    uint64_t granularity_bytes;
    int32_t numa_node;        /* the NUMA node of its PCI bus; -1: unknown, or the machine has one node */
    uint32_t driver, runtime; /* CUDA versions, 13000 = 13.0 */
} tide_gpu;

/* Functions of this process that the module calls. */
typedef struct tide_module_host {
    /* tide_fail(status, "%s", text) on the calling thread */
    tide_status (*fail)(tide_status status, const char *text);
    const char *(*message)(void); /* tide_message */
} tide_module_host;

typedef struct tide_module {
    uint32_t version;          /* TIDE_MODULE_VERSION, or the library refuses the module */
    size_t options_bytes;      /* sizeof(tide_device_options), checked too */
    size_t ops_bytes;          /* sizeof(tide_device_ops), checked too */
    const char *architectures; /* GPU targets of its code: "sm_80 sm_90 ptx_90" */

    /* The number of GPUs that CUDA sees, which may be 0. UNSUPPORTED, with the reason: there is no driver, or
     * it is too old. */
    tide_status (*gpu_count)(uint32_t *count);
    /* Read what CUDA says of a GPU, without making a context. ARGUMENT: there is no such GPU. */
    tide_status (*gpu_read)(uint32_t ordinal, tide_gpu *gpu);
    /* Make the GPU's context and libraries ready, if that is not done yet. Then set `kernels` to its table of
     * kernels, and `available_bytes` to the device memory that is free for model data and region: the free
     * memory that CUDA reports, less TIDE_MODULE_RESERVE_BYTES for code of kernels that is loaded at first
     * use. Either may be NULL. A process can prepare one GPU. UNSUPPORTED, with GPU and reason: the GPU has
     * no VMM or is older than the module's code; NO_MEMORY; DEVICE. */
    tide_status (*prepare)(uint32_t ordinal, const struct tide_kernels **kernels, uint64_t *available_bytes);
    /* Open the prepared GPU as a device (offload/device.h). Statuses as of tide_device_host_open. */
    tide_status (*open)(uint32_t ordinal, const tide_device_options *options, tide_device **device);
} tide_module;

#define TIDE_MODULE_RESERVE_BYTES (UINT64_C(512) << 20)

/* Registering host memory takes page tables in device memory, about 2 MiB for each GiB in pages of 4 KiB.
 * Budgets count twice that: one byte of device memory for this many bytes of host memory. prepare() does not
 * subtract it, since it does not know the host budget. */
#define TIDE_MODULE_HOST_BYTES_A_TABLE_BYTE UINT64_C(256)

/* The module exports one function, of this type, named "tide_cuda_module". It returns NULL if the versions
 * differ. */
typedef const tide_module *(*tide_module_entry)(const tide_module_host *host, uint32_t version);

/* The module; the first call, from any thread, opens it. UNSUPPORTED: no module was found, the dynamic linker
 * can't load it (its message is added), or it belongs to another version of tidepool. */
tide_status tide_module_cuda(const tide_module **module);

/* Parse "cuda:N". ARGUMENT, with the text in the message, for anything else. */
tide_status tide_module_cuda_ordinal(const char *device, uint32_t *ordinal);

#endif
