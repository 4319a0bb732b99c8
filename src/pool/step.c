/* Steps: what is fixed at their begin, what their end sets going, and what giving one up undoes. Ops are in op.c. */
#include "src/pool/internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { ADAM_BYTES = 28 }; /* a param's update moves, nearly enough for comparing its two sides (fp32: 32) */

/* Larger loss scales have no use, and a clip factor over this one is far from fp32's denormals. */
#define LOSS_SCALE_MAX 4294967296.0F

const char tide_label_zero_region[] = "zero";

/* --- launches on the compute stream --- */

uint32_t tide_pool_compute_tag(const tide_pool *pool)
{
    if (!pool->step.options.training)
        return UINT32_MAX;
    return pool->op.is_open ? pool->op.number : pool->model.op_count;
}

tide_status tide_pool_compute_launch(tide_pool *pool, const char *label, tide_kernel kernel,
                                     const void *arguments, size_t argument_bytes, double flops, double bytes,
                                     const tide_access *accesses, uint32_t access_count)
{
    const tide_work work = {.label = label,
                            .op = pool->journal.tracer.op,
                            .tag = tide_pool_compute_tag(pool),
                            .flops = pool->launch.shadow ? 0 : flops,
                            .bytes = pool->launch.shadow ? pool->launch.shadow_bytes : bytes,
                            .accesses = accesses,
                            .access_count = access_count};
    assert(tide_order_may_enqueue(&pool->order, TIDE_STREAM_COMPUTE));
    const tide_status status = pool->ground.device->ops->launch(pool->ground.device, TIDE_STREAM_COMPUTE,
                                                                &work, kernel, arguments, argument_bytes);
    pool->launch.shadow_bytes = 0;
    return status;
}

static tide_status check_launch(const char *name, size_t argument_bytes, double flops, double bytes)
{
    if (argument_bytes > TIDE_LAUNCH_ARGUMENTS_MAX_BYTES)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "tide_launch of %s: %zu bytes of arguments, at most %d are copied", name,
                         argument_bytes, TIDE_LAUNCH_ARGUMENTS_MAX_BYTES);
    if (!isfinite(flops) || flops < 0 || !isfinite(bytes) || bytes < 0)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "tide_launch of %s: %g flops and %g bytes; they must be finite and at least 0", name,
                         flops, bytes);
    return TIDE_OK;
}

tide_status tide_launch(tide_pool *pool, const char *name, tide_kernel kernel, const void *arguments,
                        size_t argument_bytes, double flops, double bytes)
{
    const bool no_arguments = arguments == NULL && argument_bytes > 0;
    tide_status status = tide_pool_given("tide_launch", name == NULL     ? "name"
                                                        : kernel == NULL ? "kernel"
                                                        : no_arguments   ? "arguments"
                                                                         : NULL);
    if (status == TIDE_OK)
        status = check_launch(name, argument_bytes, flops, bytes);
    if (status == TIDE_OK)
        status = tide_pool_callable(pool, "tide_launch");
    if (status == TIDE_OK && !pool->step.is_open)
        status = tide_fail(TIDE_ERROR_STATE, "tide_launch of %s: no step is open", name);
    if (status != TIDE_OK)
        return status;
    const tide_access region = tide_writes(TIDE_OBJECT_REGION, pool->ground.region_object);
    const tide_access *accesses = pool->op.is_open ? pool->model.ops[pool->op.number].accesses : &region;
    status = tide_pool_compute_launch(pool, name, kernel, arguments, argument_bytes, flops, bytes, accesses,
                                      pool->op.is_open ? pool->op.access_count : 1);
    return tide_monitor_keep(&pool->monitor, status);
}

tide_status tide_pool_zero_region(tide_pool *pool, uint64_t offset, uint64_t bytes)
{
    const tide_access region = tide_writes(TIDE_OBJECT_REGION, pool->ground.region_object);
    const tide_zero_args zero = {.data = pool->ground.region + offset, .bytes = bytes};
    return tide_pool_compute_launch(pool, tide_label_zero_region, pool->ground.kernels->zero, &zero,
                                    sizeof zero, 0, (double)bytes, &region, 1);
}

