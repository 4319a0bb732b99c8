#include "src/perf/performance_model.h"

#include "src/pool/course.h"
#include "src/pool/inspect.h"

#include <stdio.h>

enum { EQUAL_STEPS = 4 };

const char *tide_resource_name(tide_resource resource)
{
    static const char *const names[] = {"compute", "link to the device", "link to the host",
                                        "optimizer on the host", "optimizer on the device"};
    return (unsigned)resource < TIDE_RESOURCE_COUNT ? names[resource] : "unknown";
}

void tide_performance_plain(tide_pool_options *pool)
{
    pool->predict = false;
    pool->trace = NULL;
    pool->progress = NULL;
    pool->checks = (tide_checks){.guard = false};
}

void tide_performance_device(const tide_machine_profile *profile, tide_pool_options *pool,
                             char device[TIDE_PERFORMANCE_DEVICE_BYTES])
{
    if (profile->gpu_bytes != 0 && profile->is_here)
        snprintf(device, TIDE_PERFORMANCE_DEVICE_BYTES, "null:%s", profile->device);
    else
        snprintf(device, TIDE_PERFORMANCE_DEVICE_BYTES, "null");
    pool->device = device;
    pool->machine = (tide_machine){.gpu_memory_bytes = profile->is_here ? 0 : profile->gpu_bytes};
}

/* The run's options, but for the null device and without data, checkpoints, callbacks and checks. */
static tide_trainer_options options_of(const tide_trainer_options *run, const tide_machine_profile *profile,
                                       char device[TIDE_PERFORMANCE_DEVICE_BYTES])
{
    tide_trainer_options options = *run;
    options.data = NULL;
    options.resume_dir = options.resume_from = NULL;
    options.imitates = true;
    tide_performance_device(profile, &options.pool, device);
    tide_performance_plain(&options.pool);
    return options;
}

static void plan_take(const tide_trainer *trainer, tide_performance *performance)
{
    performance->plan = *tide_trainer_plan_get(trainer);
    snprintf(performance->largest_op, sizeof performance->largest_op, "%s",
             performance->plan.pool.largest_op);
    performance->plan.pool.largest_op = NULL; /* a string of the description, which is destroyed later */
}

static double seconds_of(uint64_t bytes, double per_second)
{
    return per_second > 0 ? (double)bytes / per_second : 0;
}

static void conclude(const tide_course *played, const tide_machine_profile_clock *clock,
                     tide_performance *performance)
{
    const tide_device_options machine = tide_machine_profile_clock_machine(clock);
    const tide_machine_profile_known known = tide_machine_profile_clock_known(clock);
    const tide_pool_counters *step = &performance->step;
    tide_course_mean(played, &performance->step);
    performance->steps_played = played->count;
    performance->tokens_per_second =
        step->seconds > 0 ? (double)performance->plan.batch_tokens / step->seconds : 0;
    double *busy = performance->busy_seconds;
    busy[TIDE_RESOURCE_COMPUTE] = step->compute_seconds;
    busy[TIDE_RESOURCE_LINK_IN] = seconds_of(step->h2d_bytes, machine.link_bytes_per_second);
    busy[TIDE_RESOURCE_LINK_OUT] = seconds_of(step->d2h_bytes, machine.machine.link_out_bytes_per_second);
    busy[TIDE_RESOURCE_HOST_ADAM] = step->adam_host_seconds;
    busy[TIDE_RESOURCE_DEVICE_ADAM] = step->adam_device_seconds;
    for (int resource = 0; resource < TIDE_RESOURCE_COUNT; resource++)
        if (busy[resource] > busy[performance->bound])
            performance->bound = (tide_resource)resource;
    performance->measured_part = known.seconds > 0 ? known.measured_seconds / known.seconds : 0;
}

typedef struct asking {
    bool (*go_on)(void *context); /* NULL: never stop */
    void *context;
} asking;

static tide_status play(tide_trainer *trainer, const tide_machine_profile_clock *clock, const asking *asks,
                        tide_performance *performance)
{
    tide_pool *pool = tide_trainer_pool(trainer);
    tide_course played = {.enough = EQUAL_STEPS, .most = TIDE_COURSE_STEPS_MAX, .first = 1};
    const tide_device_options machine = tide_machine_profile_clock_machine(clock);
    tide_status status = tide_pool_imitate(pool, &machine);
    while (status == TIDE_OK && !tide_course_is_over(&played)) {
        if (asks->go_on != NULL && !asks->go_on(asks->context))
            return tide_fail(TIDE_ERROR_STATE, "a prediction was ended before its steps repeated");
        status = tide_trainer_step(trainer, NULL);
        tide_course_take(&played, pool);
    }
    if (status == TIDE_OK)
        conclude(&played, clock, performance);
    return status;
}

tide_status tide_performance_memory(const tide_trainer_options *run, const tide_machine_profile *profile,
                                    tide_performance *performance)
{
    char device[TIDE_PERFORMANCE_DEVICE_BYTES];
    const tide_trainer_options options = options_of(run, profile, device);
    tide_trainer *trainer = NULL;
    const tide_status status = tide_trainer_create(&options, &trainer);
    if (status != TIDE_OK)
        return status;
    *performance = (tide_performance){0};
    plan_take(trainer, performance);
    tide_trainer_destroy(trainer);
    return TIDE_OK;
}

tide_status tide_performance_resolve(tide_trainer_options *options)
{
    const tide_machine_profile any = {0};
    tide_trainer_options ample = *options;
    tide_performance performance;
    ample.pool.device_memory_bytes = ample.pool.host_memory_bytes = 0;
    ample.pool.free_memory_bytes = TIDE_PERFORMANCE_ENOUGH_BYTES;
    const tide_status status = tide_performance_memory(&ample, &any, &performance);
    if (status != TIDE_OK)
        return status;
    options->seq_len = performance.plan.seq_len;
    options->batch_tokens = performance.plan.batch_tokens;
    options->micro_batch_sequences = performance.plan.micro_batch_sequences;
    return TIDE_OK;
}

static tide_status make(const tide_trainer_options *run, const tide_machine_profile *profile,
                        const asking *asks, tide_performance *performance)
{
    char device[TIDE_PERFORMANCE_DEVICE_BYTES];
    const tide_trainer_options options = options_of(run, profile, device);
    tide_machine_profile_clock *clock = NULL;
    tide_trainer *trainer = NULL;
    tide_performance made = {0};
    tide_status status = tide_machine_profile_clock_make(profile, run->dtype, run->pool.threads,
                                                         run->pool.link_bytes_per_second, &clock);
    if (status == TIDE_OK)
        status = tide_trainer_create(&options, &trainer);
    if (status == TIDE_OK) {
        plan_take(trainer, &made);
        status = play(trainer, clock, asks, &made);
    }
    tide_trainer_destroy(trainer);
    tide_machine_profile_clock_free(clock);
    if (status == TIDE_OK)
        *performance = made;
    return status;
}

tide_status tide_performance_make(const tide_trainer_options *run, const tide_machine_profile *profile,
                                  tide_performance *performance)
{
    return make(run, profile, &(asking){0}, performance);
}

tide_status tide_performance_make_while(const tide_trainer_options *run, const tide_machine_profile *profile,
                                        bool (*go_on)(void *context), void *context,
                                        tide_performance *performance)
{
    return make(run, profile, &(asking){go_on, context}, performance);
}
