/* Predicts a training step with the pool's own manager, planner and engine, on a device without data.
 *
 * A shadow is a second pool on the null device with the same packing, budgets, placement and prefetch, so with
 * the same plan. Its machine is the measured one (measure.h): rates of the
 * link's two directions and of both Adams, costs of map and unmap; each op's kernels last as long as
 * measured. predict plays the last step's script on it, in virtual time, until steps repeat, one by one or in
 * a cycle of up to eight; the answer is the mean of a cycle. Link-bound steps may never repeat: then the
 * answer is the mean of 36 of them.
 *
 *   an op           begin, [slice, unit]..., a unit if there was no slice, end
 *   a unit          a kernel of the shadow's that lasts as long as a unit of the op was measured to last
 *   pool's kernels  the shadow's own kernels (zeros, gradients, norm) last no time, but for the first of an
 *                   op's begin or end and of the step's begin or end, which lasts as long as all of them
 *
 * predict plays anew when the script has changed, when a measured duration has moved by more than a tenth and
 * that makes more than a hundredth of the step, or when all of compute has moved by more than a tenth;
 * otherwise the last answer stands. It allocates nothing after create.
 */
#include "src/pool/course.h"
#include "src/pool/internal.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EQUAL_STEPS = 8 };
static const double moved_part = 0.1, matters_part = 0.01;

/* --- the shadow --- */

/* Most commands that a step enqueues on a stream: a few kernels, waits and records around an op, for each of
 * its params and of its slices. */
static uint32_t step_commands(const tide_packing *packing)
{
    uint64_t count = 64;
    for (uint32_t i = 0; i < packing->op_count; i++) {
        const tide_op_description *op = packing->ops[i].description;
        count += 8 + 4 * (uint64_t)op->param_count + (2 + 2 * (uint64_t)op->activation_count) * op->slices;
    }
    return count < UINT32_MAX / 2 ? (uint32_t)count : UINT32_MAX / 2;
}

tide_status tide_predict_create(tide_pool *pool)
{
    const tide_pool_options *real = &pool->context.options;
    const tide_pool_options options = {.device = "null",
                                       .device_memory_bytes = pool->context.plan.device_memory_bytes,
                                       .host_memory_bytes = pool->context.plan.host_memory_bytes,
                                       .chunk_bytes = real->chunk_bytes,
                                       .staging_bytes = real->staging_bytes,
                                       .prefetch = real->prefetch,
                                       .placement = real->placement,
                                       .threads = real->threads,
                                       .update =
                                           real->update /* never called: the null device calls nothing */};
    tide_predict *predict = &pool->predict;
    tide_status status = TIDE_OK;
    predict->played_ns =
        calloc(tide_measure_series_count(&pool->telemetry.measure), sizeof *predict->played_ns);
    if (predict->played_ns == NULL)
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory to predict steps of %u ops",
                           pool->context.packing->op_count);
    if (status == TIDE_OK)
        status = tide_pool_make_shadow(pool, &options, &predict->shadow);
    if (status == TIDE_OK)
        status =
            tide_device_null_reserve(predict->shadow->context.device, step_commands(pool->context.packing));
    if (status != TIDE_OK)
        tide_predict_destroy(predict);
    return status;
}

void tide_predict_destroy(tide_predict *predict)
{
    tide_pool_unmake(predict->shadow);
    free(predict->played_ns);
    *predict = (tide_predict){0};
}

/* --- playing --- */

static double per_second(double ns_each)
{
    return ns_each > 0 ? 1e9 / ns_each : 0; /* 0: no limit */
}

/* Give the shadow's device the measured speeds. Without updates on the device, its memory has any rate that
 * counts kernels' nanoseconds exactly. */
