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
#include "tests/bench/bench_step.h"
#include "tests/support/bench.h"

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
    tide_pool *pool;
    tide_decoder *model;
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

static void imitate(tide_pool *pool, const step_null_options *options)
{
    const uint64_t map_ns = (uint64_t)(options->map_seconds * 1e9 / 2);
    const tide_device_options machine = {
        .link_bytes_per_second = per_second(options->link_seconds_per_byte[0]),
        .machine = {.link_out_bytes_per_second = per_second(options->link_seconds_per_byte[1]),
                    .device_bytes_per_second = options->device_rate,
                    .host_bytes_per_second = BYTES_A_PARAM / options->adam_seconds_per_param,
                    .map_ns = map_ns,
                    .unmap_ns = map_ns}};
    step_ok(tide_device_null_imitate(pool->context.device, &machine), "null device");
}

static void open_session(null_session *it, const step_null_options *options)
{
    tide_trainer_options wanted = *options->trainer, resolved;
    tide_trainer_plan plan;
    wanted.pool.device = "null";
    step_ok(tide_trainer_resolve(&wanted, &resolved), "null device");
    step_ok(tide_trainer_build(&resolved, &it->pool, &it->model, &plan), "null device");
    imitate(it->pool, options);
    tide_pool_watch(it->pool, observe, it);
}

static tide_status never_called(void *stream, const void *arguments)
{
    (void)stream, (void)arguments;
    return tide_fail(TIDE_ERROR_INTERNAL, "the null device called a kernel");
}

static void run_op(const null_session *it, const tide_decoder_op *op, const step_null_options *options)
{
    const uint32_t slices = it->model->options.micro_batches;
    const double bytes = options->op_seconds[op->handle] / slices * options->device_rate;
    step_ok(tide_op_begin(it->pool, op->handle), "op begin");
    for (uint32_t i = 0; i < slices; i++) {
        step_ok(tide_op_slice(it->pool, i), "op slice");
        step_ok(tide_launch(it->pool, "op", never_called, "", 1, 0, bytes), "launch");
    }
    step_ok(tide_op_end(it->pool), "op end");
}

static void run_step(const null_session *it, const step_null_options *options)
{
    const tide_decoder_order *order = &it->model->order;
    const tide_step_options step = {.training = true, .epsilon = 1, .clip_norm = options->clips ? 1 : 0};
    tide_step_result result;
    step_ok(tide_step_begin(it->pool, &step), "step begin");
    for (uint32_t i = order->embedding; i <= order->last_trained; i++)
        run_op(it, &it->model->ops[i], options);
    step_ok(tide_step_end(it->pool), "step end");
    step_ok(tide_step_result_get(it->pool, &result), "step result");
}

/* --- counters --- */

static tide_device_statistics statistics_of(const null_session *it)
{
    tide_device_statistics now;
    it->pool->context.device->ops->statistics(it->pool->context.device, &now);
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
    null_session it = {0};
    step_null_play made = {0};
    open_session(&it, options);
    const tide_device_ops *ops = it.pool->context.device->ops;
    for (int i = 0; i < SETTLE_STEPS; i++)
        run_step(&it, options);
    const tide_device_statistics from = statistics_of(&it);
    const uint64_t begin_ns = ops->now_ns(it.pool->context.device);
    it.observes = true;
    for (int i = 0; i < MEASURED_STEPS; i++)
        run_step(&it, options);
    const uint64_t end_ns = ops->now_ns(it.pool->context.device);
    const tide_device_statistics to = statistics_of(&it);
    /* Commands in flight reach `observe` only when they have ended. */
    ops->synchronize(it.pool->context.device);
    it.observes = false;
    if (it.count == 0)
        bench_die("no command was told of in %d steps", MEASURED_STEPS);
    counts_of(options, &from, &to, options->params, &made.counts);
    made.counts.seconds = made.counts.median_seconds = (double)(end_ns - begin_ns) * 1e-9 / MEASURED_STEPS;
    idle_of(&it, begin_ns, end_ns, made.idle_seconds);
    for (int i = 0; i < STEP_IDLE_COUNT; i++)
        made.idle_seconds[i] /= MEASURED_STEPS;
    tide_pool_destroy(it.pool);
    tide_decoder_destroy(it.model);
    free(it.points);
    return made;
}
