/* What is made at start, and residency. Every call: check the values, check the budget, count a fault, make, then
 * enter it into the tables; on failure undo in reverse. All of it under the memory lock, which also keeps the ledgers
 * and the mappings.
 */
#include "offload/cuda_inside.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

enum { EVENTS_AT_FIRST = 64 };

static tide_status use(const tide_cuda_device *device)
{
    return tide_cuda_use(device->ordinal);
}

/* --- slots --- */

static tide_status device_slots_make(tide_cuda_device *device, uint32_t count)
{
    tide_status status = tide_mappings_slots_add(&device->mappings, count);
    if (status != TIDE_OK)
        return status;
    status = tide_cuda_memory_slots_create(&device->memory, count);
    if (status != TIDE_OK)
        tide_mappings_slots_remove(&device->mappings);
    return status;
}

static tide_status host_slots_make(tide_cuda_device *device, uint32_t count)
{
    const tide_cuda_pinning how = {.ordinal = device->ordinal,
                                   .node = device->node,
                                   .threads = device->threads,
                                   .progress = device->options.progress,
                                   .progress_context = device->options.progress_context};
    return tide_cuda_pinned_create(&device->host_slots, count, device->options.chunk_bytes, &how);
}

static tide_status slots_make_locked(tide_cuda_device *device, tide_tier tier, uint32_t count)
{
    const uint64_t bytes = count * device->options.chunk_bytes;
    if (device->slots_made[tier])
        return tide_fail(TIDE_ERROR_STATE, "the %s slots exist already", tide_tier_name(tier));
    tide_status status = tide_ledger_check(&device->ledgers[tier], tier, "slots", bytes);
    if (status == TIDE_OK)
        status = tide_fault_count(&device->fault, TIDE_FAULT_MEMORY, "making slots");
    if (status == TIDE_OK)
        status = use(device);
    if (status == TIDE_OK)
        status = tier == TIDE_TIER_DEVICE ? device_slots_make(device, count) : host_slots_make(device, count);
    if (status != TIDE_OK)
        return status;
    device->slots_made[tier] = true;
    tide_ledger_commit(&device->ledgers[tier], bytes);
    return TIDE_OK;
}

tide_status tide_cuda_slots_make(tide_device *device, tide_tier tier, uint32_t count)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    if ((unsigned)tier >= TIDE_TIER_COUNT)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tier %u does not exist", (unsigned)tier);
    pthread_mutex_lock(&cuda->memory_lock);
    const tide_status status = slots_make_locked(cuda, tier, count);
    pthread_mutex_unlock(&cuda->memory_lock);
    return status;
}

void *tide_cuda_slot_address(tide_device *device, tide_tier tier, uint32_t slot)
{
    const tide_cuda_device *cuda = tide_cuda_device_of(device);
    if (tier == TIDE_TIER_DEVICE)
        return tide_cuda_memory_slot(&cuda->memory, slot);
    assert(slot < cuda->host_slots.count);
    return tide_cuda_pinned_slot(&cuda->host_slots, slot);
}

/* --- ranges --- */

static tide_status reserve_locked(tide_cuda_device *device, uint64_t bytes, void **address)
{
    void *base;
    tide_status status = tide_mappings_range_check(&device->mappings, bytes);
    if (status == TIDE_OK)
        status = tide_fault_count(&device->fault, TIDE_FAULT_MEMORY, "reserving a range");
    if (status == TIDE_OK)
        status = use(device);
    if (status == TIDE_OK)
        status = tide_cuda_memory_reserve(&device->memory, bytes, &base);
    if (status != TIDE_OK)
        return status;
    status = tide_mappings_range_add(&device->mappings, base, bytes);
    if (status != TIDE_OK)
        goto undo_reserve;
    tide_ledger_commit(&device->ledgers[TIDE_TIER_DEVICE], 0);
    *address = base;
    return TIDE_OK;

undo_reserve:
    tide_cuda_memory_unreserve(&device->memory, base, bytes);
    return status;
}

tide_status tide_cuda_reserve(tide_device *device, uint64_t bytes, void **address)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    pthread_mutex_lock(&cuda->memory_lock);
    const tide_status status = reserve_locked(cuda, bytes, address);
    pthread_mutex_unlock(&cuda->memory_lock);
    return status;
}

/* --- the region and its parts --- */