/* --- a step --- */

tide_status tide_pool_say_torn(const char *call)
{
    return tide_fail(
        TIDE_ERROR_STATE,
        "%s: the pool is torn (a step failed after its updates had begun): all params and optimizer states "
        "have to be set first",
        call);
}

tide_status tide_pool_callable(tide_pool *pool, const char *call)
{
    if (pool == NULL)
        return tide_pool_given(call, "pool");
    if (!pool->sealed)
        return tide_fail(TIDE_ERROR_STATE, "%s: the pool is not sealed", call);
    tide_monitor_lock(&pool->monitor);
    tide_status status = tide_engine_failure(&pool->engine);
    if (status == TIDE_OK && pool->engine.torn)
        status = tide_pool_say_torn(call);
    tide_monitor_unlock(&pool->monitor);
    return status;
}

/* A power of two: taking out any other would round. */
static bool is_loss_scale(float scale)
{
    int exponent;
    return scale == 0 || (scale >= 1 && scale <= LOSS_SCALE_MAX && frexpf(scale, &exponent) == 0.5F);
}

static bool is_finite_from_0(float value)
{
    return isfinite(value) && value >= 0;
}

static bool is_beta(float value)
{
    return value >= 0 && value < 1;
}

/* The first value out of its range is named. Those of AdamW are not looked at where the optimizer is the caller's. */
static tide_status check_options(const tide_pool *pool, const tide_step_options *options)
{
    const struct {
        const char *name;
        double value;
        bool is_right;
        const char *range;
    } values[] = {
        {"clip_norm", options->clip_norm, options->clip_norm >= 0, "at least 0"},
        {"loss_scale", options->loss_scale, is_loss_scale(options->loss_scale),
         "0 or a power of two from 1 to 2^32"},
        {"learning_rate", options->learning_rate, is_finite_from_0(options->learning_rate),
         "finite and at least 0"},
        {"beta1", options->beta1, is_beta(options->beta1), "at least 0 and below 1"},
        {"beta2", options->beta2, is_beta(options->beta2), "at least 0 and below 1"},
        {"epsilon", options->epsilon, isfinite(options->epsilon) && options->epsilon > 0,
         "finite and above 0"},
        {"weight_decay", options->weight_decay, is_finite_from_0(options->weight_decay),
         "finite and at least 0"},
    };
    const size_t count = pool->ground.options.update != NULL ? 2 : sizeof values / sizeof values[0];
    for (size_t i = 0; i < count && options->training; i++) {
        if (!values[i].is_right)
            return tide_fail(TIDE_ERROR_ARGUMENT, "tide_step_begin: %s is %g, it must be %s", values[i].name,
                             values[i].value, values[i].range);
    }
    return TIDE_OK;
}

/* What the last steps took decides which side of the link updates which chunks. */
static void take_measurements(tide_pool *pool)
{
    tide_measure_sample(&pool->journal.measure, tide_engine_updates_ended(&pool->engine));
    const tide_series *series = pool->journal.measure.series;
    const double chunk_bytes =
        (double)(pool->ground.plan.chunk_bytes / tide_dtype_bytes(pool->ground.options.dtype)) * ADAM_BYTES;
    tide_manager_set_update_seconds(pool->engine.manager,
                                    series[TIDE_SERIES_ADAM_HOST].mean_ns * chunk_bytes * 1e-9,
                                    series[TIDE_SERIES_ADAM_DEVICE].mean_ns * chunk_bytes * 1e-9);
}

