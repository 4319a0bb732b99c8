#include "tools/train/train_predict.h"

#include "src/pool/inspect.h"
#include "tools/units.h"

#include <stdio.h>

static void machine_print(const tide_plan_machine *machine, const tide_device_options *rates)
{
    const tide_machine_profile *profile = &machine->profile;
    char in[TIDE_UNITS_TEXT_BYTES], out[TIDE_UNITS_TEXT_BYTES];
    if (machine->no_gpu[0] != '\0')
        printf("auto takes the host: %s\n", machine->no_gpu);
    printf("predicting for %s%s%s, link %s/s to the device and %s/s back; %s\n", profile->name,
           machine->device[0] != '\0' ? ", device " : "", machine->device,
           tide_size_format((uint64_t)rates->link_bytes_per_second, in),
           tide_size_format((uint64_t)rates->machine.link_out_bytes_per_second, out), profile->source);
}

tide_status tide_train_predict_open(const tide_train_settings *settings, tide_trainer_options *options,
                                    tide_train_prediction *prediction)
{
    tide_train_settings run = *settings;
    tide_plan_machine *machine = &prediction->machine;
    run.device = "auto"; /* this machine is measured with the device that a real run would use */
    tide_status status = tide_plan_machine_find(settings->machine, &run, options, machine);
    if (status == TIDE_OK)
        status = tide_machine_profile_clock_make(&machine->profile, options->dtype, options->pool.threads,
                                                 options->pool.link_bytes_per_second, &prediction->clock);
    if (status != TIDE_OK)
        return status;
    const tide_device_options rates = tide_machine_profile_clock_machine(prediction->clock);
    tide_plan_machine_memory(machine, settings->ram_bytes, options);
    tide_performance_device(&machine->profile, &options->pool, prediction->device);
    options->imitates = true;
    /* The rates that a trace records as the machine's. The kernels' times and the streams' slowdown factors come
     * with the clock (tide_train_predict_begin). */
    const uint64_t gpu_memory_bytes = options->pool.machine.gpu_memory_bytes;
    options->pool.link_bytes_per_second = rates.link_bytes_per_second;
    options->pool.machine = rates.machine;
    options->pool.machine.gpu_memory_bytes = gpu_memory_bytes;
    machine_print(machine, &rates);
    return TIDE_OK;
}

tide_status tide_train_predict_begin(const tide_train_prediction *prediction, tide_trainer *trainer)
{
    const tide_device_options machine = tide_machine_profile_clock_machine(prediction->clock);
    return tide_pool_imitate(tide_trainer_pool(trainer), &machine);
}

void tide_train_predict_close(tide_train_prediction *prediction)
{
    tide_machine_profile_clock_free(prediction->clock);
    tide_plan_machine_free(&prediction->machine);
}
