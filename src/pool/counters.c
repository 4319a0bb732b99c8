/* What the caller may ask about what the pool did. */
#include "src/pool/internal.h"

tide_status tide_pool_counters_get(const tide_pool *pool, tide_pool_counters *counters)
{
    tide_status status = tide_pool_given("tide_pool_counters_get", pool == NULL       ? "pool"
                                                                   : counters == NULL ? "counters"
                                                                                      : NULL);
    if (status == TIDE_OK)
        status = tide_pool_sealed(pool, "tide_pool_counters_get");
    if (status != TIDE_OK)
        return status;
    tide_pool *shared = (tide_pool *)(uintptr_t)pool; /* the lock is not part of the value */
    tide_monitor_lock(&shared->monitor);
    tide_records_sum(&shared->journal.records, counters);
    tide_monitor_unlock(&shared->monitor);
    return TIDE_OK;
}

bool tide_pool_step_counters_take(tide_pool *pool, uint64_t *step, tide_pool_counters *counters)
{
    if (pool == NULL || step == NULL || counters == NULL || !pool->sealed)
        return false;
    tide_monitor_lock(&pool->monitor);
    tide_commands_tell_updates(&pool->engine.commands);
    const bool taken = tide_records_take(&pool->journal.records, step, counters);
    tide_monitor_unlock(&pool->monitor);
    return taken;
}
