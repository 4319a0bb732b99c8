/* What is made at start. Every call: check the values, check the budget, count a fault, make, then enter it
 * into the tables; on failure undo in reverse. All of it under the memory lock, which also keeps the ledgers.
 */
#include "offload/host_device.h"
#include "offload/host_extent.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { EVENTS_AT_FIRST = 64 };

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

/* Large memory is touched by all threads, and told of. */
static tide_first_touch touch_how(const tide_host_device *device)
{
    return (tide_first_touch){.threads = device->threads,
                              .progress = device->options.progress,
                              .progress_context = device->options.progress_context};
}

/* --- slots --- */

static tide_status device_slots_make(tide_host_device *device, uint32_t count)
{
    tide_status status = tide_mappings_slots_add(&device->mappings, count);
    if (status != TIDE_OK)
        return status;
    const tide_first_touch how = touch_how(device);
    status = tide_host_memory_slots_create(&device->memory, count, &how);
    if (status != TIDE_OK)
        tide_mappings_slots_remove(&device->mappings);
    return status;
}

static void device_slots_undo(tide_host_device *device)
{
    tide_host_memory_slots_destroy(&device->memory);
    tide_mappings_slots_remove(&device->mappings);
}

static tide_status host_slots_make(tide_host_device *device, uint32_t count)
{
    const tide_first_touch how = touch_how(device);
    return tide_host_slots_create(&device->host_slots, count, device->options.chunk_bytes, &how);
}

static tide_status slots_make_locked(tide_host_device *device, tide_tier tier, uint32_t count)
{
    bool on_device = tier == TIDE_TIER_DEVICE;
    uint64_t bytes = count * device->options.chunk_bytes;
    if (device->slots_made[tier])
        return tide_fail(TIDE_ERROR_STATE, "the %s slots exist already", tide_tier_name(tier));
    tide_status status = tide_ledger_check(&device->ledgers[tier], tier, "slots", bytes);
    if (status == TIDE_OK)
        status = tide_fault_count(&device->fault, TIDE_FAULT_MEMORY, "making slots");
    if (status == TIDE_OK)
        status = on_device ? device_slots_make(device, count) : host_slots_make(device, count);
    if (status != TIDE_OK)
        return status;
    status =
        hazard_objects_add(device, on_device ? TIDE_OBJECT_DEVICE_SLOT : TIDE_OBJECT_HOST_SLOT, NULL, count);
    if (status != TIDE_OK)
        goto undo_slots;
    device->slots_made[tier] = true;
    tide_ledger_commit(&device->ledgers[tier], bytes);
    return TIDE_OK;

undo_slots:
    if (on_device)
        device_slots_undo(device);
    else
        tide_host_slots_destroy(&device->host_slots);
    return status;
}

tide_status tide_host_slots_make(tide_device *device, tide_tier tier, uint32_t count)
{
    tide_host_device *host = tide_host_device_of(device);
    if ((unsigned)tier >= TIDE_TIER_COUNT)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tier %u does not exist", (unsigned)tier);
    pthread_mutex_lock(&host->memory_lock);
    tide_status status = slots_make_locked(host, tier, count);
    pthread_mutex_unlock(&host->memory_lock);
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
    void *own = tide_host_slot_address(&device->base, tier, slot);
    if (tier != TIDE_TIER_DEVICE || device->options.guard)
        return own; /* a guarded place is closed to everybody, copies too */
    pthread_mutex_lock(&device->memory_lock);
    char *place = device->mappings.slots[slot].place;
    pthread_mutex_unlock(&device->memory_lock);
    return place == NULL ? own : place;
}

/* --- ranges --- */

