/* Invents the addresses of the null device's memory, for its account (account.h). */
#include "offload/null/null_device.h"

#include "base/align.h"

#include <assert.h>

static uint64_t address_take(tide_null_device *null, uint64_t bytes, uint64_t alignment_bytes)
{
    uint64_t address = tide_round_up(null->address_next, alignment_bytes);
    null->address_next = address + bytes;
    return address;
}

/* --- memory --- */

tide_status tide_null_slots_make(tide_device *device, tide_tier tier, uint32_t count)
{
    tide_null_device *null = null_of(device);
    null->counts.slots[tier] = count;
    null->slots_base[tier] = address_take(null, count * null->options.chunk_bytes, null->options.chunk_bytes);
    return TIDE_OK;
}

tide_status tide_null_range_make(tide_device *device, uint64_t bytes, void **base)
{
    tide_null_device *null = null_of(device);
    *base = made_up(address_take(null, bytes, null->options.chunk_bytes));
    return TIDE_OK;
}

void tide_null_range_undo(tide_device *device, void *base, uint64_t bytes)
{
    (void)device, (void)base, (void)bytes; /* addresses never run out */
}

tide_status tide_null_region_make(tide_device *device, uint64_t bytes, void **address)
{
    *address = made_up(address_take(null_of(device), bytes, TIDE_PAGE_BYTES));
    return TIDE_OK;
}

tide_status tide_null_buffer_make(tide_device *device, const char *name, uint64_t bytes, void **address)
{
    (void)name;
    *address = made_up(address_take(null_of(device), tide_page_up(bytes), TIDE_PAGE_BYTES));
    return TIDE_OK;
}

tide_status tide_null_event_create(tide_device *device, tide_event *event)
{
    tide_null_device *null = null_lock(device);
    tide_status status = tide_fault_count(&null->account.fault, TIDE_FAULT_MEMORY, "making an event");
    if (status == TIDE_OK)
        status = tide_null_flow_event(&null->flow, event);
    if (status == TIDE_OK)
        tide_ledger_commit(&null->account.ledgers[TIDE_TIER_DEVICE], 0);
    return null_unlock(null, status);
}

void *tide_null_slot_address(tide_device *device, tide_tier tier, uint32_t slot)
{
    tide_null_device *null = null_of(device);
    assert((unsigned)tier < TIDE_TIER_COUNT && slot < null->counts.slots[tier]);
    return made_up(null->slots_base[tier] + slot * null->options.chunk_bytes);
}

/* --- residency --- */

static tide_status engine_busy(tide_null_device *null, uint64_t ns)
{
    tide_null_flow_advance(&null->flow, ns);
    return TIDE_OK;
}

tide_status tide_null_place_map(tide_device *device, uint32_t slot, void *place)
{
    tide_null_device *null = null_of(device);
    (void)slot, (void)place;
    return engine_busy(null, null->options.machine.map_ns);
}

tide_status tide_null_place_unmap(tide_device *device, uint32_t slot, void *place)
{
    tide_null_device *null = null_of(device);
    (void)slot, (void)place;
    return engine_busy(null, null->options.machine.unmap_ns != 0 ? null->options.machine.unmap_ns
                                                                 : null->options.machine.map_ns);
}

tide_status tide_null_guard(tide_device *device, tide_stream stream, void *place, bool accessible)
{
    (void)device;
    (void)place;
    (void)accessible;
    return tide_stream_check(stream); /* no memory is accessible anyway */
}
