/* The public calls that read the telemetry. */
#include "src/pool/inspect.h"
#include "src/pool/internal.h"

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