static tide_status reserve_locked(tide_host_device *device, uint64_t bytes, void **address)
{
    void *base;
    tide_status status = tide_mappings_range_check(&device->mappings, bytes);
    if (status == TIDE_OK)
        status = tide_fault_count(&device->fault, TIDE_FAULT_MEMORY, "reserving a range");
    if (status == TIDE_OK)
        status = tide_host_extent_reserve(bytes, device->options.chunk_bytes, &base);
    if (status != TIDE_OK)
        return status;
    status = tide_mappings_range_add(&device->mappings, base, bytes);
    if (status != TIDE_OK)
        goto undo_reserve;
    tide_ledger_commit(&device->ledgers[TIDE_TIER_DEVICE], 0);
    *address = base;
    return TIDE_OK;

undo_reserve:
    tide_host_extent_destroy(base, bytes);
    return status;
}

tide_status tide_host_reserve(tide_device *device, uint64_t bytes, void **address)
{
    tide_host_device *host = tide_host_device_of(device);
    pthread_mutex_lock(&host->memory_lock);
    tide_status status = reserve_locked(host, bytes, address);
    pthread_mutex_unlock(&host->memory_lock);
    return status;
}

/* --- the region and its parts --- */

static tide_status region_create_locked(tide_host_device *device, uint64_t bytes)
{
    if (device->memory.region != NULL)
        return tide_fail(TIDE_ERROR_STATE, "the region exists already");
    if (bytes == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "a region of no bytes");
    tide_memory_usage *ledger = &device->ledgers[TIDE_TIER_DEVICE];
    tide_status status = tide_ledger_check(ledger, TIDE_TIER_DEVICE, "region", bytes);
    if (status == TIDE_OK)
        status = tide_fault_count(&device->fault, TIDE_FAULT_MEMORY, "making the region");
    const tide_first_touch how = touch_how(device);
    if (status == TIDE_OK)
        status = tide_host_memory_region_create(&device->memory, bytes, &how);
    if (status != TIDE_OK)
        return status;
    device->region_bytes = bytes;
    tide_ledger_commit(ledger, bytes);
    return TIDE_OK;
}

tide_status tide_host_region_create(tide_device *device, uint64_t bytes, void **address)
{
    tide_host_device *host = tide_host_device_of(device);
    pthread_mutex_lock(&host->memory_lock);
    tide_status status = region_create_locked(host, bytes);
    if (status == TIDE_OK)
        *address = host->memory.region;
    pthread_mutex_unlock(&host->memory_lock);
    return status;
}

static tide_status region_object_locked(tide_host_device *device, const char *name, uint64_t offset_bytes,
                                        uint64_t bytes, uint32_t *object)
{
    tide_status status = tide_region_part_check(name, offset_bytes, bytes, device->region_bytes);
    if (status == TIDE_OK)
        status = tide_fault_count(&device->fault, TIDE_FAULT_MEMORY, "naming a region part");
    if (status == TIDE_OK)
        status = hazard_objects_add(device, TIDE_OBJECT_REGION, name, 1);
    if (status != TIDE_OK)
        return status;
    *object = device->region_object_count++;
    return TIDE_OK;
}

tide_status tide_host_region_object(tide_device *device, const char *name, uint64_t offset_bytes,
                                    uint64_t bytes, uint32_t *object)
{
    tide_host_device *host = tide_host_device_of(device);
    if (name == NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "a region part without a name");
    pthread_mutex_lock(&host->memory_lock);
    tide_status status = region_object_locked(host, name, offset_bytes, bytes, object);
    pthread_mutex_unlock(&host->memory_lock);
    return status;
}

/* --- buffers --- */

/* Room for one more buffer in the table, so that entering it can't fail. The streams' lock guards the table,
 * because copies look their addresses up in it. */
static tide_status buffer_table_grow(tide_host_device *device)
{
    tide_host_streams_lock(&device->streams);
    tide_host_buffer *buffers = realloc(device->buffers, (device->buffer_count + 1) * sizeof *buffers);
    if (buffers != NULL)
        device->buffers = buffers;
    tide_host_streams_unlock(&device->streams);
    if (buffers == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the table of %" PRIu32 " buffers",
                         device->buffer_count + 1);
    return TIDE_OK;
}

