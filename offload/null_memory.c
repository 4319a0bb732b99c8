/* The null device's memory: addresses made up, budgets and misuse as the host device has them. See null_device.c. */
#include "offload/null_device.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

static uint64_t address_take(tide_null_device *null, uint64_t bytes, uint64_t alignment_bytes)
{
    uint64_t address = (null->address_next + alignment_bytes - 1) & ~(alignment_bytes - 1);
    null->address_next = address + bytes;
    return address;
}

/* --- memory --- */

static tide_status slots_create_locked(tide_null_device *null, tide_tier tier, uint32_t count)
{
    uint64_t bytes = count * null->options.chunk_bytes;
    if (null->slots_made[tier])
        return tide_fail(TIDE_ERROR_STATE, "the %s slots exist already", tide_tier_name(tier));
    tide_status status = tide_ledger_check(&null->ledgers[tier], tier, "slots", bytes);
    if (status == TIDE_OK)
        status = tide_fault_count(&null->fault, TIDE_FAULT_MEMORY, "making slots");
    if (status == TIDE_OK && tier == TIDE_TIER_DEVICE)
        status = tide_mappings_slots_add(&null->mappings, count);
    if (status != TIDE_OK)
        return status;
    null->slots_made[tier] = true;
    null->counts.slots[tier] = count;
    null->slots_base[tier] = address_take(null, bytes, null->options.chunk_bytes);
    tide_ledger_commit(&null->ledgers[tier], bytes);
    return TIDE_OK;
}

tide_status tide_null_slots_create(tide_device *device, tide_tier tier, uint32_t count)
{
    if ((unsigned)tier >= TIDE_TIER_COUNT)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tier %u does not exist", (unsigned)tier);
    tide_null_device *null = null_lock(device);
    return null_unlock(null, slots_create_locked(null, tier, count));
}

static tide_status reserve_locked(tide_null_device *null, uint64_t bytes, void **address)
{
    tide_status status = tide_mappings_range_check(&null->mappings, bytes);
    if (status == TIDE_OK)
        status = tide_fault_count(&null->fault, TIDE_FAULT_MEMORY, "reserving a range");
    if (status != TIDE_OK)
        return status;
    void *base = made_up(address_take(null, bytes, null->options.chunk_bytes));
    status = tide_mappings_range_add(&null->mappings, base, bytes);
    if (status != TIDE_OK)
        return status;
    tide_ledger_commit(&null->ledgers[TIDE_TIER_DEVICE], 0);
    *address = base;
    return TIDE_OK;
}

tide_status tide_null_reserve(tide_device *device, uint64_t bytes, void **address)
{
    tide_null_device *null = null_lock(device);
    return null_unlock(null, reserve_locked(null, bytes, address));
}

static tide_status region_create_locked(tide_null_device *null, uint64_t bytes, void **address)
{
    if (null->region.base != 0)
        return tide_fail(TIDE_ERROR_STATE, "the region exists already");
    if (bytes == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "a region of no bytes");
    tide_memory_usage *ledger = &null->ledgers[TIDE_TIER_DEVICE];
    tide_status status = tide_ledger_check(ledger, TIDE_TIER_DEVICE, "region", bytes);
    if (status == TIDE_OK)
        status = tide_fault_count(&null->fault, TIDE_FAULT_MEMORY, "making the region");
    if (status != TIDE_OK)
        return status;
    null->region = (null_extent){address_take(null, bytes, TIDE_PAGE_BYTES), bytes};
    tide_ledger_commit(ledger, bytes);
    *address = made_up(null->region.base);
    return TIDE_OK;
}

tide_status tide_null_region_create(tide_device *device, uint64_t bytes, void **address)
{
    tide_null_device *null = null_lock(device);
    return null_unlock(null, region_create_locked(null, bytes, address));
}

tide_status tide_null_region_object(tide_device *device, const char *name, uint64_t offset_bytes,
                                    uint64_t bytes, uint32_t *object)
{
    if (name == NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "a region part without a name");
    tide_null_device *null = null_lock(device);
    tide_status status = tide_region_part_check(name, offset_bytes, bytes, null->region.bytes);
    if (status == TIDE_OK)
        status = tide_fault_count(&null->fault, TIDE_FAULT_MEMORY, "naming a region part");
    if (status == TIDE_OK)
        *object = null->region_object_count++;
    return null_unlock(null, status);
}