static tide_status region_create_locked(tide_cuda_device *device, uint64_t bytes)
{
    if (device->memory.region != NULL)
        return tide_fail(TIDE_ERROR_STATE, "the region exists already");
    if (bytes == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "a region of no bytes");
    tide_memory_usage *ledger = &device->ledgers[TIDE_TIER_DEVICE];
    tide_status status = tide_ledger_check(ledger, TIDE_TIER_DEVICE, "region", bytes);
    if (status == TIDE_OK)
        status = tide_fault_count(&device->fault, TIDE_FAULT_MEMORY, "making the region");
    if (status == TIDE_OK)
        status = use(device);
    if (status == TIDE_OK)
        status = tide_cuda_memory_region_create(&device->memory, bytes, device->streams[TIDE_STREAM_COMPUTE].stream);
    if (status != TIDE_OK)
        return status;
    device->region_bytes = bytes;
    tide_ledger_commit(ledger, bytes);
    return TIDE_OK;
}

tide_status tide_cuda_region_create(tide_device *device, uint64_t bytes, void **address)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    pthread_mutex_lock(&cuda->memory_lock);
    const tide_status status = region_create_locked(cuda, bytes);
    if (status == TIDE_OK)
        *address = cuda->memory.region;
    pthread_mutex_unlock(&cuda->memory_lock);
    return status;
}

/* Parts of the region are the checker's, which is the host device's: here they are numbered only. */
tide_status tide_cuda_region_object(tide_device *device, const char *name, uint64_t offset_bytes, uint64_t bytes,
                                    uint32_t *object)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    if (name == NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "a region part without a name");
    pthread_mutex_lock(&cuda->memory_lock);
    tide_status status = tide_region_part_check(name, offset_bytes, bytes, cuda->region_bytes);
    if (status == TIDE_OK)
        status = tide_fault_count(&cuda->fault, TIDE_FAULT_MEMORY, "naming a region part");
    if (status == TIDE_OK)
        *object = cuda->region_object_count++;
    pthread_mutex_unlock(&cuda->memory_lock);
    return status;
}

/* --- buffers --- */

/* Room for one more buffer in the table, so that entering it can't fail. The state lock guards the table, because
 * copies look their addresses up in it. */
static tide_status buffer_table_grow(tide_cuda_device *device)
{
    tide_cuda_state_lock(device);
    tide_cuda_buffer *buffers = realloc(device->buffers, (device->buffer_count + 1) * sizeof *buffers);
    if (buffers != NULL)
        device->buffers = buffers;
    tide_cuda_state_unlock(device);
    if (buffers == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the table of %" PRIu32 " buffers",
                         device->buffer_count + 1);
    return TIDE_OK;
}

static uint32_t buffer_enter(tide_cuda_device *device, void *address, uint64_t bytes)
{
    tide_cuda_state_lock(device);
    const uint32_t object = device->buffer_count++;
    device->buffers[object] = (tide_cuda_buffer){address, bytes};
    tide_cuda_state_unlock(device);
    return object;
}

static tide_status buffer_create_locked(tide_cuda_device *device, const char *name, uint64_t bytes, void **address,
                                        uint32_t *object)
{
    void *base;
    tide_memory_usage *ledger = &device->ledgers[TIDE_TIER_HOST];
    tide_status status = tide_ledger_check(ledger, TIDE_TIER_HOST, name, tide_page_up(bytes));
    if (status == TIDE_OK)
        status = tide_fault_count(&device->fault, TIDE_FAULT_MEMORY, "making a buffer");
    if (status == TIDE_OK)
        status = use(device);
    if (status == TIDE_OK)
        status = buffer_table_grow(device);
    if (status == TIDE_OK)
        status = tide_host_arena_allocate(device->arena, name, bytes, device->threads, &base);
    if (status != TIDE_OK)
        return status;
    *object = buffer_enter(device, base, bytes);
    *address = base;
    tide_ledger_commit(ledger, tide_page_up(bytes));
    return TIDE_OK;
}

tide_status tide_cuda_buffer_create(tide_device *device, const char *name, uint64_t bytes, void **address,
                                    uint32_t *object)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    tide_status status = tide_buffer_check(name, bytes);
    if (status != TIDE_OK)
        return status;
    pthread_mutex_lock(&cuda->memory_lock);
    status = buffer_create_locked(cuda, name, bytes, address, object);
    pthread_mutex_unlock(&cuda->memory_lock);
    return status;
}

/* --- events: moments, for which CUDA makes nothing (cuda_clock.h) --- */

