/* The checks that a public call makes before it does anything. */
#include "src/pool/internal.h"

tide_status tide_pool_say_poisoned(const char *call)
{
    return tide_fail(TIDE_ERROR_STATE,
                     "%s: the pool is poisoned (a step failed after its updates had begun): the state of all "
                     "params has to be "
                     "set first",
                     call);
}

tide_status tide_pool_callable(tide_pool *pool, const char *call)
{
    if (pool == NULL)
        return tide_pool_given(call, "pool");
    tide_monitor_lock(&pool->monitor);
    tide_status status = tide_engine_failure(&pool->engine);
    if (status == TIDE_OK && pool->engine.poisoned)
        status = tide_pool_say_poisoned(call);
    tide_monitor_unlock(&pool->monitor);
    return status;
}
