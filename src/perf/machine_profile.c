#include "src/perf/machine_profile.h"

#include "base/array.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void tide_machine_profile_destroy(tide_machine_profile *profile)
{
    free(profile->kernels);
    *profile = (tide_machine_profile){0};
}

/* Compares in the order in which a profile's kernels are sorted. */
static int kernel_compare(const char *label, double flops, double bytes,
                          const tide_machine_profile_kernel *kernel)
{
    const int labels = strncmp(label, kernel->label, TIDE_MACHINE_PROFILE_LABEL_BYTES - 1);
    if (labels != 0)
        return labels;
    if (flops != kernel->flops)
        return flops < kernel->flops ? -1 : 1;
    if (bytes != kernel->bytes)
        return bytes < kernel->bytes ? -1 : 1;
    return 0;
}

/* The index of the first kernel that does not come before this one. */
static uint32_t place_of(const tide_machine_profile *profile, const char *label, double flops, double bytes)
{
    uint32_t first = 0, end = profile->kernel_count;
    while (first < end) {
        const uint32_t middle = first + (end - first) / 2;
        if (kernel_compare(label, flops, bytes, &profile->kernels[middle]) > 0)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

const tide_machine_profile_kernel *tide_machine_profile_kernel_find(const tide_machine_profile *profile,
                                                                    const char *label, double flops,
                                                                    double bytes)
{
    const uint32_t place = place_of(profile, label, flops, bytes);
    const bool found =
        place < profile->kernel_count && kernel_compare(label, flops, bytes, &profile->kernels[place]) == 0;
    return found ? &profile->kernels[place] : NULL;
}

static tide_status reserve(tide_machine_profile *profile)
{
    if (profile->kernel_count == TIDE_MACHINE_PROFILE_KERNELS_MAX)
        return tide_fail(TIDE_ERROR_STATE, "machine: at most %d kernels can be told apart",
                         TIDE_MACHINE_PROFILE_KERNELS_MAX);
    if (!tide_array_grow(&profile->kernels, profile->kernel_count, sizeof *profile->kernels))
        return tide_fail(TIDE_ERROR_NO_MEMORY, "machine: no memory for %u kernels",
                         profile->kernel_count + 1);
    return TIDE_OK;
}

tide_status tide_machine_profile_kernel_set(tide_machine_profile *profile,
                                            const tide_machine_profile_kernel *kernel)
{
    const uint32_t place = place_of(profile, kernel->label, kernel->flops, kernel->bytes);
    if (tide_machine_profile_kernel_find(profile, kernel->label, kernel->flops, kernel->bytes) == NULL) {
        const tide_status status = reserve(profile);
        if (status != TIDE_OK)
            return status;
        memmove(&profile->kernels[place + 1], &profile->kernels[place],
                (profile->kernel_count - place) * sizeof *profile->kernels);
        profile->kernel_count++;
    }
    profile->kernels[place] = *kernel;
    return TIDE_OK;
}

double tide_machine_profile_adam_rate(const tide_machine_profile *profile, uint32_t threads)
{
    if (profile->adam_count == 0)
        return 0;
    const tide_machine_profile_adam *adams = profile->adams;
    uint32_t chosen = profile->adam_count - 1;
    while (threads != 0 && chosen > 0 && adams[chosen].threads > threads)
        chosen--;
    if (threads != 0 && threads < adams[chosen].threads)
        return adams[chosen].bytes_per_second * threads / adams[chosen].threads;
    return adams[chosen].bytes_per_second;
}