static tide_status begin_locked(tide_pool *pool, const tide_step_options *options)
{
    /* Whether the step before is skipped or updates decides what this one computes with. */
    tide_status status = tide_engine_wait_held(&pool->engine, tide_engine_norm_known);
    if (status == TIDE_OK)
        take_measurements(pool);
    if (status == TIDE_OK && options->training && pool->norm.skipped_in_row >= TIDE_SKIPS_MAX)
        status = tide_fail(TIDE_ERROR_NONFINITE,
                           "ten steps in a row were skipped: their gradients were not finite");
    if (status == TIDE_OK)
        status = tide_manager_step_begin(pool->engine.manager, options->training,
                                         tide_norm_is_awaited(&pool->ground, options));
    return status;
}

tide_status tide_step_begin(tide_pool *pool, const tide_step_options *options)
{
    tide_status status = tide_pool_given("tide_step_begin", pool == NULL      ? "pool"
                                                            : options == NULL ? "options"
                                                                              : NULL);
    if (status == TIDE_OK)
        status = check_options(pool, options);
    if (status == TIDE_OK)
        status = tide_pool_callable(pool, "tide_step_begin");
    if (status == TIDE_OK && pool->step.is_open)
        status = tide_fail(TIDE_ERROR_STATE, "tide_step_begin: a step is open already");
    if (status != TIDE_OK)
        return status;
    tide_pool_make_room(pool);
    tide_monitor_lock(&pool->monitor);
    status = begin_locked(pool, options);
    if (status == TIDE_OK) {
        pool->step.options = *options;
        pool->step.is_open = true;
        pool->step.first_op_begun = false;
        pool->step.backward_begun = false;
        pool->journal.tracer.moment = 0;
        if (options->training) {
            pool->journal.tracer.step++;
            pool->norm.has_result = pool->engine.is_counted = false;
            tide_measure_step_begin(&pool->journal.measure, tide_norm_is_awaited(&pool->ground, options));
        }
        tide_manager_counters calls;
        tide_manager_counters_get(pool->engine.manager, &calls);
        pool->step.calls_at_begin = calls.calls;
    }
    tide_monitor_unlock(&pool->monitor);
    if (status == TIDE_ERROR_NONFINITE) /* ten steps were skipped: an answer, no failure */
        return status;
    if (status != TIDE_OK || !options->training)
        return tide_monitor_keep(&pool->monitor, status);
    return tide_monitor_keep(&pool->monitor,
                             tide_pool_zero_region(pool, pool->ground.region_layout.blocks_offset,
                                                   pool->ground.region_layout.blocks_count * sizeof(double)));
}

/* The norm of the ended backward; the engine copies it to the host. */
static tide_status enqueue_norm(tide_pool *pool)
{
    const tide_region_layout *region = &pool->ground.region_layout;
    const tide_access access = tide_writes(TIDE_OBJECT_REGION, pool->ground.region_object);
    const tide_norm_sum_args sum = {.blocks =
                                        (const double *)(void *)(pool->ground.region + region->blocks_offset),
                                    .sum = (double *)(void *)(pool->ground.region + region->scalars_offset),
                                    .blocks_count = region->blocks_count};
    const tide_status status = tide_pool_compute_launch(pool, "norm", pool->ground.kernels->norm_sum, &sum,
                                                        sizeof sum, (double)tide_norm_sum_flops(&sum),
                                                        (double)tide_norm_sum_bytes(&sum), &access, 1);
    return status == TIDE_OK ? tide_norm_ask(&pool->norm) : status;
}