static tide_status imitate(tide_predict *predict, const tide_measure *measure)
{
    const tide_series *series = measure->series;
    const double adam_ns = series[TIDE_SERIES_ADAM_DEVICE].mean_ns;
    predict->device_rate = adam_ns > 0 ? 1e9 / adam_ns : 1e9;
    const tide_device_options machine = {
        .link_bytes_per_second = per_second(series[TIDE_SERIES_COPY_IN].mean_ns),
        .machine.link_out_bytes_per_second = per_second(series[TIDE_SERIES_COPY_OUT].mean_ns),
        .machine.device_bytes_per_second = predict->device_rate,
        .machine.host_bytes_per_second = per_second(series[TIDE_SERIES_ADAM_HOST].mean_ns),
        .machine.map_ns = (uint64_t)(series[TIDE_SERIES_MAP].mean_ns + 0.5),
        .machine.unmap_ns = (uint64_t)(series[TIDE_SERIES_UNMAP].mean_ns + 0.5)};
    return tide_device_null_imitate(predict->shadow->context.device, &machine);
}

static tide_status never_called(void *stream, const void *arguments)
{
    (void)stream;
    (void)arguments;
    return tide_fail(TIDE_ERROR_INTERNAL, "the null device called a kernel");
}

/* Memory traffic that lasts as long as a unit of the series. */
static double traffic(const tide_pool *pool, uint32_t series)
{
    assert(series < tide_measure_series_count(&pool->telemetry.measure) && pool->predict.device_rate > 0);
    return pool->telemetry.measure.series[series].mean_ns * 1e-9 * pool->predict.device_rate;
}

/* Occupy the shadow's compute stream as long as a unit of the op does. */
static tide_status occupy(const tide_pool *pool, uint32_t op)
{
    const tide_pool *shadow = pool->predict.shadow;
    const tide_work work = {
        .label = "measured", .tag = tide_launch_tag(shadow), .bytes = traffic(pool, tide_series_of_op(op))};
    tide_device *device = shadow->context.device;
    return device->ops->launch(device, TIDE_STREAM_COMPUTE, &work, never_called, NULL, 0);
}

/* Let the shadow's next own kernel last as long as all kernels of the series. */
static void let_last(const tide_pool *pool, uint32_t series)
{
    assert(pool->predict.shadow->is_shadow);
    pool->predict.shadow->shadow_bytes = traffic(pool, series);
}

static tide_status play_line(const tide_pool *pool, const tide_script_line *line)
{
    const tide_measure *measure = &pool->telemetry.measure;
    tide_pool *shadow = pool->predict.shadow;
    if (line->slice == TIDE_SCRIPT_OP) {
        let_last(pool, tide_series_of_begin(measure, line->op));
        return tide_op_begin(shadow, line->op);
    }
    assert(line > tide_measure_script(measure)->lines); /* an op begins before it ends or slices */
    const bool ends = line->slice == TIDE_SCRIPT_END, was_sliced = line[-1].slice >= 0;
    tide_status status = ends ? TIDE_OK : tide_op_slice(shadow, (uint32_t)line->slice);
    if (status == TIDE_OK && !(ends && was_sliced))
        status = occupy(pool, line->op);
    if (status != TIDE_OK || !ends)
        return status;
    let_last(pool, tide_series_of_end(measure, line->op));
    return tide_op_end(shadow);
}

static tide_status play_step(const tide_pool *pool)
{
    const tide_script *script = tide_measure_script(&pool->telemetry.measure);
    const tide_step_options options = {.training = true, .epsilon = 1, .clip_norm = script->clips ? 1 : 0};
    let_last(pool, TIDE_SERIES_BEFORE);
    tide_status status = tide_step_begin(pool->predict.shadow, &options);
    for (uint32_t i = 0; i < script->length && status == TIDE_OK; i++)
        status = play_line(pool, &script->lines[i]);
    let_last(pool, TIDE_SERIES_AFTER);
    return status == TIDE_OK ? tide_step_end(pool->predict.shadow) : status;
}

static tide_status play(const tide_pool *pool, tide_course *played)
{
    tide_pool *shadow = pool->predict.shadow;
    tide_status status = TIDE_OK;
    *played = (tide_course){
        .enough = EQUAL_STEPS, .most = TIDE_COURSE_STEPS_MAX, .first = shadow->telemetry.tracer.step + 1};
    while (status == TIDE_OK && !tide_course_is_over(played)) {
        status = play_step(pool);
        tide_course_take(played, shadow);
    }
    return status;
}

