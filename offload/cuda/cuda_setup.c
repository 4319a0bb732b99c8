/* Makes memory at start, and mappings, for the CUDA device's account (account.h), which holds its lock during
 * these calls. Events need no CUDA object of their own: they are moments on a stream (cuda_clock.h).
 */
#include "offload/cuda/cuda_inside.h"

#include <assert.h>

static tide_status use(const tide_cuda_device *device)
{
    return tide_cuda_use(device->ordinal);
}

/* --- memory --- */

static tide_cuda_pinning pinning_of(const tide_cuda_device *device)
{
    return (tide_cuda_pinning){.ordinal = device->ordinal,
                               .node = device->node,
                               .threads = device->threads,
                               .progress = device->options.progress,
                               .progress_context = device->options.progress_context};
}

static tide_status host_slots_make(tide_cuda_device *device, uint32_t count)
{
    const tide_cuda_pinning how = pinning_of(device);
    return tide_cuda_pinned_create(&device->host_slots, count, device->options.chunk_bytes, &how);
}

tide_status tide_cuda_slots_make(tide_device *device, tide_tier tier, uint32_t count)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    const tide_status status = use(cuda);
    if (status != TIDE_OK)
        return status;
    return tier == TIDE_TIER_DEVICE ? tide_cuda_memory_slots_create(&cuda->memory, count)
                                    : host_slots_make(cuda, count);
}

void *tide_cuda_slot_address(tide_device *device, tide_tier tier, uint32_t slot)
{
    const tide_cuda_device *cuda = tide_cuda_device_of(device);
    if (tier == TIDE_TIER_DEVICE)
        return tide_cuda_memory_slot(&cuda->memory, slot);
    assert(slot < cuda->host_slots.count);
    return tide_cuda_pinned_slot(&cuda->host_slots, slot);
}

tide_status tide_cuda_range_make(tide_device *device, uint64_t bytes, void **base)
{
    const tide_cuda_device *cuda = tide_cuda_device_of(device);
    const tide_status status = use(cuda);
    return status == TIDE_OK ? tide_cuda_memory_reserve(&cuda->memory, bytes, base) : status;
}

void tide_cuda_range_undo(tide_device *device, void *base, uint64_t bytes)
{
    tide_cuda_memory_unreserve(&tide_cuda_device_of(device)->memory, base, bytes);
}

tide_status tide_cuda_region_make(tide_device *device, uint64_t bytes, void **address)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    tide_status status = use(cuda);
    if (status == TIDE_OK)
        status =
            tide_cuda_memory_region_create(&cuda->memory, bytes, cuda->streams[TIDE_STREAM_COMPUTE].stream);
    if (status == TIDE_OK)
        *address = cuda->memory.region;
    return status;
}

tide_status tide_cuda_buffer_make(tide_device *device, const char *name, uint64_t bytes, void **address)
{
    const tide_cuda_device *cuda = tide_cuda_device_of(device);
    const tide_status status = use(cuda);
    return status == TIDE_OK ? tide_host_arena_allocate(cuda->arena, name, bytes, cuda->threads, address)
                             : status;
}

/* --- residency --- */

tide_status tide_cuda_place_map(tide_device *device, uint32_t slot, void *place)
{
    const tide_cuda_device *cuda = tide_cuda_device_of(device);
    const tide_status status = use(cuda);
    return status == TIDE_OK ? tide_cuda_memory_map(&cuda->memory, slot, place) : status;
}

tide_status tide_cuda_place_unmap(tide_device *device, uint32_t slot, void *place)
{
    const tide_cuda_device *cuda = tide_cuda_device_of(device);
    const tide_status status = use(cuda);
    return status == TIDE_OK ? tide_cuda_memory_unmap(&cuda->memory, slot, place) : status;
}

/* Makes the device fail for good: it is unknown what is mapped at a place. */
void tide_cuda_place_lost(tide_device *device, tide_status status)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    tide_cuda_state_lock(cuda);
    cuda->place_lost = true;
    tide_cuda_state_unlock(cuda);
    (void)tide_cuda_fail(cuda, status);
}

/* --- undo --- */

static void ranges_undo(tide_cuda_device *device)
{
    tide_mappings *mappings = &device->account.mappings;
    for (uint32_t slot = 0; slot < mappings->slot_count; slot++) {
        char *place = mappings->slots[slot].place;
        if (place == NULL)
            continue;
        tide_cuda_memory_unmap_undo(&device->memory, place);
        tide_mappings_take(mappings, slot, place);
    }
    for (uint32_t i = 0; i < mappings->range_count; i++)
        tide_cuda_memory_unreserve(&device->memory, mappings->ranges[i].base,
                                   mappings->ranges[i].chunk_count * device->options.chunk_bytes);
}

void tide_cuda_setup_undo(tide_cuda_device *device)
{
    const tide_account *account = &device->account;
    const tide_cuda_pinning how = pinning_of(device);
    for (uint32_t i = 0; i < account->buffer_count; i++)
        tide_host_arena_free(device->arena, account->buffers[i].address, account->buffers[i].bytes);
    ranges_undo(device);
    tide_cuda_pinned_destroy(&device->host_slots, &how);
    tide_cuda_memory_destroy(&device->memory);
}