static tide_status end_locked(tide_pool *pool)
{
    tide_status status = TIDE_OK;
    uint64_t zero_gradients = 0;
    const bool training = pool->step.options.training,
               waits = tide_norm_is_awaited(&pool->ground, &pool->step.options);
    /* Where updates wait, chunks that no op of this step used may still owe the update before; else a step may have had
     * no backward op to wait for them. */
    if (training)
        status = waits ? tide_engine_wait_held(&pool->engine, tide_engine_updates_done)
                       : tide_pool_begin_backward(pool);
    if (status != TIDE_OK)
        return status;
    tide_manager_counters calls;
    tide_manager_counters_get(pool->engine.manager, &calls);
    pool->journal.records.sums.manager_calls += calls.calls - pool->step.calls_at_begin;
    if (training)
        zero_gradients = tide_jobs_zero_gradients(&pool->jobs, tide_manager_gradients(pool->engine.manager));
    status = tide_manager_step_end(pool->engine.manager);
    if (status != TIDE_OK || !training)
        return status;
    tide_measure_step_end(&pool->journal.measure);
    tide_norm_owe(&pool->norm, &pool->step.options, zero_gradients);
    return enqueue_norm(pool);
}

tide_status tide_step_end(tide_pool *pool)
{
    tide_status status = tide_pool_callable(pool, "tide_step_end");
    if (status != TIDE_OK)
        return status;
    if (!pool->step.is_open || pool->op.is_open)
        return tide_fail(TIDE_ERROR_STATE, "tide_step_end: %s",
                         pool->op.is_open ? "an op is open" : "no step is open");
    status = tide_gradients_check_end(tide_manager_gradients(pool->engine.manager));
    if (status != TIDE_OK)
        return status;
    tide_pool_make_room(pool);
    tide_monitor_lock(&pool->monitor);
    status = end_locked(pool);
    if (status == TIDE_OK) {
        pool->step.is_open = false;
        if (pool->step.options.training)
            tide_stalls_ops_end(&pool->journal.stalls);
        if (pool->step.options.training || tide_manager_may_act(pool->engine.manager))
            tide_engine_ring(&pool->engine, false);
    }
    tide_monitor_unlock(&pool->monitor);
    return tide_monitor_keep(&pool->monitor, status);
}

/* --- giving a step up --- */

tide_status tide_pool_give_up(tide_pool *pool)
{
    if (pool->step.is_open && pool->step.options.training)
        tide_stalls_ops_end(&pool->journal.stalls);
    pool->step.is_open = pool->op.is_open = false;
    pool->journal.tracer.op = NULL;
    pool->op.slice = UINT32_MAX;
    pool->op.access_count = 0;
    return tide_engine_give_up(&pool->engine);
}

tide_status tide_step_abort(tide_pool *pool)
{
    if (pool == NULL)
        return tide_pool_given("tide_step_abort", "pool");
    if (!pool->sealed)
        return tide_fail(TIDE_ERROR_STATE, "tide_step_abort: the pool is not sealed");
    tide_monitor_lock(&pool->monitor);
    tide_status status = tide_pool_give_up(pool);
    if (status == TIDE_OK && pool->engine.torn)
        status = tide_pool_say_torn("tide_step_abort");
    else if (status == TIDE_OK)
        status = tide_engine_wait(&pool->engine, tide_engine_updates_done);
    tide_monitor_unlock(&pool->monitor);
    return status;
}

static tide_status drain(tide_pool *pool)
{
    const tide_status status = tide_engine_settle(&pool->engine);
    return status == TIDE_OK ? tide_engine_wait(&pool->engine, tide_engine_updates_ended) : status;
}

tide_status tide_pool_drain(tide_pool *pool)
{
    tide_status status = tide_pool_callable(pool, "tide_pool_drain");
    if (status == TIDE_OK && pool->op.is_open)
        status = tide_fail(TIDE_ERROR_STATE,
                           "tide_pool_drain: op %s is open, and its params may be what an update waits for",
                           pool->model.ops[pool->op.number].description.name);
    if (status != TIDE_OK)
        return status;
    tide_monitor_lock(&pool->monitor);
    const bool within_step = pool->step.is_open;
    if (within_step)
        tide_engine_hold(&pool->engine);
    status = drain(pool);
    if (within_step)
        tide_engine_release(&pool->engine);
    else if (status == TIDE_OK)
        tide_engine_record_close(&pool->engine);
    tide_monitor_unlock(&pool->monitor);
    return status;
}
