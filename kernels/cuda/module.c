/* The module's interface: tide_cuda_module, through which a process finds GPUs, prepares one and opens it
 * (offload/module.h).
 *
 * Three steps, each of which costs more than the one before:
 *
 *   gpu_count, gpu_read   ask the driver; make no context, so that looking at a GPU takes none of its memory
 *   prepare               makes the context (some 500 MiB of device memory) and cuBLASLt's handle, then reads
 *                         how much memory is free
 *   open                  makes the device of offload/cuda/cuda_device.h on the prepared GPU
 *
 * Code for a GPU. nvcc's machine code runs on GPUs of the same major capability and the same minor one or a
 * later; PTX is compiled by the driver for any GPU from its capability on. If neither covers a GPU, this file
 * refuses it, by name, rather than failing at its first kernel.
 *
 * A part of the memory that CUDA reports as free after prepare is still needed for the code of kernels, which
 * CUDA loads when they are first launched, and by the driver; TIDE_MODULE_RESERVE_BYTES are reserved for
 * this.
 */
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/module_status.h"
#include "offload/cuda/cuda_device.h"
#include "offload/cuda/cuda_driver.h"
#include "offload/topology.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TIDE_API const tide_module *tide_cuda_module(const tide_module_host *host, uint32_t version);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool prepared;             /* guarded by lock */
static uint32_t prepared_ordinal; /* guarded by lock; valid once `prepared` is set */

/* ---- GPUs ---- */

/* Report why CUDA can't be used on this machine: it has no driver, or one that is too old. */
static tide_status driver_fail(cudaError_t error)
{
    int driver = 0;
    const bool known = cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
    if (!known)
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "no NVIDIA driver on this machine (%s)",
                         cudaGetErrorName(error));
    return tide_fail(
        TIDE_ERROR_UNSUPPORTED,
        "the NVIDIA driver is too old: it serves CUDA %d.%d, this build was made with %d.%d (%s)",
        driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10,
        cudaGetErrorName(error));
}

static tide_status gpu_count(uint32_t *count)
{
    int found = 0;
    const cudaError_t error = cudaGetDeviceCount(&found);
    if (error == cudaErrorInsufficientDriver)
        return driver_fail(error);
    if (error != cudaSuccess && error != cudaErrorNoDevice)
        return tide_cuda_check(error, "counting GPUs");
    *count = error == cudaSuccess ? (uint32_t)found : 0;
    return TIDE_OK;
}

static tide_status versions_read(tide_gpu *gpu)
{
    int driver = 0, runtime = 0;
    tide_status status = tide_cuda_check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    if (status == TIDE_OK)
        status = tide_cuda_check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    gpu->driver = (uint32_t)driver;
    gpu->runtime = (uint32_t)runtime;
    return status;
}

/* Reads the granularity of mappings. If the driver lacks the calls for virtual memory management, sets 0:
 * callers list such a GPU but refuse to use it. */
static tide_status granularity_read(tide_gpu *gpu)
{
    tide_cuda_driver driver;
    const tide_status status = tide_cuda_driver_find(gpu->name, &driver);
    gpu->granularity_bytes = 0;
    if (status == TIDE_ERROR_UNSUPPORTED)
        return TIDE_OK;
    return status == TIDE_OK ? tide_cuda_granularity(&driver, gpu->ordinal, &gpu->granularity_bytes) : status;
}

static tide_gpu gpu_of(uint32_t ordinal, const struct cudaDeviceProp *properties)
{
    tide_gpu gpu = {
        .ordinal = ordinal,
        .capability_major = (uint32_t)properties->major,
        .capability_minor = (uint32_t)properties->minor,
        .multiprocessors = (uint32_t)properties->multiProcessorCount,
        .memory_bytes = properties->totalGlobalMem,
    };
    (void)snprintf(gpu.name, sizeof gpu.name, "%.*s", (int)sizeof gpu.name - 1, properties->name);
    (void)snprintf(gpu.pci, sizeof gpu.pci, "%04x:%02x:%02x.0", (unsigned)properties->pciDomainID & 0xffffu,
                   (unsigned)properties->pciBusID & 0xffu, (unsigned)properties->pciDeviceID & 0xffu);
    gpu.numa_node = tide_topology_pci_node(gpu.pci);
    return gpu;
}

static tide_status gpu_read(uint32_t ordinal, tide_gpu *gpu)
{
    uint32_t count = 0;
    struct cudaDeviceProp properties;
    tide_status status = gpu_count(&count);
    if (status != TIDE_OK)
        return status;
    if (ordinal >= count)
        return tide_fail(TIDE_ERROR_ARGUMENT, "there is no cuda:%u: CUDA sees %u GPU%s here", ordinal, count,
                         count == 1 ? "" : "s");
    status = tide_cuda_check(cudaGetDeviceProperties(&properties, (int)ordinal), "cudaGetDeviceProperties");
    if (status != TIDE_OK)
        return status;
    tide_gpu read = gpu_of(ordinal, &properties);
    status = versions_read(&read);
    if (status == TIDE_OK)
        status = granularity_read(&read);
    if (status == TIDE_OK)
        *gpu = read;
    return status;
}

