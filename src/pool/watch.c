#include "src/pool/watch.h"

#include "src/pool/internal.h"

#include <assert.h>

void tide_pool_watch(tide_pool *pool, tide_device_observer watch, void *context)
{
    assert(pool->sealed && !pool->step.is_open);
    pool->telemetry.watch = watch;
    pool->telemetry.watch_context = context;
}

tide_status tide_pool_imitate(tide_pool *pool, const tide_device_options *machine)
{
    if (!pool->sealed || pool->context.device->ops->has_data)
        return tide_fail(TIDE_ERROR_STATE, "only a sealed pool on the null device can play another machine");
    return tide_device_null_imitate(pool->context.device, machine);
}
