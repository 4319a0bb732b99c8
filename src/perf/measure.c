#include "src/perf/measure.h"

#include "offload/topology.h"
#include "src/perf/rates.h"
#include "src/perf/slowdown.h"
#include "src/pool/device_factory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The name of the GPU if the device is one, otherwise of the processor. */
static void name_find(const char *device, char name[TIDE_MACHINE_PROFILE_TEXT_BYTES])
{
    const tide_module *module;
    tide_gpu gpu;
    uint32_t ordinal;
    static tide_topology topology; /* static because it is large */
    name[0] = '\0';
    if (tide_module_cuda_ordinal(device, &ordinal) == TIDE_OK && tide_module_cuda(&module) == TIDE_OK &&
        module->gpu_read(ordinal, &gpu) == TIDE_OK)
        snprintf(name, TIDE_MACHINE_PROFILE_TEXT_BYTES, "%s", gpu.name);
    else if (tide_topology_read(&topology) == TIDE_OK)
        snprintf(name, TIDE_MACHINE_PROFILE_TEXT_BYTES, "%s", topology.processor);
}

static uint32_t threads_of(uint32_t threads)
{
    return threads != 0 ? threads : tide_topology_processors();
}

/* Measures AdamW on the host with 1, 2, 4, ... threads, and with all of them. */
static tide_status adams_measure(uint32_t most, tide_machine_profile *profile)
{
    tide_status status = TIDE_OK;
    profile->adam_count = 0;
    for (uint32_t threads = 1; status == TIDE_OK && profile->adam_count < TIDE_MACHINE_PROFILE_ADAMS_MAX;
         threads = 2 * threads < most ? 2 * threads : most) {
        tide_machine_profile_adam *adam = &profile->adams[profile->adam_count++];
        adam->threads = threads;
        status = tide_rates_host_adam(threads, &adam->bytes_per_second);
        if (threads >= most)
            break;
    }
    return status;
}

static void source_write(tide_machine_profile *profile)
{
    char date[16];
    const time_t now = time(NULL);
    struct tm day;
    gmtime_r(&now, &day);
    strftime(date, sizeof date, "%Y-%m-%d", &day);
    snprintf(profile->source, sizeof profile->source, "measured %s", date);
}

tide_status tide_machine_profile_measure(const char *device, uint32_t threads, uint64_t chunk_bytes,
                                         tide_machine_profile *profile)
{
    tide_machine_profile made = {.measured = true};
    tide_device_factory factory;
    tide_status status = tide_device_factory_find(device, 0, &factory);
    if (status == TIDE_OK)
        status = tide_rates_measure(device, threads, chunk_bytes, &made);
    if (status != TIDE_OK)
        return status;
    name_find(device, made.name);
    source_write(&made);
    made.gpu_bytes = factory.available_bytes != UINT64_MAX ? factory.available_bytes : 0;
    made.threads = threads_of(threads);
    status = adams_measure(made.threads, &made);
    if (status == TIDE_OK)
        status = tide_slowdown_measure(device, threads, &made.slowdowns, &made.launch_ns);
    if (status == TIDE_OK)
        *profile = made;
    profile->is_here = status == TIDE_OK;
    return status;
}

bool tide_machine_profile_is_here(const tide_machine_profile *profile, const char *device, uint32_t threads)
{
    char name[TIDE_MACHINE_PROFILE_TEXT_BYTES];
    name_find(device, name);
    return profile->measured && strcmp(profile->device, device) == 0 && strcmp(profile->name, name) == 0 &&
           profile->threads == threads_of(threads);
}

tide_status tide_machine_profile_path(const char *device, uint32_t threads,
                                      char path[TIDE_MACHINE_PROFILE_PATH_BYTES])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char name[64];
    snprintf(name, sizeof name, "machine-%s-%u.json", device, threads_of(threads));
    char *colon = strchr(name, ':');
    if (colon != NULL)
        *colon = '-';
    int length = 0;
    if (cache != NULL && cache[0] == '/')
        length = snprintf(path, TIDE_MACHINE_PROFILE_PATH_BYTES, "%s/tidepool/%s", cache, name);
    else if (home != NULL && home[0] != '\0')
        length = snprintf(path, TIDE_MACHINE_PROFILE_PATH_BYTES, "%s/.cache/tidepool/%s", home, name);
    if (length > 0 && length < TIDE_MACHINE_PROFILE_PATH_BYTES)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_STATE,
                     "no place for this machine's file: neither XDG_CACHE_HOME nor HOME is set");
}
