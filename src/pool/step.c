/* Steps: checks and fixes a step's options at its begin, enqueues the norm at its end, and gives steps up. */
#include "src/pool/internal.h"

#include "kernels/kernels.h"

#include <assert.h>
#include <math.h>

enum { ADAM_BYTES = 28 }; /* traffic to update an element in bf16; close enough for fp32 (32) */

/* Larger loss scales are useless. A clip factor divided by this one is still far above fp32's denormals. */
#define LOSS_SCALE_MAX 4294967296.0F

/* Checks that an op is open only in a step, and that backward has begun only in a training step. */
bool tide_step_is_valid(const tide_pool *pool)
{
    const tide_step *step = &pool->step;
    return (step->is_open || !tide_op_is_open(pool)) && (!step->backward_begun || step->options.training);
}

/* --- begin and end of ops, giving up --- */

void tide_step_op_begins(tide_pool *pool)
{
    tide_step *step = &pool->step;
    assert(step->is_open && !tide_op_is_open(pool));
    if (!step->first_op_begun && step->options.training) {
        tide_counters_begin(&pool->telemetry.counters);
        tide_commands_tell_updates(&pool->engine.commands);
        tide_stalls_ops_begin(&pool->telemetry.stalls);
    }
    step->first_op_begun = true;
}

tide_status tide_step_backward_begins(tide_pool *pool)
{
    tide_step *step = &pool->step;
    if (step->backward_begun || !step->options.training ||
        tide_norm_is_awaited(&pool->context, &step->options))
        return TIDE_OK;
    assert(tide_monitor_is_held(&pool->monitor) && step->is_open);
    step->backward_begun = true;
    const tide_status status = tide_engine_wait_held(&pool->engine, tide_engine_updates_done);
    if (status != TIDE_OK)
        return status;
    (void)tide_running_tasks_zero_gradients(&pool->running_tasks, NULL);
    tide_engine_set_terms(&pool->engine, &step->options, 1 / tide_norm_loss_scale(&step->options));
    return TIDE_OK;
}

void tide_step_op_ends(tide_pool *pool)
{
    tide_op_close(pool);
    pool->telemetry.tracer.op = NULL;
    tide_tracer_stand(&pool->telemetry.tracer, TIDE_OP_NONE, TIDE_TRACE_NONE,
                      tide_manager_follows(pool->engine.manager));
    assert(tide_monitor_is_held(&pool->monitor) && tide_step_is_valid(pool));
}

tide_status tide_step_give_up(tide_pool *pool)
{
    if (pool->step.is_open && pool->step.options.training)
        tide_stalls_ops_end(&pool->telemetry.stalls);
    tide_step_op_ends(pool);
    pool->step.is_open = false;
    return tide_engine_give_up(&pool->engine);
}

/* --- begin --- */

/* Is the loss scale a power of two, by which dividing is exact, or 0 (none)? */
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

/* ARGUMENT, naming the first option that is out of its range. AdamW's options are not checked if the caller
 * has his own optimizer. */
static tide_status check_options(const tide_pool_context *context, const tide_step_options *options)
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
    const size_t count = context->options.update != NULL ? 2 : sizeof values / sizeof values[0];
    if (options->training && !tide_description_is_trainable(context->packing->description))
        return tide_fail(TIDE_ERROR_STATE, "tide_step_begin: every param is frozen: nothing can be trained");
    for (size_t i = 0; i < count && options->training; i++) {
        if (!values[i].is_right)
            return tide_fail(TIDE_ERROR_ARGUMENT, "tide_step_begin: %s is %g, it must be %s", values[i].name,
                             values[i].value, values[i].range);
    }
    return TIDE_OK;
}

/* Give the manager the measured speeds of updates on both tiers, by which it decides where to update which
 * chunks. */
static void take_measurements(tide_pool *pool)
{
    tide_measure *measure = &pool->telemetry.measure;
    tide_measure_sample(measure, tide_engine_updates_ended(&pool->engine));
    const double chunk_bytes =
        (double)(pool->context.plan.chunk_bytes / tide_context_element_bytes(&pool->context)) * ADAM_BYTES;
    tide_manager_set_update_seconds(pool->engine.manager,
                                    measure->series[TIDE_SERIES_ADAM_HOST].mean_ns * chunk_bytes * 1e-9,
                                    measure->series[TIDE_SERIES_ADAM_DEVICE].mean_ns * chunk_bytes * 1e-9);
}

static uint64_t manager_calls(const tide_pool *pool)
{
    tide_manager_counters counters;
    tide_manager_counters_get(pool->engine.manager, &counters);
    return counters.calls;
}

