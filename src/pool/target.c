/* A device's name, looked up. The CPU's kernels need no preparing; a GPU's come with its module. */
#include "src/pool/target.h"

#include "src/pool/internal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { CPU_CHUNK_BYTES_MIN = 256 * 1024, GPU_CHUNK_BYTES_MIN = 2 * 1024 * 1024 };

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
    return gpu->granularity_bytes > GPU_CHUNK_BYTES_MIN ? gpu->granularity_bytes : GPU_CHUNK_BYTES_MIN;
}

static tide_status find_cuda(const char *device, tide_target *target)
{
    tide_target found = {.has_data = true};
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
    *target = found;
    return TIDE_OK;
}

tide_status tide_target_find(const char *device, tide_target *target)
{
    const bool null = strcmp(device, "null") == 0;
    if (strncmp(device, "cuda:", 5) == 0)
        return find_cuda(device, target);
    if (!null && strcmp(device, "host") != 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "unknown device %s; \"host\", \"null\" and \"cuda:N\" exist",
                         device);
    *target = (tide_target){.has_data = !null,
                            .kernels = tide_kernels_cpu(),
                            .chunk_bytes_min = CPU_CHUNK_BYTES_MIN,
                            .available_bytes = UINT64_MAX};
    return TIDE_OK;
}

/* NULL in a process without an OpenMP runtime. */
extern void omp_set_num_threads(int count) __attribute__((weak));

tide_status tide_target_open(const tide_target *target, const tide_device_options *options,
                             tide_device **device)
{
    tide_device_options given = *options;
    given.threads_set = omp_set_num_threads;
    if (target->module != NULL)
        return target->module->open(target->ordinal, &given, device);
    return target->has_data ? tide_device_host_open(options, device) : tide_device_null_open(options, device);
}

/* --- auto --- */

/* Its chunks are looked at first: making a GPU ready takes memory there. */
static tide_status try_gpu(const tide_module *module, uint32_t ordinal, uint64_t chunk_bytes,
                           char name[TIDE_TARGET_NAME_BYTES])
{
    tide_gpu gpu;
    tide_target target;
    tide_status status = find_gpu(module, ordinal, &gpu);
    if (status == TIDE_OK && chunk_bytes < chunk_bytes_min(&gpu))
        status =
            tide_fail(TIDE_ERROR_UNSUPPORTED, "chunks of %" PRIu64 " bytes: a GPU takes %" PRIu64 " or more",
                      chunk_bytes, chunk_bytes_min(&gpu));
    snprintf(name, TIDE_TARGET_NAME_BYTES, "cuda:%" PRIu32, ordinal);
    return status == TIDE_OK ? tide_target_find(name, &target) : status;
}

/* Each GPU in turn; the first one's refusal is the reason. */
void tide_target_choose(uint64_t chunk_bytes, char name[TIDE_TARGET_NAME_BYTES],
                        char reason[TIDE_TARGET_REASON_BYTES])
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
            snprintf(reason, TIDE_TARGET_REASON_BYTES, "%s", tide_message());
    }
    if (count == 0)
        snprintf(reason, TIDE_TARGET_REASON_BYTES, "%s", tide_message());
    if (status == TIDE_OK)
        reason[0] = 0;
    else
        snprintf(name, TIDE_TARGET_NAME_BYTES, "host");
}

tide_pinning_times tide_pool_pinning(const tide_pool *pool)
{
    tide_device_statistics statistics = {0};
    if (pool->ground.device != NULL)
        pool->ground.device->ops->statistics(pool->ground.device, &statistics);
    return statistics.pinning;
}

const tide_kernels *tide_pool_kernels(const tide_pool *pool)
{
    return pool->ground.kernels;
}
