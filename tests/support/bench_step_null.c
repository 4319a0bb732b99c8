/* Plays the same step in virtual time: a pool of the same model with the same budget runs on the null
 * device, whose streams share neither cores nor memory. Ops, copies, maps and Adam take the times that
 * were measured for each of them alone. If this step is slower than the bound from the order
 * (bench_step_limit.c), the schedule loses that time. If the measured step is slower than this one, the
 * machine loses the difference, since it has fewer cores than tasks.
 *
 * While compute is idle, the command that runs elsewhere counts as the cause: an update (its params, or
 * the space that it will free, are awaited), else a copy out (for a later update, or for space), else a
 * copy in, else a map or nothing.
 */
#include "tests/support/bench.h"
#include "tests/support/bench_step.h"

#include "src/pool/inspect.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SETTLE_STEPS = 12, MEASURED_STEPS = 24, BYTES_A_PARAM = 28 };

typedef struct point {
    uint64_t t_ns;
    tide_stream stream;
    int by; /* +1: a command begins; -1: it ends */
} point;

typedef struct null_session {
    tide_trainer_draft draft;
    tide_player *player;
    tide_device *device; /* the player's */
    tide_script script;
    double times_ns[TIDE_SERIES_FIRST_OP + STEP_OPS_MAX];
    bool observes;
    point *points;
    size_t count, capacity;
} null_session;

/* --- record of the streams' commands --- */

static void add_point(null_session *it, uint64_t t_ns, tide_stream stream, int by)
{
    if (it->count == it->capacity) {
        it->capacity = it->capacity > 0 ? 2 * it->capacity : 1 << 12;
        it->points = realloc(it->points, it->capacity * sizeof *it->points);
        if (it->points == NULL)
            bench_die("no memory for %zu points in time", it->capacity);
    }
    it->points[it->count++] = (point){t_ns, stream, by};
}

static void observe(void *context, const tide_observed *command)
{
    null_session *it = context;
    if (!it->observes)
        return;
    if (command->begin_ns == command->end_ns || command->is_wait)
        return;
    add_point(it, command->begin_ns, command->stream, 1);
    add_point(it, command->end_ns, command->stream, -1);
}

static int compare_points(const void *left, const void *right)
{
    const point *a = left, *b = right;
    return a->t_ns != b->t_ns ? (a->t_ns > b->t_ns) - (a->t_ns < b->t_ns) : a->by - b->by;
}

static step_idle cause_of(const int busy[TIDE_STREAM_COUNT])
{
    if (busy[TIDE_STREAM_HOST] > 0 || busy[TIDE_STREAM_UPDATE] > 0)
        return STEP_IDLE_UPDATE;
    if (busy[TIDE_STREAM_OUT] > 0)
        return STEP_IDLE_OUT;
    return busy[TIDE_STREAM_IN] > 0 ? STEP_IDLE_IN : STEP_IDLE_ELSE;
}

/* Adds up the seconds from `begin_ns` to `end_ns` in which compute was idle, by cause. */
static void idle_of(null_session *it, uint64_t begin_ns, uint64_t end_ns, double idle[STEP_IDLE_COUNT])
{
    int busy[TIDE_STREAM_COUNT] = {0};
    uint64_t at_ns = begin_ns;
    qsort(it->points, it->count, sizeof *it->points, compare_points);
    for (size_t i = 0; i < it->count; i++) {
        const point *next = &it->points[i];
        const uint64_t until_ns = next->t_ns < end_ns ? next->t_ns : end_ns;
        if (until_ns > at_ns) {
            if (busy[TIDE_STREAM_COMPUTE] == 0)
                idle[cause_of(busy)] += (double)(until_ns - at_ns) * 1e-9;
            at_ns = until_ns;
        }
        busy[next->stream] += next->by;
    }
}

/* --- the null device's machine and the steps --- */

static double per_second(double seconds_each)
{
    return seconds_each > 0 ? 1 / seconds_each : 0; /* the null device takes 0 for "no limit" */
}

static tide_device_options machine_of(const step_null_options *options)
{
    const uint64_t map_ns = (uint64_t)(options->map_seconds * 1e9 / 2);
    return (tide_device_options){
        .link_bytes_per_second = per_second(options->link_seconds_per_byte[0]),
        .machine = {.link_out_bytes_per_second = per_second(options->link_seconds_per_byte[1]),
                    .device_bytes_per_second = options->device_rate,
                    .host_bytes_per_second = BYTES_A_PARAM / options->adam_seconds_per_param,
                    .map_ns = map_ns,
                    .unmap_ns = map_ns}};
}