static uint32_t buffer_enter(tide_host_device *device, void *address, uint64_t bytes)
{
    tide_host_streams_lock(&device->streams);
    uint32_t object = device->buffer_count++;
    device->buffers[object] = (tide_host_buffer){address, bytes};
    tide_host_streams_unlock(&device->streams);
    return object;
}

static tide_status buffer_create_locked(tide_host_device *device, const char *name, uint64_t bytes,
                                        void **address, uint32_t *object)
{
    void *base;
    tide_memory_usage *ledger = &device->ledgers[TIDE_TIER_HOST];
    tide_status status = tide_ledger_check(ledger, TIDE_TIER_HOST, name, tide_page_up(bytes));
    if (status == TIDE_OK)
        status = tide_fault_count(&device->fault, TIDE_FAULT_MEMORY, "making a buffer");
    if (status == TIDE_OK)
        status = buffer_table_grow(device);
    if (status == TIDE_OK)
        status = tide_host_arena_allocate(device->arena, name, bytes, device->threads, &base);
    if (status != TIDE_OK)
        return status;
    status = hazard_objects_add(device, TIDE_OBJECT_BUFFER, name, 1);
    if (status != TIDE_OK)
        goto undo_allocate;
    *object = buffer_enter(device, base, bytes);
    *address = base;
    tide_ledger_commit(ledger, tide_page_up(bytes));
    return TIDE_OK;

undo_allocate:
    tide_host_arena_free(device->arena, base, bytes);
    return status;
}

tide_status tide_host_buffer_create(tide_device *device, const char *name, uint64_t bytes, void **address,
                                    uint32_t *object)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_status status = tide_buffer_check(name, bytes);
    if (status != TIDE_OK)
        return status;
    pthread_mutex_lock(&host->memory_lock);
    status = buffer_create_locked(host, name, bytes, address, object);
    pthread_mutex_unlock(&host->memory_lock);
    return status;
}

/* --- events --- */

/* Room for one more event. The streams' lock is held. */
static tide_status event_table_grow(tide_host_device *device)
{
    if (device->event_count < device->event_capacity)
        return TIDE_OK;
    uint32_t capacity = device->event_capacity > 0 ? device->event_capacity * 2 : EVENTS_AT_FIRST;
    tide_host_moment *events = realloc(device->events, capacity * sizeof *events);
    if (events == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %" PRIu32 " events", capacity);
    device->events = events;
    tide_status status =
        device->hazard != NULL ? tide_hazard_events_reserve(device->hazard, capacity) : TIDE_OK;
    if (status == TIDE_OK)
        device->event_capacity = capacity;
    return status;
}

tide_status tide_host_event_create(tide_device *device, tide_event *event)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_status status = tide_fault_count(&host->fault, TIDE_FAULT_MEMORY, "making an event");
    if (status != TIDE_OK)
        return status;
    pthread_mutex_lock(&host->memory_lock);
    tide_host_streams_lock(&host->streams);
    status = event_table_grow(host);
    if (status == TIDE_OK) {
        host->events[host->event_count] = (tide_host_moment){TIDE_STREAM_COMPUTE, 0};
        *event = ++host->event_count;
        tide_ledger_commit(&host->ledgers[TIDE_TIER_DEVICE], 0);
    }
    tide_host_streams_unlock(&host->streams);
    pthread_mutex_unlock(&host->memory_lock);
    return status;
}

void tide_host_setup_undo(tide_host_device *device)
{
    free(device->events);
    for (uint32_t i = 0; i < device->buffer_count; i++)
        tide_host_arena_free(device->arena, device->buffers[i].address, device->buffers[i].bytes);
    free(device->buffers);
    for (uint32_t i = 0; i < device->mappings.range_count; i++)
        tide_host_extent_destroy(device->mappings.ranges[i].base,
                                 device->mappings.ranges[i].chunk_count * device->options.chunk_bytes);
    tide_mappings_destroy(&device->mappings);
    tide_host_slots_destroy(&device->host_slots);
    tide_host_memory_destroy(&device->memory);
}