/* Room for one more event. The state lock is held. */
static tide_status event_table_grow(tide_cuda_device *device)
{
    if (device->event_count < device->event_capacity)
        return TIDE_OK;
    const uint32_t capacity = device->event_capacity > 0 ? device->event_capacity * 2 : EVENTS_AT_FIRST;
    tide_cuda_moment *events = realloc(device->events, capacity * sizeof *events);
    if (events == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %" PRIu32 " events", capacity);
    device->events = events;
    device->event_capacity = capacity;
    return TIDE_OK;
}

tide_status tide_cuda_event_create(tide_device *device, tide_event *event)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    tide_status status = tide_fault_count(&cuda->fault, TIDE_FAULT_MEMORY, "making an event");
    if (status != TIDE_OK)
        return status;
    pthread_mutex_lock(&cuda->memory_lock);
    tide_cuda_state_lock(cuda);
    status = event_table_grow(cuda);
    if (status == TIDE_OK) {
        cuda->events[cuda->event_count] = (tide_cuda_moment){TIDE_STREAM_COMPUTE, 0};
        *event = ++cuda->event_count;
        tide_ledger_commit(&cuda->ledgers[TIDE_TIER_DEVICE], 0);
    }
    tide_cuda_state_unlock(cuda);
    pthread_mutex_unlock(&cuda->memory_lock);
    return status;
}

/* --- residency --- */

static void count_one(tide_cuda_device *device, uint64_t *counter)
{
    tide_cuda_state_lock(device);
    (*counter)++;
    tide_cuda_state_unlock(device);
}

/* A place that is neither mapped nor free: nobody can tell what a use of it finds. */
static void fail_if_lost(tide_cuda_device *device, tide_status status)
{
    if (status != TIDE_ERROR_INTERNAL)
        return;
    tide_cuda_state_lock(device);
    device->place_lost = true;
    tide_cuda_state_unlock(device);
    (void)tide_cuda_fail(device, status);
}

static tide_status map_locked(tide_cuda_device *device, uint32_t slot, void *place)
{
    tide_status status = tide_mappings_put_check(&device->mappings, slot, place);
    if (status == TIDE_OK)
        status = tide_fault_count(&device->fault, TIDE_FAULT_MAP, "mapping a slot");
    if (status == TIDE_OK)
        status = use(device);
    if (status == TIDE_OK)
        status = tide_cuda_memory_map(&device->memory, slot, place);
    if (status != TIDE_OK)
        return status;
    tide_mappings_put(&device->mappings, slot, place);
    count_one(device, &device->maps);
    return TIDE_OK;
}

tide_status tide_cuda_map(tide_device *device, uint32_t slot, void *place)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    pthread_mutex_lock(&cuda->memory_lock);
    const tide_status status = map_locked(cuda, slot, place);
    fail_if_lost(cuda, status);
    pthread_mutex_unlock(&cuda->memory_lock);
    return status;
}

static tide_status unmap_locked(tide_cuda_device *device, uint32_t slot, void *place)
{
    tide_status status = tide_mappings_take_check(&device->mappings, slot, place);
    if (status == TIDE_OK)
        status = tide_fault_count(&device->fault, TIDE_FAULT_MAP, "unmapping a slot");
    if (status == TIDE_OK)
        status = use(device);
    if (status == TIDE_OK)
        status = tide_cuda_memory_unmap(&device->memory, slot, place);
    if (status != TIDE_OK)
        return status;
    tide_mappings_take(&device->mappings, slot, place);
    count_one(device, &device->unmaps);
    return TIDE_OK;
}

tide_status tide_cuda_unmap(tide_device *device, uint32_t slot, void *place)
{
    tide_cuda_device *cuda = tide_cuda_device_of(device);
    pthread_mutex_lock(&cuda->memory_lock);
    const tide_status status = unmap_locked(cuda, slot, place);
    pthread_mutex_unlock(&cuda->memory_lock);
    return status;
}

/* --- the way back --- */

static void ranges_undo(tide_cuda_device *device)
{
    tide_mappings *mappings = &device->mappings;
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
    tide_mappings_destroy(mappings);
}

void tide_cuda_setup_undo(tide_cuda_device *device)
{
    free(device->events);
    for (uint32_t i = 0; i < device->buffer_count; i++)
        tide_host_arena_free(device->arena, device->buffers[i].address, device->buffers[i].bytes);
    free(device->buffers);
    ranges_undo(device);
    tide_cuda_pinned_destroy(&device->host_slots);
    tide_cuda_memory_destroy(&device->memory);
}
