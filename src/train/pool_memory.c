#include "src/train/pool_memory.h"

#include "offload/free_memory.h"

/* Free memory of the host; 0 if the system does not report it. `shared`: the device uses the host's
 * memory; it refuses more than is available now. With a GPU the run touches the host slots one by one, so
 * memory that a virtual machine gets meanwhile counts too (offload/free_memory.h). */
static uint64_t free_host_bytes(bool shared)
{
    const uint64_t bytes = shared ? tide_topology_available_bytes()
                                  : tide_free_memory_most_bytes(tide_free_memory_machine_system());
    return bytes != UINT64_MAX ? bytes : 0;
}

tide_status tide_pool_memory_find(const tide_device_factory *factory, bool imitates, tide_pool_options *pool)
{
    const bool shared = factory->available_bytes == UINT64_MAX;
    const bool given = pool->host_memory_bytes != 0 && (pool->device_memory_bytes != 0 || !shared);
    if (given || (!factory->has_data && !imitates))
        pool->free_memory_bytes = 0;
    if (given || !factory->has_data)
        return TIDE_OK;
    if (pool->free_memory_bytes == 0)
        pool->free_memory_bytes = free_host_bytes(shared);
    if (pool->free_memory_bytes == 0)
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "free memory is unknown (/proc/meminfo): %s must be given",
                         shared ? "both budgets" : "the host budget");
    return TIDE_OK;
}