static void conclude(const tide_course *played, tide_pool_prediction *answer)
{
    tide_pool_counters mean;
    tide_course_mean(played, &mean);
    answer->step_seconds = mean.seconds;
    answer->stall_seconds = mean.stall_seconds;
    answer->times_played++;
}

/* Give up a step that cannot be played, so that another can be; returns `status` with its message. */
static tide_status failed(const tide_predict *predict, tide_status status)
{
    char message[512];
    snprintf(message, sizeof message, "%s", tide_message());
    (void)tide_step_abort(predict->shadow);   /* this message matters more */
    predict->shadow->engine.poisoned = false; /* a shadow has no params that could be undefined */
    return tide_fail(status, "prediction: %s", message);
}

static tide_status play_anew(tide_pool *pool)
{
    tide_predict *predict = &pool->predict;
    const tide_measure *measure = &pool->telemetry.measure;
    tide_course played;
    predict->answered = false;
    tide_status status = imitate(predict, measure);
    if (status == TIDE_OK)
        status = play(pool, &played);
    if (status != TIDE_OK)
        return failed(predict, status);
    for (uint32_t i = 0; i < tide_measure_series_count(measure); i++)
        predict->played_ns[i] = measure->series[i].mean_ns;
    assert(measure->version > 0);
    predict->version = measure->version;
    conclude(&played, &predict->answer);
    predict->answered = true;
    return TIDE_OK;
}

/* --- the answer --- */

/* Has one series moved far enough to matter, or the compute stream's work as a whole? */
static bool has_moved(const tide_predict *predict, const tide_measure *measure)
{
    assert(predict->answered);
    const double matters_ns = matters_part * predict->answer.step_seconds * 1e9;
    double compute_ns = 0, moved_ns = 0;
    for (uint32_t i = 0; i < tide_measure_series_count(measure); i++) {
        const tide_series *series = &measure->series[i];
        const double by_ns = series->mean_ns - predict->played_ns[i];
        if (fabs(by_ns) > moved_part * predict->played_ns[i] &&
            fabs(by_ns) * series->step_amount > matters_ns)
            return true;
        if (i < TIDE_SERIES_BEFORE)
            continue;
        compute_ns += predict->played_ns[i] * series->step_amount;
        moved_ns += by_ns * series->step_amount;
    }
    return fabs(moved_ns) > moved_part * compute_ns;
}

/* Take the sample of a step that has ended with its updates, without waiting for the next one's begin. */
static void sample_ended_step(tide_pool *pool)
{
    tide_monitor_lock(&pool->monitor);
    if (!pool->step.is_open && tide_engine_norm_known(&pool->engine) &&
        tide_engine_updates_ended(&pool->engine))
        tide_measure_sample(&pool->telemetry.measure, true);
    tide_monitor_unlock(&pool->monitor);
}

static tide_status check(const tide_measure *measure)
{
    if (!measure->complete)
        return tide_fail(TIDE_ERROR_STATE,
                         "prediction: no training step with its updates has been measured yet");
    if (tide_measure_script(measure)->length == 0)
        return tide_fail(TIDE_ERROR_STATE, "prediction: the last training step ran no op");
    if (tide_measure_script(measure)->too_long)
        return tide_fail(
            TIDE_ERROR_UNSUPPORTED,
            "prediction: the last step ran more than twice all ops and slices of the description");
    return TIDE_OK;
}

tide_status tide_pool_predict(tide_pool *pool, tide_pool_prediction *prediction)
{
    if (pool == NULL || prediction == NULL)
        return tide_pool_given("tide_pool_predict", pool == NULL ? "pool" : "prediction");
    tide_predict *predict = &pool->predict;
    const tide_measure *measure = &pool->telemetry.measure;
    tide_status status = predict->shadow == NULL ? tide_predict_create(pool) : TIDE_OK;
    if (status != TIDE_OK)
        return status;
    sample_ended_step(pool);
    status = check(measure);
    if (status == TIDE_OK &&
        (!predict->answered || predict->version != measure->version || has_moved(predict, measure)))
        status = play_anew(pool);
    if (status == TIDE_OK)
        *prediction = predict->answer;
    return status;
}
