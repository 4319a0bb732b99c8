#include "offload/account.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

enum { EVENTS_AT_FIRST = 64 };

void tide_account_init(tide_account *account, const tide_device_ops *ops, const tide_account_makers *makers,
                       const tide_device_options *options, pthread_mutex_t *commands_lock)
{
    account->base.ops = ops;
    account->makers = makers;
    account->commands_lock = commands_lock;
    account->ledgers[TIDE_TIER_DEVICE].budget_bytes = options->device_memory_bytes;
    account->ledgers[TIDE_TIER_HOST].budget_bytes = options->host_memory_bytes;
    tide_fault_arm(&account->fault, options->fault_mask, options->fault_countdown);
    tide_mappings_init(&account->mappings, options->chunk_bytes);
    (void)pthread_mutex_init(&account->lock, NULL);
}

void tide_account_destroy(tide_account *account)
{
    free(account->buffers);
    free(account->events);
    tide_mappings_destroy(&account->mappings);
    pthread_mutex_destroy(&account->lock);
}

bool tide_account_is_valid(const tide_account *account)
{
    const uint64_t slots_bytes = account->mappings.slot_count * account->mappings.chunk_bytes;
    const tide_memory_usage *device = &account->ledgers[TIDE_TIER_DEVICE];
    return tide_ledger_is_valid(device) && tide_ledger_is_valid(&account->ledgers[TIDE_TIER_HOST]) &&
           device->used_bytes == slots_bytes + account->region.bytes &&
           (account->slots_made[TIDE_TIER_DEVICE] || account->mappings.slot_count == 0) &&
           (account->region.address != NULL) == (account->region.bytes != 0) &&
           account->maps - account->unmaps == account->mappings.mapped_count;
}

static tide_account *lock(tide_device *device)
{
    tide_account *account = tide_account_of(device);
    pthread_mutex_lock(&account->lock);
    return account;
}

static tide_status unlock(tide_account *account, tide_status status)
{
    assert(tide_account_is_valid(account));
    pthread_mutex_unlock(&account->lock);
    return status;
}

static void commands_lock(tide_account *account)
{
    if (account->commands_lock != NULL)
        pthread_mutex_lock(account->commands_lock);
}

static void commands_unlock(tide_account *account)
{
    if (account->commands_lock != NULL)
        pthread_mutex_unlock(account->commands_lock);
}

void tide_account_count(tide_account *account, uint64_t *counter)
{
    commands_lock(account);
    (*counter)++;
    commands_unlock(account);
}

/* --- slots --- */

static tide_status slots_make(tide_account *account, tide_tier tier, uint32_t count)
{
    tide_mappings *mappings = tier == TIDE_TIER_DEVICE ? &account->mappings : NULL;
    tide_status status = mappings != NULL ? tide_mappings_slots_add(mappings, count) : TIDE_OK;
    if (status != TIDE_OK)
        return status;
    status = account->makers->slots(&account->base, tier, count);
    if (status != TIDE_OK && mappings != NULL)
        tide_mappings_slots_remove(mappings);
    return status;
}

static tide_status slots_create(tide_account *account, tide_tier tier, uint32_t count)
{
    const uint64_t bytes = count * account->mappings.chunk_bytes;
    if (account->slots_made[tier])
        return tide_fail(TIDE_ERROR_STATE, "the %s slots exist already", tide_tier_name(tier));
    tide_status status = tide_ledger_check(&account->ledgers[tier], tier, "slots", bytes);
    if (status == TIDE_OK)
        status = tide_fault_count(&account->fault, TIDE_FAULT_MEMORY, "making slots");
    if (status == TIDE_OK)
        status = slots_make(account, tier, count);
    if (status != TIDE_OK)
        return status;
    account->slots_made[tier] = true;
    tide_ledger_commit(&account->ledgers[tier], bytes);
    return TIDE_OK;
}

tide_status tide_account_slots_create(tide_device *device, tide_tier tier, uint32_t count)
{
    if ((unsigned)tier >= TIDE_TIER_COUNT)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tier %u does not exist", (unsigned)tier);
    tide_account *account = lock(device);
    return unlock(account, slots_create(account, tier, count));
}

/* --- ranges --- */

