/* Looks up a device's name. The CPU's kernels are in this library; a GPU's come with the CUDA module. */
#include "src/pool/device_factory.h"

#include "base/minmax.h"
#include "base/team.h"
#include "offload/topology.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { CPU_CHUNK_BYTES_MIN = 256 * 1024 };

static tide_status find_gpu(const tide_module *module, uint32_t ordinal, tide_gpu *gpu)
{
    uint32_t count = 0;
    tide_status status = module->gpu_count(&count);
    if (status == TIDE_OK && count == 0)
        status =
            tide_fail(TIDE_ERROR_UNSUPPORTED, "device cuda:%" PRIu32 ": the driver sees no GPU", ordinal);
    else if (status == TIDE_OK && ordinal >= count)
        status = tide_fail(TIDE_ERROR_ARGUMENT,
                           "device cuda:%" PRIu32 ": there is no such GPU; the driver sees %" PRIu32, ordinal,
                           count);
    if (status == TIDE_OK)
        status = module->gpu_read(ordinal, gpu);
    if (status == TIDE_OK && gpu->granularity_bytes == 0)
        status = tide_fail(TIDE_ERROR_UNSUPPORTED,
                           "device cuda:%" PRIu32 ": %s has no virtual memory management (VMM)", ordinal,
                           gpu->name);
    return status;
}

static uint64_t chunk_bytes_min(const tide_gpu *gpu)
{
    return tide_max_u64(gpu->granularity_bytes, TIDE_GPU_CHUNK_BYTES_LEAST);
}

static tide_status find_cuda(const char *device, tide_device_factory *factory)
{
    tide_device_factory found = {.has_data = true};
    tide_status status = tide_module_cuda_ordinal(device, &found.ordinal);
    if (status == TIDE_OK)
        status = tide_module_cuda(&found.module);
    if (status == TIDE_OK)
        status = find_gpu(found.module, found.ordinal, &found.gpu);
    if (status == TIDE_OK)
        status = found.module->prepare(found.ordinal, &found.kernels, &found.available_bytes);
    if (status != TIDE_OK)
        return status;
    found.chunk_bytes_min = chunk_bytes_min(&found.gpu);
    *factory = found;
    return TIDE_OK;
}

static const char stands_for[] = "null:";

static bool is_null(const char *device)
{
    return strcmp(device, "null") == 0 || strncmp(device, stands_for, strlen(stands_for)) == 0;
}

bool tide_device_factory_is_null(const char *device)
{
    return device != NULL && is_null(device);
}

/* Find the null device that simulates the host, a GPU of this machine (whose CUDA context this makes), or a
 * GPU that this machine lacks. */
static tide_status find_null(const char *device, uint64_t gpu_memory_bytes, tide_device_factory *factory)
{
    tide_device_factory found = {
        .kernels = tide_kernels_cpu(), .chunk_bytes_min = CPU_CHUNK_BYTES_MIN, .available_bytes = UINT64_MAX};
    if (strcmp(device, "null") != 0) {
        const tide_status status = find_cuda(device + strlen(stands_for), &found);
        if (status != TIDE_OK)
            return status;
    } else if (gpu_memory_bytes > 0) {
        found.kernels = tide_kernels_planned_gpu();
        found.chunk_bytes_min = TIDE_GPU_CHUNK_BYTES_LEAST;
        found.available_bytes = gpu_memory_bytes;
    }
    *factory = (tide_device_factory){.kernels = found.kernels,
                                     .chunk_bytes_min = found.chunk_bytes_min,
                                     .available_bytes = found.available_bytes};
    return TIDE_OK;
}

tide_status tide_device_factory_find(const char *device, uint64_t gpu_memory_bytes,
                                     tide_device_factory *factory)
{
    if (is_null(device))
        return find_null(device, gpu_memory_bytes, factory);
    if (strncmp(device, "cuda:", 5) == 0)
        return find_cuda(device, factory);
    if (strcmp(device, "host") != 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "unknown device %s; \"host\", \"null\" and \"cuda:N\" exist",
                         device);
    *factory = (tide_device_factory){.has_data = true,
                                     .kernels = tide_kernels_cpu(),
                                     .chunk_bytes_min = CPU_CHUNK_BYTES_MIN,
                                     .available_bytes = UINT64_MAX};
    return TIDE_OK;
}

int tide_device_factory_threads(const tide_pool_options *options)
{
    return tide_team_threads_of((int)(options->threads > 0 ? options->threads : tide_topology_processors()));
}

/* Weak: its address is NULL in a process without an OpenMP runtime. */
extern void omp_set_num_threads(int count) __attribute__((weak));

tide_status tide_device_factory_open(const tide_device_factory *factory, const tide_device_options *options,
                                     tide_device **device)
{
    tide_device_options given = *options;
    given.threads_set = omp_set_num_threads;
    if (factory->module != NULL)
        return factory->module->open(factory->ordinal, &given, device);
    return factory->has_data ? tide_device_host_open(options, device)
                             : tide_device_null_open(options, device);
}

/* --- auto --- */

/* Try one GPU. Check the chunk size before the GPU's context is made, which takes memory there. */
static tide_status try_gpu(const tide_module *module, uint32_t ordinal, uint64_t chunk_bytes,
                           char name[TIDE_DEVICE_FACTORY_NAME_BYTES])
{
    tide_gpu gpu;
    tide_device_factory factory;
    tide_status status = find_gpu(module, ordinal, &gpu);
    if (status == TIDE_OK && chunk_bytes < chunk_bytes_min(&gpu))
        status =
            tide_fail(TIDE_ERROR_UNSUPPORTED, "chunks of %" PRIu64 " bytes: a GPU takes %" PRIu64 " or more",
                      chunk_bytes, chunk_bytes_min(&gpu));
    snprintf(name, TIDE_DEVICE_FACTORY_NAME_BYTES, "cuda:%" PRIu32, ordinal);
    return status == TIDE_OK ? find_cuda(name, &factory) : status;
}

/* Try each GPU in turn; `reason` is why the first one was refused. */
void tide_device_factory_choose(uint64_t chunk_bytes, char name[TIDE_DEVICE_FACTORY_NAME_BYTES],
                                char reason[TIDE_DEVICE_FACTORY_REASON_BYTES])
{
    const tide_module *module;
    uint32_t count = 0;
    tide_status status = tide_module_cuda(&module);
    if (status == TIDE_OK)
        status = module->gpu_count(&count);
    if (status == TIDE_OK && count == 0)
        status = tide_fail(TIDE_ERROR_UNSUPPORTED, "the driver sees no GPU");
    reason[0] = 0;
    for (uint32_t i = 0; i < count; i++) {
        status = try_gpu(module, i, chunk_bytes, name);
        if (status == TIDE_OK)
            break;
        if (i == 0)
            snprintf(reason, TIDE_DEVICE_FACTORY_REASON_BYTES, "%s", tide_message());
    }
    if (count == 0)
        snprintf(reason, TIDE_DEVICE_FACTORY_REASON_BYTES, "%s", tide_message());
    if (status == TIDE_OK)
        reason[0] = 0;
    else
        snprintf(name, TIDE_DEVICE_FACTORY_NAME_BYTES, "host");
}
