/* Makes the host device's memory at start for its account (account.h), which holds its lock during these
 * calls. */
#include "offload/host/host_device.h"
#include "offload/host_extent.h"

#include <assert.h>

static tide_status hazard_objects_add(tide_host_device *device, tide_object_kind kind, const char *name,
                                      uint32_t count)
{
    if (device->hazard == NULL)
        return TIDE_OK;
    tide_host_streams_lock(&device->streams);
    tide_status status = tide_hazard_objects_add(device->hazard, kind, name, count);
    tide_host_streams_unlock(&device->streams);
    return status;
}

/* How to touch large memory: with all threads, reporting the progress. */
static tide_first_touch touch_how(const tide_host_device *device)
{
    return (tide_first_touch){.threads = device->threads,
                              .progress = device->options.progress,
                              .progress_context = device->options.progress_context};
}

tide_status tide_host_slots_make(tide_device *device, tide_tier tier, uint32_t count)
{
    tide_host_device *host = tide_host_device_of(device);
    const bool on_device = tier == TIDE_TIER_DEVICE;
    const tide_first_touch how = touch_how(host);
    tide_status status =
        on_device ? tide_host_memory_slots_create(&host->memory, count, &how)
                  : tide_host_slots_create(&host->host_slots, count, host->options.chunk_bytes, &how);
    if (status != TIDE_OK)
        return status;
    status =
        hazard_objects_add(host, on_device ? TIDE_OBJECT_DEVICE_SLOT : TIDE_OBJECT_HOST_SLOT, NULL, count);
    if (status == TIDE_OK && on_device)
        status = hazard_objects_add(host, TIDE_OBJECT_SLOT_GRADIENTS, NULL, count);
    if (status == TIDE_OK)
        return TIDE_OK;
    if (on_device)
        tide_host_memory_slots_destroy(&host->memory);
    else
        tide_host_slots_destroy(&host->host_slots);
    return status;
}

void *tide_host_slot_address(tide_device *device, tide_tier tier, uint32_t slot)
{
    tide_host_device *host = tide_host_device_of(device);
    if (tier == TIDE_TIER_DEVICE) {
        assert(slot < host->memory.slot_count);
        return tide_host_memory_slot(&host->memory, slot);
    }
    assert(slot < host->host_slots.count);
    return tide_host_slots_address(&host->host_slots, slot);
}

void *tide_host_slot_reach(tide_host_device *device, tide_tier tier, uint32_t slot)
{
    void *own = tide_host_slot_address(&device->account.base, tier, slot);
    if (tier != TIDE_TIER_DEVICE || device->options.checks.guard)
        return own; /* a guarded place is inaccessible for everyone, copies too */
    pthread_mutex_lock(&device->account.lock);
    char *place = device->account.mappings.slots[slot].place;
    pthread_mutex_unlock(&device->account.lock);
    return place == NULL ? own : place;
}

tide_status tide_host_range_make(tide_device *device, uint64_t bytes, void **base)
{
    return tide_host_extent_reserve(bytes, tide_host_device_of(device)->options.chunk_bytes, base);
}

void tide_host_range_undo(tide_device *device, void *base, uint64_t bytes)
{
    (void)device;
    tide_host_extent_destroy(base, bytes);
}

tide_status tide_host_region_make(tide_device *device, uint64_t bytes, void **address)
{
    tide_host_device *host = tide_host_device_of(device);
    const tide_first_touch how = touch_how(host);
    const tide_status status = tide_host_memory_region_create(&host->memory, bytes, &how);
    if (status == TIDE_OK)
        *address = host->memory.region;
    return status;
}

tide_status tide_host_part_make(tide_device *device, const char *name)
{
    return hazard_objects_add(tide_host_device_of(device), TIDE_OBJECT_REGION, name, 1);
}

tide_status tide_host_buffer_make(tide_device *device, const char *name, uint64_t bytes, void **address)
{
    tide_host_device *host = tide_host_device_of(device);
    void *base;
    tide_status status = tide_host_arena_allocate(host->arena, name, bytes, host->threads, &base);
    if (status != TIDE_OK)
        return status;
    status = hazard_objects_add(host, TIDE_OBJECT_BUFFER, name, 1);
    if (status != TIDE_OK) {
        tide_host_arena_free(host->arena, base, bytes);
        return status;
    }
    *address = base;
    return TIDE_OK;
}

/* The streams' lock is held. */
tide_status tide_host_events_reserve(tide_device *device, uint32_t capacity)
{
    tide_host_device *host = tide_host_device_of(device);
    return host->hazard != NULL ? tide_hazard_events_reserve(host->hazard, capacity) : TIDE_OK;
}

void tide_host_setup_undo(tide_host_device *device)
{
    const tide_account *account = &device->account;
    for (uint32_t i = 0; i < account->buffer_count; i++)
        tide_host_arena_free(device->arena, account->buffers[i].address, account->buffers[i].bytes);
    for (uint32_t i = 0; i < account->mappings.range_count; i++)
        tide_host_extent_destroy(account->mappings.ranges[i].base,
                                 account->mappings.ranges[i].chunk_count * device->options.chunk_bytes);
    tide_host_slots_destroy(&device->host_slots);
    tide_host_memory_destroy(&device->memory);
}