static tide_status reserve(tide_account *account, uint64_t bytes, void **address)
{
    void *base;
    tide_status status = tide_mappings_range_check(&account->mappings, bytes);
    if (status == TIDE_OK)
        status = tide_fault_count(&account->fault, TIDE_FAULT_MEMORY, "reserving a range");
    if (status == TIDE_OK)
        status = account->makers->range(&account->base, bytes, &base);
    if (status != TIDE_OK)
        return status;
    status = tide_mappings_range_add(&account->mappings, base, bytes);
    if (status != TIDE_OK) {
        account->makers->range_undo(&account->base, base, bytes);
        return status;
    }
    tide_ledger_commit(&account->ledgers[TIDE_TIER_DEVICE], 0);
    *address = base;
    return TIDE_OK;
}

tide_status tide_account_reserve(tide_device *device, uint64_t bytes, void **address)
{
    tide_account *account = lock(device);
    return unlock(account, reserve(account, bytes, address));
}

/* --- the region and its parts --- */

static tide_status region_create(tide_account *account, uint64_t bytes, void **address)
{
    void *made;
    if (account->region.address != NULL)
        return tide_fail(TIDE_ERROR_STATE, "the region exists already");
    if (bytes == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "a region of no bytes");
    tide_memory_usage *ledger = &account->ledgers[TIDE_TIER_DEVICE];
    tide_status status = tide_ledger_check(ledger, TIDE_TIER_DEVICE, "region", bytes);
    if (status == TIDE_OK)
        status = tide_fault_count(&account->fault, TIDE_FAULT_MEMORY, "making the region");
    if (status == TIDE_OK)
        status = account->makers->region(&account->base, bytes, &made);
    if (status != TIDE_OK)
        return status;
    account->region = (tide_extent){made, bytes};
    tide_ledger_commit(ledger, bytes);
    *address = made;
    return TIDE_OK;
}

tide_status tide_account_region_create(tide_device *device, uint64_t bytes, void **address)
{
    tide_account *account = lock(device);
    return unlock(account, region_create(account, bytes, address));
}

tide_status tide_account_region_object(tide_device *device, const char *name, uint64_t offset_bytes,
                                       uint64_t bytes, uint32_t *object)
{
    if (name == NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "a region part without a name");
    tide_account *account = lock(device);
    tide_status status = tide_region_part_check(name, offset_bytes, bytes, account->region.bytes);
    if (status == TIDE_OK)
        status = tide_fault_count(&account->fault, TIDE_FAULT_MEMORY, "naming a region part");
    if (status == TIDE_OK && account->makers->part != NULL)
        status = account->makers->part(device, name);
    if (status == TIDE_OK)
        *object = account->region_part_count++;
    return unlock(account, status);
}

/* --- buffers --- */

/* Make space for one more buffer in the table, so that entering it can't fail later. */
static tide_status buffer_table_grow(tide_account *account)
{
    commands_lock(account);
    tide_extent *buffers = realloc(account->buffers, (account->buffer_count + 1) * sizeof *buffers);
    if (buffers != NULL)
        account->buffers = buffers;
    commands_unlock(account);
    if (buffers == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the table of %" PRIu32 " buffers",
                         account->buffer_count + 1);
    return TIDE_OK;
}

static uint32_t buffer_enter(tide_account *account, void *address, uint64_t bytes)
{
    commands_lock(account);
    const uint32_t object = account->buffer_count++;
    account->buffers[object] = (tide_extent){address, bytes};
    commands_unlock(account);
    return object;
}

static tide_status buffer_create(tide_account *account, const char *name, uint64_t bytes, void **address,
                                 uint32_t *object)
{
    void *made;
    tide_memory_usage *ledger = &account->ledgers[TIDE_TIER_HOST];
    tide_status status = tide_ledger_check(ledger, TIDE_TIER_HOST, name, tide_page_up(bytes));
    if (status == TIDE_OK)
        status = tide_fault_count(&account->fault, TIDE_FAULT_MEMORY, "making a buffer");
    if (status == TIDE_OK)
        status = buffer_table_grow(account);
    if (status == TIDE_OK)
        status = account->makers->buffer(&account->base, name, bytes, &made);
    if (status != TIDE_OK)
        return status;
    *object = buffer_enter(account, made, bytes);
    *address = made;
    tide_ledger_commit(ledger, tide_page_up(bytes));
    return TIDE_OK;
}

tide_status tide_account_buffer_create(tide_device *device, const char *name, uint64_t bytes, void **address,
                                       uint32_t *object)
{
    const tide_status status = tide_buffer_check(name, bytes);
    if (status != TIDE_OK)
        return status;
    tide_account *account = lock(device);
    return unlock(account, buffer_create(account, name, bytes, address, object));
}

