/* Predicts a training step with the pool's own manager, planner and engine, on the null device, which
 * computes nothing and whose clock is virtual.
 *
 * A shadow is a second pool on the null device with the same packing, budgets, placement and prefetch, so
 * with the same plan. Its speeds are the measured ones (measure.h): those of the link in both directions, of
 * AdamW on host and device, of map and unmap; each op's kernels last as long as measured. tide_pool_predict
 * simulates the last step's script on the shadow again and again, in virtual time, until the steps' durations
 * repeat, each step's or a cycle of up to eight. The answer is the mean over the cycle. Steps bound by the
 * link may never repeat: then the answer is the mean of 36 steps.
 *
 *   an op           begin, [slice, unit]..., a unit if there was no slice, end
 *   a unit          a kernel on the shadow that lasts as long as a unit of the op was measured to last
 *   pool's kernels  kernels that the shadow adds (zeros, rounding, norm) last no time, except the first of an
 *                   op's begin or end and of the step's begin or end, which lasts as long as all of them
 *
 * It simulates anew if the script has changed, if a measured duration has changed by more than a tenth and by
 * more than a hundredth of the step, or if the compute time of the step has changed by more than a tenth;
 * otherwise it returns the last answer. It allocates nothing after create.
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

/* An upper bound for the commands that one step enqueues on one stream: a few kernels, waits and event
 * records for each op, each of its params and each of its slices. */
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

/* Give the shadow's device the measured speeds. If no update ran on the device, the speed of its memory was
 * not measured: then use one at which bytes give kernels' nanoseconds exactly. */
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

/* The bytes of memory traffic that take the shadow's device as long as a unit of the series takes. */
static double traffic(const tide_pool *pool, uint32_t series)
{
    assert(series < tide_measure_series_count(&pool->telemetry.measure) && pool->predict.device_rate > 0);
    return pool->telemetry.measure.series[series].mean_ns * 1e-9 * pool->predict.device_rate;
}

/* Enqueue on the shadow a kernel that lasts as long as a unit of the op. */
static tide_status occupy(const tide_pool *pool, uint32_t op)
{
    const tide_pool *shadow = pool->predict.shadow;
    const tide_work work = {
        .label = "measured", .tag = tide_launch_tag(shadow), .bytes = traffic(pool, tide_series_of_op(op))};
    tide_device *device = shadow->context.device;
    return device->ops->launch(device, TIDE_STREAM_COMPUTE, &work, never_called, NULL, 0);
}

/* Let the next kernel that the shadow adds itself last as long as all the pool's kernels of the series. */
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
    assert(line > tide_measure_script(measure)->lines); /* its begin comes before */
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

/* Give up a step that could not be simulated, so that the shadow can simulate another; returns `status` with
 * the message of the failure. */
static tide_status failed(const tide_predict *predict, tide_status status)
{
    char message[512];
    snprintf(message, sizeof message, "%s", tide_message());
    (void)tide_step_abort(predict->shadow);   /* `message` matters more than this status */
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

/* Has a series' duration changed enough to matter, or the step's compute time as a whole? */
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

/* If a step and its updates have ended, take its sample at once, not only at the next step's begin. */
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
