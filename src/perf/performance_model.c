#include "src/perf/performance_model.h"

#include "base/array.h"
#include "src/pool/player.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

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

static tide_performance performance_of(const tide_trainer_plan *plan)
{
    tide_performance performance = {.plan = *plan};
    snprintf(performance.largest_op, sizeof performance.largest_op, "%s", plan->pool.largest_op);
    performance.plan.pool.largest_op = NULL; /* a string of the description, which is destroyed later */
    return performance;
}

/* --- memory --- */

tide_status tide_performance_memory(const tide_trainer_options *run, const tide_machine_profile *profile,
                                    tide_performance *performance)
{
    char device[TIDE_PERFORMANCE_DEVICE_BYTES];
    const tide_trainer_options options = options_of(run, profile, device);
    tide_trainer_draft draft;
    const tide_status status = tide_trainer_draft_make(&options, NULL, NULL, &draft);
    if (status != TIDE_OK)
        return status;
    *performance = performance_of(&draft.plan);
    tide_trainer_draft_destroy(&draft);
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
    options->global_batch_tokens = performance.plan.global_batch_tokens;
    options->micro_batch_sequences = performance.plan.micro_batch_sequences;
    return TIDE_OK;
}

/* --- the kernels of the ops --- */

/* The time of an op's kernels on the machine at full speed, in all slices of a step together. */
typedef struct op_time {
    double ns, measured_ns;
} op_time;

typedef struct op_times {
    tide_machine_profile_clock *clock;
    op_time *ops; /* [count], in the description's order */
    uint32_t count;
    bool no_memory;
} op_times;

/* The tide_decoder_seen. */
static void kernel_seen(void *context, tide_op op, const char *label, double flops, double bytes,
                        uint32_t times)
{
    op_times *of = context;
    bool measured;
    while (of->count <= op && !of->no_memory) {
        of->no_memory = !tide_array_grow(&of->ops, of->count, sizeof *of->ops);
        if (!of->no_memory)
            of->ops[of->count++] = (op_time){0};
    }
    if (of->no_memory)
        return;
    const double ns = times * tide_machine_profile_clock_kernel(of->clock, label, flops, bytes, &measured);
    of->ops[op].ns += ns;
    of->ops[op].measured_ns += measured ? ns : 0;
}

/* A run that is about to be played. */
typedef struct playing {
    op_times times;
    tide_trainer_draft draft;
    tide_script script;
    double *times_ns;                        /* by series */
    double kernel_seconds, measured_seconds; /* of a step's ops */
    tide_player *player;
} playing;

static void playing_destroy(playing *of)
{
    tide_player_destroy(of->player);
    tide_trainer_draft_destroy(&of->draft);
    tide_machine_profile_clock_free(of->times.clock);
    free(of->times.ops);
    free(of->script.lines);
    free(of->times_ns);
}

static tide_status script_write(playing *of)
{
    const uint32_t ops = tide_decoder_training_ops(of->draft.model), slices = of->draft.plan.micro_batches;
    const tide_status status = tide_player_script(tide_decoder_description(of->draft.model), ops,
                                                  of->draft.options.hyper.clip > 0, &of->script);
    if (status != TIDE_OK)
        return status;
    of->times_ns = calloc((size_t)TIDE_SERIES_FIRST_OP + ops, sizeof *of->times_ns);
    if (of->times_ns == NULL || of->times.no_memory)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory to play %u ops", ops);
    assert(of->times.count >= ops); /* every op launches a kernel */
    for (tide_op op = 0; op < ops; op++) {
        const op_time *took = &of->times.ops[op];
        of->times_ns[tide_series_of_op(op)] = took->ns / slices;
        of->kernel_seconds += 1e-9 * took->ns;
        of->measured_seconds += 1e-9 * took->measured_ns;
    }
    return TIDE_OK;
}

/* --- time --- */

static double seconds_of(uint64_t bytes, double per_second)
{
    return per_second > 0 ? (double)bytes / per_second : 0;
}

static void conclude(const tide_device_options *machine, tide_performance *performance)
{
    const tide_pool_counters *step = &performance->step;
    double *busy = performance->busy_seconds;
    performance->tokens_per_second =
        step->seconds > 0 ? (double)performance->plan.global_batch_tokens / step->seconds : 0;
    busy[TIDE_RESOURCE_COMPUTE] = step->compute_seconds;
    busy[TIDE_RESOURCE_LINK_IN] = seconds_of(step->h2d_bytes, machine->link_bytes_per_second);
    busy[TIDE_RESOURCE_LINK_OUT] = seconds_of(step->d2h_bytes, machine->machine.link_out_bytes_per_second);
    busy[TIDE_RESOURCE_HOST_ADAM] = step->adam_host_seconds;
    busy[TIDE_RESOURCE_DEVICE_ADAM] = step->adam_device_seconds;
    for (int resource = 0; resource < TIDE_RESOURCE_COUNT; resource++)
        if (busy[resource] > busy[performance->bound])
            performance->bound = (tide_resource)resource;
}

static tide_status play(playing *of, const tide_performance_how *how, tide_performance *performance)
{
    const tide_device_options machine = tide_machine_profile_clock_machine(of->times.clock);
    const tide_play play = {.script = &of->script,
                            .machine = &machine,
                            .times_ns = of->times_ns,
                            .go_on = how->go_on,
                            .context = how->context};
    tide_pool_plan plan;
    tide_status status =
        tide_player_create(&of->draft.options.pool, tide_decoder_description(of->draft.model), &of->player);
    if (status == TIDE_OK)
        status = tide_pool_plan_get(tide_player_pool(of->player), &plan);
    if (status == TIDE_OK)
        status =
            tide_player_play(of->player, &play, EQUAL_STEPS, &performance->step, &performance->steps_played);
    if (status != TIDE_OK)
        return status;
    performance->plan.pool.device_updates = plan.device_updates;
    conclude(&machine, performance);
    return TIDE_OK;
}

/* Could a step be so fast if it waited for nothing but its ops' kernels? */
static bool may_reach(const playing *of, double tokens_per_second)
{
    return (double)of->draft.plan.global_batch_tokens >= tokens_per_second * of->kernel_seconds;
}

tide_status tide_performance_make(const tide_trainer_options *run, const tide_machine_profile *profile,
                                  const tide_performance_how *how, tide_performance *performance)
{
    static const tide_performance_how plain = {.go_on = NULL};
    char device[TIDE_PERFORMANCE_DEVICE_BYTES];
    const tide_trainer_options options = options_of(run, profile, device);
    playing of = {.player = NULL};
    tide_performance made;
    how = how != NULL ? how : &plain;
    tide_status status = tide_machine_profile_clock_make(profile, run->dtype, run->pool.threads,
                                                         run->pool.link_bytes_per_second, &of.times.clock);
    if (status == TIDE_OK)
        status = tide_trainer_draft_make(&options, kernel_seen, &of.times, &of.draft);
    if (status == TIDE_OK)
        status = script_write(&of);
    if (status == TIDE_OK) {
        made = performance_of(&of.draft.plan);
        made.measured_part = of.kernel_seconds > 0 ? of.measured_seconds / of.kernel_seconds : 0;
    }
    if (status == TIDE_OK && may_reach(&of, how->tokens_per_second_least))
        status = play(&of, how, &made);
    if (status == TIDE_OK)
        *performance = made;
    playing_destroy(&of);
    return status;
}