static void open_step(tide_pool *pool, const tide_step_options *options)
{
    pool->step = (tide_step){.is_open = true, .options = *options, .calls_at_begin = manager_calls(pool)};
    assert(tide_step_is_valid(pool) && tide_norm_is_known(&pool->norm));
    if (options->training)
        pool->telemetry.tracer.step++;
    tide_tracer_pass_begins(&pool->telemetry.tracer, options->training,
                            tide_norm_is_awaited(&pool->context, options));
    if (!options->training)
        return;
    pool->norm.has_result = pool->engine.is_counted = false;
    tide_measure_step_begin(&pool->telemetry.measure, tide_norm_is_awaited(&pool->context, options));
}

static tide_status zero_blocks(tide_pool *pool)
{
    const tide_region_layout *region = &pool->context.packing->region;
    const tide_zero_args args = {.data = pool->context.region + region->blocks_offset,
                                 .bytes = region->blocks_count * sizeof(double)};
    const tide_kernel_work kernel = {"zero", pool->context.kernels->zero, &args,          sizeof args,
                                     0,      (double)args.bytes,          TIDE_PART_BEGIN};
    return tide_launch_of_norm(pool, &kernel);
}

static tide_status begin_locked(tide_pool *pool, const tide_step_options *options)
{
    /* Wait for the norm of the step before, which decides whether that step updates the params or is
     * skipped. */
    tide_status status = tide_engine_wait_held(&pool->engine, tide_engine_norm_known);
    if (status == TIDE_OK)
        take_measurements(pool);
    if (status == TIDE_OK && options->training && pool->norm.skipped_in_row >= TIDE_SKIPS_MAX)
        status = tide_fail(TIDE_ERROR_NONFINITE,
                           "ten steps in a row were skipped: their gradients were not finite");
    if (status == TIDE_OK)
        status = tide_manager_step_begin(pool->engine.manager, options->training,
                                         tide_norm_is_awaited(&pool->context, options));
    if (status == TIDE_OK)
        open_step(pool, options);
    return status;
}

tide_status tide_step_begin(tide_pool *pool, const tide_step_options *options)
{
    if (pool == NULL || options == NULL)
        return tide_pool_given("tide_step_begin", pool == NULL ? "pool" : "options");
    tide_status status = check_options(&pool->context, options);
    if (status == TIDE_OK)
        status = tide_pool_callable(pool, "tide_step_begin");
    if (status == TIDE_OK && pool->step.is_open)
        status = tide_fail(TIDE_ERROR_STATE, "tide_step_begin: a step is open already");
    if (status != TIDE_OK)
        return status;
    status = tide_ranks_step_begins(pool, options);
    if (status != TIDE_OK)
        return tide_monitor_keep(&pool->monitor, status);
    tide_launch_lock(pool);
    status = begin_locked(pool, options);
    tide_monitor_unlock(&pool->monitor);
    if (status == TIDE_ERROR_NONFINITE) /* too many skipped steps in a row: the pool has not failed */
        return status;
    if (status == TIDE_OK && options->training)
        status = zero_blocks(pool);
    return tide_monitor_keep(&pool->monitor, status);
}

/* --- end --- */

/* Make the compute stream wait until gradients that are finished beside it are finished. */
static tide_status wait_for_norms(tide_pool *pool)
{
    tide_needs needs = {0};
    tide_needs_add(&needs, &pool->order.region_marks[TIDE_REGION_NORM], true);
    return tide_order_wait(&pool->order, TIDE_STREAM_COMPUTE, &needs);
}

/* Enqueue the sum of the step's gradient norm; the engine copies the norm to the host. */
static tide_status end_training(tide_pool *pool, uint64_t zero_gradients)
{
    const tide_pool_context *context = &pool->context;
    tide_measure_step_end(&pool->telemetry.measure);
    tide_norm_defer(&pool->norm, &pool->step.options, zero_gradients);
    const tide_norm_sum_args sum = {
        .blocks = (const double *)(void *)(context->region + context->packing->region.blocks_offset),
        .sum = (double *)(void *)(context->region + context->packing->region.scalars_offset),
        .blocks_count = context->packing->region.blocks_count};
    const tide_kernel_work kernel = {
        "norm",      context->kernels->norm_sum,        &sum,
        sizeof sum,  (double)tide_norm_sum_flops(&sum), (double)tide_norm_sum_bytes(&sum),
        TIDE_PART_OP};
    tide_status status = wait_for_norms(pool);
    if (status == TIDE_OK)
        status = tide_launch_of_norm(pool, &kernel);
    return status == TIDE_OK ? tide_norm_ask(&pool->norm) : status;
}

