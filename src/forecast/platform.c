#include "src/forecast/platform.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void tide_platform_destroy(tide_platform *platform)
{
    free(platform->kernels);
    *platform = (tide_platform){0};
}

/* As they are sorted. */
static int kernel_compare(const char *label, double flops, double bytes, const tide_platform_kernel *kernel)
{
    const int labels = strncmp(label, kernel->label, TIDE_PLATFORM_LABEL_BYTES - 1);
    if (labels != 0)
        return labels;
    if (flops != kernel->flops)
        return flops < kernel->flops ? -1 : 1;
    if (bytes != kernel->bytes)
        return bytes < kernel->bytes ? -1 : 1;
    return 0;
}

/* The first kernel that is not before this one. */
static uint32_t place_of(const tide_platform *platform, const char *label, double flops, double bytes)
{
    uint32_t first = 0, end = platform->kernel_count;
    while (first < end) {
        const uint32_t middle = first + (end - first) / 2;
        if (kernel_compare(label, flops, bytes, &platform->kernels[middle]) > 0)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

const tide_platform_kernel *tide_platform_kernel_find(const tide_platform *platform, const char *label,
                                                      double flops, double bytes)
{
    const uint32_t place = place_of(platform, label, flops, bytes);
    const bool found =
        place < platform->kernel_count && kernel_compare(label, flops, bytes, &platform->kernels[place]) == 0;
    return found ? &platform->kernels[place] : NULL;
}

static tide_status reserve(tide_platform *platform)
{
    enum { FIRST_CAPACITY = 64 };
    if (platform->kernel_count < platform->kernel_capacity)
        return TIDE_OK;
    if (platform->kernel_count == TIDE_PLATFORM_KERNELS_MAX)
        return tide_fail(TIDE_ERROR_STATE, "machine: at most %d kernels can be told apart",
                         TIDE_PLATFORM_KERNELS_MAX);
    const uint32_t capacity = platform->kernel_capacity == 0 ? FIRST_CAPACITY : 2 * platform->kernel_capacity;
    tide_platform_kernel *kernels = realloc(platform->kernels, capacity * sizeof *kernels);
    if (kernels == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "machine: no memory for %u kernels", capacity);
    platform->kernels = kernels;
    platform->kernel_capacity = capacity;
    return TIDE_OK;
}

tide_status tide_platform_kernel_set(tide_platform *platform, const tide_platform_kernel *kernel)
{
    const uint32_t place = place_of(platform, kernel->label, kernel->flops, kernel->bytes);
    if (tide_platform_kernel_find(platform, kernel->label, kernel->flops, kernel->bytes) == NULL) {
        const tide_status status = reserve(platform);
        if (status != TIDE_OK)
            return status;
        memmove(&platform->kernels[place + 1], &platform->kernels[place],
                (platform->kernel_count - place) * sizeof *platform->kernels);
        platform->kernel_count++;
    }
    platform->kernels[place] = *kernel;
    return TIDE_OK;
}

double tide_platform_adam_rate(const tide_platform *platform, uint32_t threads)
{
    if (platform->adam_count == 0)
        return 0;
    const tide_platform_adam *adams = platform->adams;
    uint32_t chosen = platform->adam_count - 1;
    while (threads != 0 && chosen > 0 && adams[chosen].threads > threads)
        chosen--;
    if (threads != 0 && threads < adams[chosen].threads)
        return adams[chosen].bytes_per_second * threads / adams[chosen].threads;
    return adams[chosen].bytes_per_second;
}
