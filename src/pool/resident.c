/* manager off: the benchmark's other side. Everything is fetched and stays; between step begin and step end
 * no call is made into chunk/, and the updates run on the device over a fixed table of slots. */
#include "src/pool/internal.h"

#include <assert.h>

static bool all_pinned(const tide_pool *pool)
{
    return tide_manager_all_pinned(pool->manager);
}

tide_status tide_pool_resident(tide_pool *pool, bool resident)
{
    if (pool->resident == resident)
        return TIDE_OK;
    if (!resident) {
        pool->resident = false;
        return tide_manager_unpin_all(pool->manager);
    }
    tide_status status = tide_manager_pin_all(pool->manager);
    if (status != TIDE_OK)
        return status;
    tide_pool_ring(pool);
    status = tide_pool_wait(pool, all_pinned);
    if (status != TIDE_OK)
        return status;
    for (tide_chunk chunk = 0; chunk < tide_layout_chunk_count(pool->layout); chunk++) {
        tide_residency residency;
        tide_manager_residency(pool->manager, chunk, &residency);
        assert(residency.device_valid && residency.pinned);
        pool->resident_slots[chunk] = residency.device_slot;
    }
    pool->resident = true;
    return TIDE_OK;
}
