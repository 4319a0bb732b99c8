/* tide_step_result_get: the result of the last training step. */
#include "src/pool/internal.h"

#include <math.h>

/* The name of the first param whose gradient norm is not finite; NULL if none. Reads the norm blocks through
 * the staging buffer. */
static const char *find_nonfinite(tide_pool *pool)
{
    enum { PIECE = 512 };
    double blocks[PIECE];
    const tide_packing *packing = pool->context.packing;
    const double *all = (const double *)(void *)(pool->context.region + packing->region.blocks_offset);
    for (uint32_t i = 0; i < packing->param_count; i++) {
        const uint64_t count = tide_packed_param_is_frozen(&packing->params[i])
                                   ? 0
                                   : tide_norm_blocks(packing->params[i].elements);
        for (uint64_t done = 0; done < count; done += PIECE) {
            const size_t piece = (size_t)(count - done < PIECE ? count - done : PIECE);
            const double *from = all + packing->params[i].first_block + done;
            if (tide_staging_read(pool, blocks, from, piece * sizeof *blocks) != TIDE_OK)
                return NULL;
            for (size_t j = 0; j < piece; j++) {
                if (!isfinite(blocks[j]))
                    return packing->params[i].name;
            }
        }
    }
    return NULL;
}

static tide_status nonfinite(tide_pool *pool, const char *what)
{
    tide_monitor_unlock(&pool->monitor);
    const char *param = find_nonfinite(pool);
    tide_monitor_lock(&pool->monitor);
    return tide_fail(TIDE_ERROR_NONFINITE, "step %llu: the gradient of param %s is not finite; %s",
                     (unsigned long long)pool->telemetry.tracer.step, param == NULL ? "(unknown)" : param,
                     what);
}

tide_status tide_step_result_get(tide_pool *pool, tide_step_result *result)
{
    if (result == NULL)
        return tide_pool_given("tide_step_result_get", "result");
    tide_status status = tide_pool_callable(pool, "tide_step_result_get");
    if (status != TIDE_OK && status != TIDE_ERROR_NONFINITE)
        return status;
    tide_monitor_lock(&pool->monitor);
    if (status == TIDE_OK && pool->step.is_open)
        status = tide_fail(TIDE_ERROR_STATE, "tide_step_result_get: a step is open");
    if (status == TIDE_OK)
        status = tide_engine_wait_held(&pool->engine, tide_engine_norm_known);
    if (status == TIDE_ERROR_NONFINITE && pool->engine.poisoned)
        status = nonfinite(
            pool, "without clipping updates had begun, so that params are undefined (the pool is poisoned)");
    else if (status == TIDE_OK && pool->norm.skipped_in_row >= TIDE_SKIPS_MAX)
        status = nonfinite(pool, "ten steps in a row were skipped");
    if (status == TIDE_OK && !pool->norm.has_result)
        status = tide_fail(TIDE_ERROR_STATE,
                           "tide_step_result_get: no training step has ended, or the last was given up");
    if (status == TIDE_OK)
        *result = pool->norm.result;
    tide_monitor_unlock(&pool->monitor);
    return status;
}
