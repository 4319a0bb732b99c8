/* Which place a device slot stands at: maps, unmaps, and the slot that goes on from place to place.
 *
 * An evicted chunk's slot is often wanted at once. Where the device has remap, the place is left as it is until the engine
 * knows its next command: if that fetches into the slot, one call takes it on, else it is unmapped first. So one place at
 * most is left, and none when the engine sleeps, unless it has failed.
 */
#include "src/pool/internal.h"

#include <assert.h>

static tide_status change_mapping(tide_pool *pool, tide_status (*call)(tide_device *, uint32_t, void *),
                                  uint32_t series, uint32_t slot, void *place)
{
    tide_stalls_mapping(&pool->journal.stalls, true);
    tide_monitor_unlock(&pool->monitor);
    const uint64_t begin_ns = pool->ground.device->ops->now_ns(pool->ground.device);
    const tide_status status = call(pool->ground.device, slot, place);
    if (status == TIDE_OK)
        tide_measure_add(&pool->journal.measure, series,
                         pool->ground.device->ops->now_ns(pool->ground.device) - begin_ns, 1);
    tide_monitor_lock(&pool->monitor);
    tide_stalls_mapping(&pool->journal.stalls, false);
    return status;
}

static tide_status map(tide_pool *pool, uint32_t slot, void *place)
{
    return change_mapping(pool, pool->ground.device->ops->map, TIDE_SERIES_MAP, slot, place);
}

static tide_status unmap(tide_pool *pool, uint32_t slot, void *place)
{
    return change_mapping(pool, pool->ground.device->ops->unmap, TIDE_SERIES_UNMAP, slot, place);
}

/* Half of it is the unmap's: what predicts a device knows the two alone. */
static tide_status remap(tide_pool *pool, uint32_t slot, void *from, void *to)
{
    tide_stalls_mapping(&pool->journal.stalls, true);
    tide_monitor_unlock(&pool->monitor);
    const uint64_t begin_ns = pool->ground.device->ops->now_ns(pool->ground.device);
    const tide_status status = pool->ground.device->ops->remap(pool->ground.device, slot, from, to);
    const uint64_t half_ns = (pool->ground.device->ops->now_ns(pool->ground.device) - begin_ns) / 2;
    for (uint32_t series = TIDE_SERIES_MAP; status == TIDE_OK && series <= TIDE_SERIES_UNMAP; series++)
        tide_measure_add(&pool->journal.measure, series, half_ns, 1);
    tide_monitor_lock(&pool->monitor);
    tide_stalls_mapping(&pool->journal.stalls, false);
    return status;
}

bool tide_pool_place_is_next(const tide_pool *pool, uint32_t slot, const char *place)
{
    return pool->link.left_place != NULL && slot == pool->link.left_slot && place != pool->link.left_place;
}

static tide_status unmap_left(tide_pool *pool)
{
    if (pool->link.left_place == NULL)
        return TIDE_OK;
    const tide_status status = unmap(pool, pool->link.left_slot, pool->link.left_place);
    if (status == TIDE_OK)
        pool->link.left_place = NULL;
    return status;
}

tide_status tide_pool_place_leave(tide_pool *pool, uint32_t slot, char *place)
{
    /* In a proof that a wait is needed, the checker has to see it now. */
    if (pool->ground.device->ops->remap == NULL || pool->ground.options.skip_wait_site > 0)
        return unmap(pool, slot, place);
    const tide_status status = unmap_left(pool);
    if (status != TIDE_OK)
        return status;
    assert(pool->link.left_place == NULL);
    pool->link.left_place = place;
    pool->link.left_slot = slot;
    return TIDE_OK;
}

tide_status tide_pool_place_take(tide_pool *pool, uint32_t slot, char *place)
{
    if (!tide_pool_place_is_next(pool, slot, place))
        return map(pool, slot, place);
    const tide_status status = remap(pool, slot, pool->link.left_place, place);
    if (status == TIDE_OK)
        pool->link.left_place = NULL;
    return status;
}

void tide_pool_place_settle(tide_pool *pool)
{
    if (pool->link.left_place == NULL)
        return;
    /* A request may be ready: its caller need not wait for an unmap. */
    tide_monitor_progress(&pool->monitor);
    const tide_status status = unmap_left(pool);
    if (status != TIDE_OK)
        tide_monitor_fail(&pool->monitor, status);
}
