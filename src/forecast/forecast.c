#include "src/forecast/forecast.h"

#include "src/pool/course.h"
#include "src/pool/watch.h"

#include <stdio.h>

enum { EQUAL_STEPS = 4, DEVICE_BYTES = 40 };

const char *tide_resource_name(tide_resource resource)
{
    static const char *const names[] = {"compute", "link to the device", "link to the host",
                                        "optimizer on the host", "optimizer on the device"};
    return (unsigned)resource < TIDE_RESOURCE_COUNT ? names[resource] : "unknown";
}

void tide_forecast_plain(tide_pool_options *pool)
{
    pool->predict = false;
    pool->trace = NULL;
    pool->progress = NULL;
    pool->hazard_check = pool->guard = pool->fault_handler = false;
    pool->delay_seed = 0;
    pool->delay_max_us = pool->skip_wait_site = 0;
}

/* The run's options, but on the null device, and with nothing that a prediction must not touch. */
static tide_trainer_options options_of(const tide_trainer_options *run, const tide_platform *platform,
                                       char device[DEVICE_BYTES])
{
    tide_trainer_options options = *run;
    snprintf(device, DEVICE_BYTES, "null");
    if (platform->gpu_bytes != 0 && platform->is_here)
        snprintf(device, DEVICE_BYTES, "null:%s", platform->device);
    else if (platform->gpu_bytes != 0)
        snprintf(device, DEVICE_BYTES, "null:gpu:%llu", (unsigned long long)platform->gpu_bytes);
    options.data = NULL;
    options.resume_dir = options.resume_from = NULL;
    options.imitates = true;
    options.pool.device = device;
    options.pool.machine = (tide_machine){0};
    tide_forecast_plain(&options.pool);
    return options;
}

static void plan_take(const tide_trainer *trainer, tide_forecast *forecast)
{
    forecast->plan = *tide_trainer_plan_get(trainer);
    snprintf(forecast->largest_op, sizeof forecast->largest_op, "%s", forecast->plan.pool.largest_op);
    forecast->plan.pool.largest_op = NULL; /* the pool's string */
}

static double seconds_of(uint64_t bytes, double per_second)
{
    return per_second > 0 ? (double)bytes / per_second : 0;
}

static void conclude(const tide_course *played, const tide_platform_clock *clock, tide_forecast *forecast)
{
    const tide_device_options machine = tide_platform_clock_machine(clock);
    const tide_platform_known known = tide_platform_clock_known(clock);
    const tide_pool_counters *step = &forecast->step;
    tide_course_mean(played, &forecast->step);
    forecast->steps_played = played->count;
    forecast->tokens_per_second = step->seconds > 0 ? (double)forecast->plan.batch_tokens / step->seconds : 0;
    double *busy = forecast->busy_seconds;
    busy[TIDE_RESOURCE_COMPUTE] = step->compute_seconds;
    busy[TIDE_RESOURCE_LINK_IN] = seconds_of(step->h2d_bytes, machine.link_bytes_per_second);
    busy[TIDE_RESOURCE_LINK_OUT] = seconds_of(step->d2h_bytes, machine.link_out_bytes_per_second);
    busy[TIDE_RESOURCE_HOST_ADAM] = step->adam_host_seconds;
    busy[TIDE_RESOURCE_DEVICE_ADAM] = step->adam_device_seconds;
    for (int resource = 0; resource < TIDE_RESOURCE_COUNT; resource++)
        if (busy[resource] > busy[forecast->bound])
            forecast->bound = (tide_resource)resource;
    forecast->measured_part = known.seconds > 0 ? known.measured_seconds / known.seconds : 0;
}

static tide_status play(tide_trainer *trainer, const tide_platform_clock *clock, tide_forecast *forecast)
{
    tide_pool *pool = tide_trainer_pool(trainer);
    tide_course played = {.enough = EQUAL_STEPS, .most = TIDE_COURSE_STEPS_MAX, .first = 1};
    const tide_device_options machine = tide_platform_clock_machine(clock);
    tide_status status = tide_pool_imitate(pool, &machine);
    while (status == TIDE_OK && !tide_course_is_over(&played)) {
        status = tide_trainer_step(trainer, NULL);
        tide_course_take(&played, pool);
    }
    if (status == TIDE_OK)
        conclude(&played, clock, forecast);
    return status;
}

tide_status tide_forecast_memory(const tide_trainer_options *run, const tide_platform *platform,
                                 tide_forecast *forecast)
{
    char device[DEVICE_BYTES];
    const tide_trainer_options options = options_of(run, platform, device);
    tide_trainer *trainer = NULL;
    const tide_status status = tide_trainer_create(&options, &trainer);
    if (status != TIDE_OK)
        return status;
    *forecast = (tide_forecast){0};
    plan_take(trainer, forecast);
    tide_trainer_destroy(trainer);
    return TIDE_OK;
}

tide_status tide_forecast_make(const tide_trainer_options *run, const tide_platform *platform,
                               tide_forecast *forecast)
{
    char device[DEVICE_BYTES];
    const tide_trainer_options options = options_of(run, platform, device);
    tide_platform_clock *clock = NULL;
    tide_trainer *trainer = NULL;
    tide_forecast made = {0};
    tide_status status = tide_platform_clock_make(platform, run->pool.dtype, run->pool.threads,
                                                  run->pool.link_bytes_per_second, &clock);
    if (status == TIDE_OK)
        status = tide_trainer_create(&options, &trainer);
    if (status == TIDE_OK) {
        plan_take(trainer, &made);
        status = play(trainer, clock, &made);
    }
    tide_trainer_destroy(trainer);
    tide_platform_clock_free(clock);
    if (status == TIDE_OK)
        *forecast = made;
    return status;
}
