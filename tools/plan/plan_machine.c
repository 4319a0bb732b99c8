#include "tools/plan/plan_machine.h"

#include "base/files.h"
#include "offload/free_memory.h"
#include "offload/topology.h"
#include "src/perf/measure.h"
#include "src/perf/microbenchmark.h"
#include "src/perf/performance_model.h"
#include "src/pool/device_factory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Rates are measured with chunks of this size only, so that each machine needs one file. */
static const uint64_t measured_chunk_bytes = UINT64_C(64) << 20;

/* Sets the profile's free device and host memory to the present values; the file has those of the time of
 * measuring. */
static void memory_ask(tide_machine_profile *profile)
{
    tide_device_factory target;
    const bool shared = profile->gpu_bytes == 0;
    if (!shared && tide_device_factory_find(profile->device, 0, &target) == TIDE_OK)
        profile->gpu_bytes = target.available_bytes;
    const uint64_t bytes = shared ? tide_topology_available_bytes()
                                  : tide_free_memory_most_bytes(tide_free_memory_machine_system());
    profile->memory_bytes = bytes != UINT64_MAX ? bytes : 0;
}

/* Reports a failure that does not end the command. */
static void warn(const char *what)
{
    fprintf(stderr, "tidepool: %s: %s\n", what, tide_message());
}

/* True also if the path can't be examined: reading the file then reports why. */
static bool is_there(const char *path)
{
    return access(path, F_OK) == 0 || !tide_files_is_absent(errno);
}

/* Reads the stored profile if it describes this machine as it is now; else measures the machine. */
static tide_status rates_find(uint32_t threads, tide_plan_machine *machine, bool *changed)
{
    tide_machine_profile *profile = &machine->profile;
    if (tide_machine_profile_path(machine->device, threads, machine->path) != TIDE_OK)
        machine->path[0] = '\0';
    if (machine->path[0] != '\0' && is_there(machine->path)) {
        if (tide_machine_profile_read(machine->path, profile) != TIDE_OK)
            warn("measuring this machine anew");
        else if (tide_machine_profile_is_here(profile, machine->device, threads)) {
            profile->is_here = true;
            return TIDE_OK;
        } else
            tide_machine_profile_destroy(profile);
    }
    fprintf(stderr, "measuring this machine, once: some seconds\n");
    *changed = true;
    return tide_machine_profile_measure(machine->device, threads, measured_chunk_bytes, profile);
}

/* Measures the kernels of the run's model that the profile lacks. If that fails, the prediction uses the
 * general rates. */
static void kernels_find(const tide_trainer_options *options, tide_machine_profile *profile, bool *changed)
{
    bool needed = false;
    if (tide_microbenchmark_needed(options, profile, &needed) != TIDE_OK) {
        warn("kernels are not measured");
        return;
    }
    if (!needed)
        return;
    fprintf(stderr, "measuring the kernels of %s, once: some seconds\n", options->model.name);
    if (tide_microbenchmark_run(options, profile) != TIDE_OK)
        warn("kernels are not measured");
    else
        *changed = true;
}

static tide_status this_find(const tide_train_settings *run, const tide_trainer_options *options,
                             tide_plan_machine *machine)
{
    bool changed = false;
    machine->is_this = true;
    tide_train_settings_device(run, machine->device, machine->no_gpu);
    tide_trainer_options whole = *options;
    tide_status status =
        tide_performance_resolve(&whole); /* before anything is measured: is the run possible at all? */
    if (status == TIDE_OK)
        status = rates_find(run->trainer.pool.threads, machine, &changed);
    if (status != TIDE_OK)
        return status;
    memory_ask(&machine->profile);
    kernels_find(options, &machine->profile, &changed);
    if (changed && machine->path[0] != '\0' &&
        tide_machine_profile_write(machine->path, &machine->profile) != TIDE_OK)
        warn("what was measured is not kept");
    return TIDE_OK;
}

static tide_status other_find(const char *name, const tide_train_settings *run, tide_plan_machine *machine)
{
    if (strcmp(run->device, "auto") != 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "--device %s and --machine %s: a device is this machine's",
                         run->device, name);
    if (!is_there(name))
        return tide_machine_profile_preset(name, &machine->profile);
    snprintf(machine->path, sizeof machine->path, "%s", name);
    return tide_machine_profile_read(name, &machine->profile);
}

tide_status tide_plan_machine_find(const char *name, const tide_train_settings *run,
                                   const tide_trainer_options *options, tide_plan_machine *machine)
{
    *machine = (tide_plan_machine){0};
    const tide_status status =
        strcmp(name, "this") == 0 ? this_find(run, options, machine) : other_find(name, run, machine);
    if (status == TIDE_OK && machine->profile.gpu_bytes != 0 && run->trainer.pool.link_bytes_per_second > 0)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "--link-bandwidth needs the emulated device: a GPU's link is as it is");
    return status;
}

void tide_plan_machine_memory(const tide_plan_machine *machine, uint64_t ram_bytes,
                              tide_trainer_options *options)
{
    options->pool.free_memory_bytes = ram_bytes != 0 ? ram_bytes : machine->profile.memory_bytes;
    /* The emulated device shares the machine's memory; of an unknown size there is enough. */
    if (machine->profile.gpu_bytes == 0 && options->pool.free_memory_bytes == 0)
        options->pool.free_memory_bytes = TIDE_PERFORMANCE_ENOUGH_BYTES;
}

void tide_plan_machine_free(tide_plan_machine *machine)
{
    tide_machine_profile_destroy(&machine->profile);
}
