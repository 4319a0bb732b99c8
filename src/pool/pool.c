/* The pool's create and destroy, addresses, and the calls of inspect.h. */
#include "src/pool/inspect.h"
#include "src/pool/internal.h"

#include <assert.h>

tide_status tide_pool_create(const tide_pool_options *options, tide_description *description,
                             tide_pool **result)
{
    if (options == NULL || description == NULL || result == NULL)
        return tide_pool_given("tide_pool_create", options == NULL       ? "options"
                                                   : description == NULL ? "description"
                                                                         : "pool");
    tide_pool *pool = NULL;
    tide_status status = tide_pool_make(options, description, &pool);
    if (status == TIDE_OK && options->predict)
        status = tide_predict_create(pool);
    if (status != TIDE_OK) {
        if (tide_comm_ranks(options->ranks.comm) > 1)
            tide_comm_abort(options->ranks.comm, tide_message()); /* the others wait for this rank */
        tide_pool_unmake(pool);
        return status;
    }
    *result = pool;
    return TIDE_OK;
}

void tide_pool_destroy(tide_pool *pool)
{
    if (pool == NULL)
        return;
    tide_predict_destroy(&pool->predict);
    tide_pool_unmake(pool);
}

/* --- inspect.h --- */

const tide_packing *tide_pool_packing(const tide_pool *pool)
{
    return pool->context.packing;
}

tide_pinning_times tide_pool_pinning(const tide_pool *pool)
{
    tide_device_statistics statistics = {0};
    pool->context.device->ops->statistics(pool->context.device, &statistics);
    return statistics.pinning;
}

void tide_pool_watch(tide_pool *pool, tide_device_observer watch, void *context)
{
    assert(!pool->step.is_open);
    pool->telemetry.watch = watch;
    pool->telemetry.watch_context = context;
}

tide_status tide_pool_imitate(tide_pool *pool, const tide_device_options *machine)
{
    if (pool->context.device->ops->has_data)
        return tide_fail(TIDE_ERROR_STATE, "only a pool on the null device can play another machine");
    return tide_device_null_imitate(pool->context.device, machine);
}

tide_status tide_pool_plan_get(const tide_pool *pool, tide_pool_plan *plan)
{
    if (pool == NULL || plan == NULL)
        return tide_pool_given("tide_pool_plan_get", pool == NULL ? "pool" : "plan");
    *plan = pool->context.plan;
    return TIDE_OK;
}

/* --- addresses --- */

void *tide_param_data(const tide_pool *pool, tide_param param)
{
    if (pool == NULL || param >= pool->context.packing->param_count)
        return NULL;
    return pool->context.space_address[TIDE_SPACE_PARAM] +
           pool->context.packing->params[param].data_offset_bytes;
}

void *tide_activation_data(const tide_pool *pool, tide_activation activation, uint32_t part)
{
    const tide_layout *layout = pool != NULL ? pool->context.packing->layout : NULL;
    if (pool == NULL || activation >= tide_layout_activations(layout))
        return NULL;
    const tide_named *it = tide_layout_activation(layout, activation);
    return part < it->parts ? pool->context.space_address[TIDE_SPACE_ACTIVATION] + it->offset +
                                  part * tide_align_up(it->size)
                            : NULL;
}

void *tide_region(const tide_pool *pool)
{
    return pool != NULL ? pool->context.region : NULL;
}

void *tide_workspace(const tide_pool *pool)
{
    return pool != NULL && tide_op_is_open(pool)
               ? pool->context.region + pool->context.packing->region.workspace_offset
               : NULL;
}

/* The index of the param among the open op's params, if the op uses it with GRAD; else UINT32_MAX. */
static uint32_t find_gradient(const tide_pool *pool, tide_param param)
{
    if (pool == NULL || !tide_op_is_open(pool))
        return UINT32_MAX;
    const tide_op_description *op = tide_op_open(pool)->description;
    for (uint32_t i = 0; i < op->param_count; i++)
        if (op->params[i].tensor == param && (op->params[i].access & TIDE_ACCESS_GRAD) != 0)
            return i;
    return UINT32_MAX;
}

/* With several sum groups kernels add to gradients in slices only. */
static bool has_group(const tide_pool *pool)
{
    return pool->op.slice != UINT32_MAX || pool->context.packing->sum_groups == 1;
}

float *tide_param_gradient(const tide_pool *pool, tide_param param)
{
    const uint32_t i = find_gradient(pool, param);
    if (i == UINT32_MAX || !has_group(pool))
        return NULL;
    return (float *)(void *)(pool->context.region + tide_gradient_offset(pool, i));
}

bool tide_param_gradient_is_new(const tide_pool *pool, tide_param param)
{
    const uint32_t i = find_gradient(pool, param);
    return i != UINT32_MAX && has_group(pool) &&
           (tide_op_open(pool)->description->params[i].access & TIDE_ACCESS_OVERWRITE) != 0 &&
           !tide_manager_gradients(pool->engine.manager)->params[param].is_added;
}

/* --- what the pool did --- */

tide_status tide_pool_counters_get(const tide_pool *pool, tide_pool_counters *counters)
{
    if (pool == NULL || counters == NULL)
        return tide_pool_given("tide_pool_counters_get", pool == NULL ? "pool" : "counters");
    tide_pool *shared = (tide_pool *)(uintptr_t)pool; /* the lock is not part of the value */
    tide_monitor_lock(&shared->monitor);
    tide_counters_sum(&shared->telemetry.counters, counters);
    tide_monitor_unlock(&shared->monitor);
    return TIDE_OK;
}

uint64_t tide_pool_now_ns(const tide_pool *pool)
{
    return pool != NULL ? pool->context.device->ops->now_ns(pool->context.device) : 0;
}

void tide_pool_trace_work(const tide_pool *pool, const char *what, uint64_t begin_ns)
{
    const uint64_t end_ns = tide_pool_now_ns(pool);
    if (pool == NULL || !pool->telemetry.tracer.on || what == NULL || begin_ns > end_ns)
        return;
    const tide_tracer *tracer = &pool->telemetry.tracer;
    tide_trace_event event = tide_tracer_event(tracer, TIDE_TRACE_WORK);
    event.work = what;
    event.begin_ns = begin_ns;
    event.end_ns = end_ns;
    tide_tracer_tell(tracer, &event);
}

void tide_pool_trace_chunks(const tide_pool *pool)
{
    tide_pool *shared = (tide_pool *)(uintptr_t)pool;
    tide_monitor_lock(&shared->monitor);
    tide_tracer_look_at_all(&shared->telemetry.tracer, shared->engine.manager);
    tide_monitor_unlock(&shared->monitor);
}

bool tide_pool_step_counters_take(tide_pool *pool, uint64_t *step, tide_pool_counters *counters)
{
    if (pool == NULL || step == NULL || counters == NULL)
        return false;
    tide_monitor_lock(&pool->monitor);
    tide_commands_tell_updates(&pool->engine.commands);
    const bool taken = tide_counters_take(&pool->telemetry.counters, step, counters);
    tide_monitor_unlock(&pool->monitor);
    return taken;
}