static bool is_in_a_buffer(tide_account *account, const void *address, uint64_t bytes)
{
    bool found = false;
    commands_lock(account);
    for (uint32_t i = 0; i < account->buffer_count && !found; i++)
        found = tide_is_inside(address, bytes, account->buffers[i].address, account->buffers[i].bytes);
    commands_unlock(account);
    return found;
}

tide_status tide_account_copy_check(tide_account *account, const tide_work *work, const void *to,
                                    const void *from, uint64_t bytes, bool to_device)
{
    const void *device_side = to_device ? to : from, *host_side = to_device ? from : to;
    return tide_copy_bytes_check(
        work, bytes, device_side,
        tide_is_inside(device_side, bytes, account->region.address, account->region.bytes), host_side,
        is_in_a_buffer(account, host_side, bytes));
}

/* --- events --- */

/* Make space for one more event. commands_lock is held. */
static tide_status event_table_grow(tide_account *account)
{
    if (account->event_count < account->event_capacity)
        return TIDE_OK;
    const uint32_t capacity = account->event_capacity > 0 ? account->event_capacity * 2 : EVENTS_AT_FIRST;
    tide_stream_point *events = realloc(account->events, capacity * sizeof *events);
    if (events == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %" PRIu32 " events", capacity);
    account->events = events;
    if (account->makers->events != NULL) {
        const tide_status status = account->makers->events(&account->base, capacity);
        if (status != TIDE_OK)
            return status;
    }
    account->event_capacity = capacity;
    return TIDE_OK;
}

tide_status tide_account_event_create(tide_device *device, tide_event *event)
{
    tide_status status =
        tide_fault_count(&tide_account_of(device)->fault, TIDE_FAULT_MEMORY, "making an event");
    if (status != TIDE_OK)
        return status;
    tide_account *account = lock(device);
    commands_lock(account);
    status = event_table_grow(account);
    if (status == TIDE_OK) {
        account->events[account->event_count] = (tide_stream_point){TIDE_STREAM_COMPUTE, 0};
        *event = ++account->event_count;
        tide_ledger_commit(&account->ledgers[TIDE_TIER_DEVICE], 0);
    }
    commands_unlock(account);
    return unlock(account, status);
}

/* --- residency --- */

static tide_status map(tide_account *account, uint32_t slot, void *place)
{
    tide_status status = tide_mappings_put_check(&account->mappings, slot, place);
    if (status == TIDE_OK)
        status = tide_fault_count(&account->fault, TIDE_FAULT_MAP, "mapping a slot");
    if (status == TIDE_OK)
        status = account->makers->map(&account->base, slot, place);
    if (status != TIDE_OK)
        return status;
    tide_mappings_put(&account->mappings, slot, place);
    tide_account_count(account, &account->maps);
    return TIDE_OK;
}

tide_status tide_account_map(tide_device *device, uint32_t slot, void *place)
{
    tide_account *account = lock(device);
    const tide_status status = map(account, slot, place);
    if (status == TIDE_ERROR_INTERNAL)
        account->makers->place_lost(device, status);
    return unlock(account, status);
}

static tide_status unmap(tide_account *account, uint32_t slot, void *place)
{
    tide_status status = tide_mappings_take_check(&account->mappings, slot, place);
    if (status == TIDE_OK)
        status = tide_fault_count(&account->fault, TIDE_FAULT_MAP, "unmapping a slot");
    if (status == TIDE_OK)
        status = account->makers->unmap(&account->base, slot, place);
    if (status != TIDE_OK)
        return status;
    tide_mappings_take(&account->mappings, slot, place);
    tide_account_count(account, &account->unmaps);
    return TIDE_OK;
}

tide_status tide_account_unmap(tide_device *device, uint32_t slot, void *place)
{
    tide_account *account = lock(device);
    const tide_status status = unmap(account, slot, place);
    if (status == TIDE_ERROR_INTERNAL)
        account->makers->place_lost(device, status);
    return unlock(account, status);
}

/* --- counters and faults --- */

void tide_account_usage(tide_device *device, tide_tier tier, tide_memory_usage *usage)
{
    assert((unsigned)tier < TIDE_TIER_COUNT);
    tide_account *account = lock(device);
    *usage = account->ledgers[tier];
    (void)unlock(account, TIDE_OK);
}

void tide_account_set_fault(tide_device *device, uint32_t mask, uint64_t countdown)
{
    tide_fault_arm(&tide_account_of(device)->fault, mask, countdown);
}