/* ---- making one ready ---- */

/* Does one of these architectures, say "sm_80 sm_90 ptx_90", run on the GPU? */
static bool code_runs_on(const char *architectures, const tide_gpu *gpu)
{
    const unsigned long capability = gpu->capability_major * 10 + gpu->capability_minor;
    for (const char *word = architectures; word != NULL; word = strchr(word, ' ')) {
        word += *word == ' ';
        const char *number = strchr(word, '_');
        const unsigned long built = number != NULL ? strtoul(number + 1, NULL, 10) : 0;
        const bool machine_code = strncmp(word, "sm_", 3) == 0;
        if (built != 0 && built <= capability && (!machine_code || built / 10 == gpu->capability_major))
            return true;
    }
    return false;
}

static tide_status gpu_check(const tide_gpu *gpu)
{
    if (!code_runs_on(TIDE_CUDA_ARCHITECTURES, gpu))
        return tide_fail(TIDE_ERROR_UNSUPPORTED,
                         "cuda:%u (%s) has capability %u.%u; this build has code for %s", gpu->ordinal,
                         gpu->name, gpu->capability_major, gpu->capability_minor, TIDE_CUDA_ARCHITECTURES);
    if (gpu->granularity_bytes == 0) {
        tide_cuda_driver driver;
        const tide_status status = tide_cuda_driver_find(gpu->name, &driver);
        return status != TIDE_OK
                   ? status
                   : tide_fail(TIDE_ERROR_UNSUPPORTED,
                               "cuda:%u (%s) has no virtual memory management, which tidepool needs",
                               gpu->ordinal, gpu->name);
    }
    return TIDE_OK;
}

/* Create the context: CUDA does so at the first call that needs one, for which cudaFree(NULL) is
 * customary. */
static tide_status gpu_begin(const tide_gpu *gpu)
{
    tide_status status = tide_cuda_use(gpu->ordinal);
    if (status == TIDE_OK)
        status = tide_cuda_check(cudaFree(NULL), "making the GPU's context");
    if (status == TIDE_OK)
        status = tide_cuda_matmul_open();
    return status;
}

static tide_status gpu_prepare(uint32_t ordinal)
{
    tide_gpu gpu;
    if (prepared && prepared_ordinal != ordinal)
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "this process works on cuda:%u already, and on one GPU only",
                         prepared_ordinal);
    if (prepared)
        return tide_cuda_use(ordinal);
    tide_status status = gpu_read(ordinal, &gpu);
    if (status == TIDE_OK)
        status = gpu_check(&gpu);
    if (status == TIDE_OK)
        status = gpu_begin(&gpu);
    if (status == TIDE_OK) {
        prepared_ordinal = ordinal;
        prepared = true;
    }
    return status;
}

static tide_status available_read(uint64_t *bytes)
{
    size_t available = 0, total = 0;
    const tide_status status = tide_cuda_check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    if (status == TIDE_OK)
        *bytes = available > TIDE_MODULE_RESERVE_BYTES ? available - TIDE_MODULE_RESERVE_BYTES : 0;
    return status;
}

static tide_status prepare(uint32_t ordinal, const tide_kernels **kernels, uint64_t *available_bytes)
{
    uint64_t available = 0;
    pthread_mutex_lock(&lock);
    tide_status status = gpu_prepare(ordinal);
    if (status == TIDE_OK && available_bytes != NULL)
        status = available_read(&available);
    pthread_mutex_unlock(&lock);
    if (status != TIDE_OK)
        return status;
    if (available_bytes != NULL)
        *available_bytes = available;
    if (kernels != NULL)
        *kernels = tide_kernels_cuda();
    return TIDE_OK;
}

static tide_status open_device(uint32_t ordinal, const tide_device_options *options, tide_device **device)
{
    const tide_status status = prepare(ordinal, NULL, NULL);
    return status == TIDE_OK ? tide_device_cuda_open(options, ordinal, device) : status;
}

/* ---- the interface ---- */

const tide_module *tide_cuda_module(const tide_module_host *host, uint32_t version)
{
    static const tide_module module = {
        .version = TIDE_MODULE_VERSION,
        .options_bytes = sizeof(tide_device_options),
        .ops_bytes = sizeof(tide_device_ops),
        .architectures = TIDE_CUDA_ARCHITECTURES,
        .gpu_count = gpu_count,
        .gpu_read = gpu_read,
        .prepare = prepare,
        .open = open_device,
    };
    if (version != TIDE_MODULE_VERSION)
        return NULL;
    tide_module_status_begin(host);
    return &module;
}