static tide_status end_locked(tide_pool *pool)
{
    tide_step *step = &pool->step;
    tide_manager *manager = pool->engine.manager;
    const bool training = step->options.training;
    tide_status status = TIDE_OK;
    uint64_t zero_gradients = 0;
    /* All updates of the step before must be done. If updates wait for the norm, wait here, since a chunk
     * that no op of this step used may still have a pending one. If not, the first backward op has waited for
     * them; do that here if the step had none. */
    if (training && tide_norm_is_awaited(&pool->context, &step->options))
        status = tide_engine_wait_held(&pool->engine, tide_engine_updates_done);
    else if (training)
        status = tide_step_backward_begins(pool);
    if (status != TIDE_OK)
        return status;
    assert(manager_calls(pool) >= step->calls_at_begin);
    pool->telemetry.counters.sums.manager_calls += manager_calls(pool) - step->calls_at_begin;
    if (training)
        zero_gradients =
            tide_running_tasks_zero_gradients(&pool->running_tasks, tide_manager_gradients(manager));
    status = tide_manager_step_end(manager);
    if (status == TIDE_OK && training)
        status = end_training(pool, zero_gradients);
    if (status != TIDE_OK)
        return status;
    step->is_open = false;
    if (training)
        tide_stalls_ops_end(&pool->telemetry.stalls);
    tide_tracer_look(&pool->telemetry.tracer, manager);
    tide_tracer_pass_ends(&pool->telemetry.tracer, manager);
    if (training || tide_manager_may_act(manager))
        tide_engine_ring(&pool->engine, false);
    return TIDE_OK;
}

tide_status tide_step_end(tide_pool *pool)
{
    tide_status status = tide_pool_callable(pool, "tide_step_end");
    if (status != TIDE_OK)
        return status;
    if (!pool->step.is_open || tide_op_is_open(pool))
        return tide_fail(TIDE_ERROR_STATE, "tide_step_end: %s",
                         tide_op_is_open(pool) ? "an op is open" : "no step is open");
    status = tide_gradients_check_end(tide_manager_gradients(pool->engine.manager));
    if (status != TIDE_OK)
        return status;
    tide_ranks_call(pool, TIDE_CALL_STEP_END, 0);
    tide_launch_lock(pool);
    status = end_locked(pool);
    tide_monitor_unlock(&pool->monitor);
    return tide_monitor_keep(&pool->monitor, status);
}

/* --- giving up, drain --- */

tide_status tide_step_abort(tide_pool *pool)
{
    if (pool == NULL)
        return tide_pool_given("tide_step_abort", "pool");
    tide_monitor_lock(&pool->monitor);
    tide_status status = tide_step_give_up(pool);
    if (status == TIDE_OK && pool->engine.poisoned)
        status = tide_pool_say_poisoned("tide_step_abort");
    else if (status == TIDE_OK)
        status = tide_engine_wait(&pool->engine, tide_engine_updates_done);
    tide_monitor_unlock(&pool->monitor);
    return status;
}

/* Wait for the norm and the updates; within a step the wait counts as a stall. */
static tide_status drain(tide_pool *pool)
{
    tide_engine *engine = &pool->engine;
    const bool within_step = pool->step.is_open;
    assert(tide_step_is_valid(pool) && !tide_op_is_open(pool));
    if (within_step)
        tide_engine_hold(engine);
    tide_status status = tide_engine_settle(engine);
    if (status == TIDE_OK)
        status = tide_engine_wait(engine, tide_engine_updates_ended);
    if (within_step)
        tide_stalls_release(&pool->telemetry.stalls);
    else if (status == TIDE_OK) {
        tide_counters_close(&pool->telemetry.counters);
        tide_commands_tell_updates(&engine->commands);
    }
    return status;
}

tide_status tide_pool_drain(tide_pool *pool)
{
    tide_status status = tide_pool_callable(pool, "tide_pool_drain");
    if (status == TIDE_OK && tide_op_is_open(pool))
        status = tide_fail(TIDE_ERROR_STATE,
                           "tide_pool_drain: op %s is open, and its params may be what an update waits for",
                           tide_op_open(pool)->description->name);
    if (status != TIDE_OK)
        return status;
    tide_monitor_lock(&pool->monitor);
    status = drain(pool);
    tide_monitor_unlock(&pool->monitor);
    return status;
}