static tide_status buffer_create_locked(tide_null_device *null, const char *name, uint64_t bytes,
                                        void **address, uint32_t *object)
{
    tide_memory_usage *ledger = &null->ledgers[TIDE_TIER_HOST];
    tide_status status = tide_ledger_check(ledger, TIDE_TIER_HOST, name, tide_page_up(bytes));
    if (status == TIDE_OK)
        status = tide_fault_count(&null->fault, TIDE_FAULT_MEMORY, "making a buffer");
    if (status != TIDE_OK)
        return status;
    null_extent *buffers = realloc(null->buffers, (null->buffer_count + 1) * sizeof *buffers);
    if (buffers == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the table of %" PRIu32 " buffers",
                         null->buffer_count + 1);
    null->buffers = buffers;
    buffers[null->buffer_count] =
        (null_extent){address_take(null, tide_page_up(bytes), TIDE_PAGE_BYTES), bytes};
    *address = made_up(buffers[null->buffer_count].base);
    *object = null->buffer_count++;
    tide_ledger_commit(ledger, tide_page_up(bytes));
    return TIDE_OK;
}

tide_status tide_null_buffer_create(tide_device *device, const char *name, uint64_t bytes, void **address,
                                    uint32_t *object)
{
    tide_status status = tide_buffer_check(name, bytes);
    if (status != TIDE_OK)
        return status;
    tide_null_device *null = null_lock(device);
    return null_unlock(null, buffer_create_locked(null, name, bytes, address, object));
}

tide_status tide_null_event_create(tide_device *device, tide_event *event)
{
    tide_null_device *null = null_lock(device);
    tide_status status = tide_fault_count(&null->fault, TIDE_FAULT_MEMORY, "making an event");
    if (status == TIDE_OK)
        status = tide_null_clock_add(&null->clock, event);
    if (status == TIDE_OK)
        tide_ledger_commit(&null->ledgers[TIDE_TIER_DEVICE], 0);
    return null_unlock(null, status);
}

void *tide_null_slot_address(tide_device *device, tide_tier tier, uint32_t slot)
{
    tide_null_device *null = null_of(device);
    assert((unsigned)tier < TIDE_TIER_COUNT && slot < null->counts.slots[tier]);
    return made_up(null->slots_base[tier] + slot * null->options.chunk_bytes);
}

/* --- residency --- */

tide_status tide_null_map(tide_device *device, uint32_t slot, void *place)
{
    tide_null_device *null = null_lock(device);
    tide_status status = tide_mappings_put_check(&null->mappings, slot, place);
    if (status == TIDE_OK)
        status = tide_fault_count(&null->fault, TIDE_FAULT_MAP, "mapping a slot");
    if (status == TIDE_OK) {
        tide_mappings_put(&null->mappings, slot, place);
        null->statistics.maps++;
        tide_null_clock_advance(&null->clock,
                                tide_null_clock_after(null->clock.now_ns, null->options.map_ns));
    }
    return null_unlock(null, status);
}

static uint64_t unmap_ns(const tide_null_device *null)
{
    return null->options.unmap_ns != 0 ? null->options.unmap_ns : null->options.map_ns;
}

tide_status tide_null_unmap(tide_device *device, uint32_t slot, void *place)
{
    tide_null_device *null = null_lock(device);
    tide_status status = tide_mappings_take_check(&null->mappings, slot, place);
    if (status == TIDE_OK)
        status = tide_fault_count(&null->fault, TIDE_FAULT_MAP, "unmapping a slot");
    if (status == TIDE_OK) {
        tide_mappings_take(&null->mappings, slot, place);
        null->statistics.unmaps++;
        tide_null_clock_advance(&null->clock, tide_null_clock_after(null->clock.now_ns, unmap_ns(null)));
    }
    return null_unlock(null, status);
}

tide_status tide_null_guard(tide_device *device, tide_stream stream, void *place, bool accessible)
{
    (void)device;
    (void)place;
    (void)accessible;
    return tide_stream_check(stream); /* nothing is accessible anyway */
}
