/* Predicts a training step of a running pool: a player (player.h) plays the last step's script, with the
 * times that were measured (measure.h), until the steps repeat.
 *
 * It plays anew if the script has changed, if a measured duration has changed by more than a tenth and by
 * more than a hundredth of the step, or if the compute time of the step has changed by more than a tenth;
 * otherwise it returns the last answer. It allocates nothing after create.
 */
#include "src/pool/internal.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { EQUAL_STEPS = 8 };
static const double moved_part = 0.1, matters_part = 0.01;

tide_status tide_predict_create(tide_pool *pool)
{
    tide_predict *predict = &pool->predict;
    tide_status status = TIDE_OK;
    predict->played_ns =
        calloc(tide_measure_series_count(&pool->telemetry.measure), sizeof *predict->played_ns);
    if (predict->played_ns == NULL)
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory to predict steps of %u ops",
                           pool->context.packing->op_count);
    if (status == TIDE_OK)
        status = tide_player_of(pool, &predict->player);
    if (status != TIDE_OK)
        tide_predict_destroy(predict);
    return status;
}

void tide_predict_destroy(tide_predict *predict)
{
    tide_player_destroy(predict->player);
    free(predict->played_ns);
    *predict = (tide_predict){0};
}

static double per_second(double ns_each)
{
    return ns_each > 0 ? 1e9 / ns_each : 0; /* 0: no limit */
}

/* The machine as the running pool measured it. */
static tide_device_options machine_of(const tide_measure *measure)
{
    const tide_series *series = measure->series;
    return (tide_device_options){
        .link_bytes_per_second = per_second(series[TIDE_SERIES_COPY_IN].mean_ns),
        .machine.link_out_bytes_per_second = per_second(series[TIDE_SERIES_COPY_OUT].mean_ns),
        .machine.device_bytes_per_second = per_second(series[TIDE_SERIES_ADAM_DEVICE].mean_ns),
        .machine.host_bytes_per_second = per_second(series[TIDE_SERIES_ADAM_HOST].mean_ns),
        .machine.map_ns = (uint64_t)(series[TIDE_SERIES_MAP].mean_ns + 0.5),
        .machine.unmap_ns = (uint64_t)(series[TIDE_SERIES_UNMAP].mean_ns + 0.5)};
}

static tide_status play_anew(tide_pool *pool)
{
    tide_predict *predict = &pool->predict;
    const tide_measure *measure = &pool->telemetry.measure;
    const tide_device_options machine = machine_of(measure);
    const tide_play play = {.script = tide_measure_script(measure),
                            .machine = &machine,
                            .times_ns = predict->played_ns,
                            .times_all = true};
    tide_pool_counters step;
    predict->answered = false;
    for (uint32_t i = 0; i < tide_measure_series_count(measure); i++)
        predict->played_ns[i] = measure->series[i].mean_ns;
    const tide_status status = tide_player_play(predict->player, &play, EQUAL_STEPS, &step, NULL);
    if (status != TIDE_OK) {
        char message[512];
        snprintf(message, sizeof message, "%s", tide_message());
        return tide_fail(status, "prediction: %s", message);
    }
    assert(measure->version > 0);
    predict->version = measure->version;
    predict->answer.step_seconds = step.seconds;
    predict->answer.stall_seconds = step.stall_seconds;
    predict->answer.times_played++;
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
    tide_status status = predict->player == NULL ? tide_predict_create(pool) : TIDE_OK;
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