static void open_session(null_session *it, const step_null_options *options)
{
    tide_trainer_options wanted = *options->trainer;
    wanted.pool.device = "null";
    bench_check(tide_trainer_draft_make(&wanted, NULL, NULL, &it->draft), "null device");
    tide_description *description = tide_decoder_description(it->draft.model);
    const uint32_t ops = tide_decoder_training_ops(it->draft.model);
    if (ops > STEP_OPS_MAX)
        bench_die("%u ops, at most %d have a time", ops, STEP_OPS_MAX);
    bench_check(tide_player_create(&it->draft.options.pool, description, &it->player), "null device");
    bench_check(tide_player_script(description, ops, options->clips, &it->script), "null device");
    for (tide_op op = 0; op < ops; op++)
        it->times_ns[tide_series_of_op(op)] = 1e9 * options->op_seconds[op] / it->draft.plan.micro_batches;
    it->device = tide_player_pool(it->player)->context.device;
    tide_pool_watch(tide_player_pool(it->player), observe, it);
}

static void close_session(null_session *it)
{
    tide_player_destroy(it->player);
    tide_trainer_draft_destroy(&it->draft);
    free(it->script.lines);
    free(it->points);
}

static void run_steps(null_session *it, const tide_device_options *machine, int steps)
{
    const tide_play play = {.script = &it->script, .machine = machine, .times_ns = it->times_ns};
    for (int i = 0; i < steps; i++)
        bench_check(tide_player_step(it->player, &play), "null device");
}

/* --- counters --- */

static tide_device_statistics statistics_of(const null_session *it)
{
    tide_device_statistics now;
    it->device->ops->statistics(it->device, &now);
    return now;
}

static double busy_seconds(const tide_device_statistics *from, const tide_device_statistics *to,
                           tide_stream stream)
{
    return (double)(to->busy_ns[stream] - from->busy_ns[stream]) * 1e-9 / MEASURED_STEPS;
}

static void counts_of(const step_null_options *options, const tide_device_statistics *from,
                      const tide_device_statistics *to, double params, step_counts *counts)
{
    *counts = (step_counts){.h2d_bytes = (double)(to->h2d_bytes - from->h2d_bytes) / MEASURED_STEPS,
                            .d2h_bytes = (double)(to->d2h_bytes - from->d2h_bytes) / MEASURED_STEPS,
                            .maps = (double)(to->maps - from->maps) / MEASURED_STEPS,
                            .compute_seconds = busy_seconds(from, to, TIDE_STREAM_COMPUTE),
                            .update_seconds = busy_seconds(from, to, TIDE_STREAM_UPDATE)};
    counts->host_params = params - counts->update_seconds * options->device_rate / BYTES_A_PARAM;
}

step_null_play step_null_played(const step_null_options *options)
{
    null_session it = {.player = NULL};
    step_null_play made = {0};
    const tide_device_options machine = machine_of(options);
    open_session(&it, options);
    run_steps(&it, &machine, SETTLE_STEPS);
    const tide_device_statistics from = statistics_of(&it);
    const uint64_t begin_ns = it.device->ops->now_ns(it.device);
    it.observes = true;
    run_steps(&it, &machine, MEASURED_STEPS);
    const uint64_t end_ns = it.device->ops->now_ns(it.device);
    const tide_device_statistics to = statistics_of(&it);
    /* Commands in flight reach `observe` only when they have ended. */
    it.device->ops->synchronize(it.device);
    it.observes = false;
    if (it.count == 0)
        bench_die("no command was told of in %d steps", MEASURED_STEPS);
    counts_of(options, &from, &to, options->params, &made.counts);
    made.counts.seconds = made.counts.median_seconds = (double)(end_ns - begin_ns) * 1e-9 / MEASURED_STEPS;
    idle_of(&it, begin_ns, end_ns, made.idle_seconds);
    for (int i = 0; i < STEP_IDLE_COUNT; i++)
        made.idle_seconds[i] /= MEASURED_STEPS;
    close_session(&it);
    return made;
}
