/* Maps slots at chunks' places and unmaps them, for the account (account.h), and guards places. The memory
 * lock is held during the system calls: other code that takes it, such as a guard command, must not touch the
 * place meanwhile. This delays few, since only the engine maps.
 */
#include "offload/host/host_device.h"

#include <inttypes.h>

static tide_status check_unmap(tide_host_device *device, uint32_t slot)
{
    tide_host_streams_lock(&device->streams);
    tide_status status = tide_host_check_unmap(device, slot);
    tide_host_streams_unlock(&device->streams);
    return status;
}

/* Makes the device fail for good: a place could not be restored, so any mmap of the process may take its
 * addresses. */
void tide_host_place_lost(tide_device *device, tide_status status)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_host_streams_lock(&host->streams);
    host->place_lost = true;
    tide_host_streams_fail(&host->streams, status, tide_message());
    tide_host_streams_unlock(&host->streams);
}

tide_status tide_host_place_map(tide_device *device, uint32_t slot, void *place)
{
    return tide_host_memory_map(&tide_host_device_of(device)->memory, slot, place);
}

tide_status tide_host_place_unmap(tide_device *device, uint32_t slot, void *place)
{
    tide_host_device *host = tide_host_device_of(device);
    const tide_status status = check_unmap(host, slot);
    return status == TIDE_OK ? tide_host_memory_unmap(&host->memory, slot, place) : status;
}

/* The mappings hold only one place per slot: take the slot out first, and at the end enter it where it is
 * then. */
static tide_status remap_locked(tide_host_device *device, uint32_t slot, void *from, void *to)
{
    tide_account *account = &device->account;
    tide_mappings *mappings = &account->mappings;
    tide_status status = tide_mappings_take_check(mappings, slot, from);
    if (status != TIDE_OK)
        return status;
    tide_mappings_take(mappings, slot, from);
    status = tide_mappings_put_check(mappings, slot, to);
    if (status == TIDE_OK && to == from)
        status = tide_fail(TIDE_ERROR_ARGUMENT, "device slot %" PRIu32 " is mapped at %p already", slot, to);
    if (status == TIDE_OK)
        status = tide_fault_count(&account->fault, TIDE_FAULT_MAP, "unmapping a slot");
    if (status == TIDE_OK)
        status = tide_fault_count(&account->fault, TIDE_FAULT_MAP, "mapping a slot elsewhere");
    if (status == TIDE_OK)
        status = check_unmap(device, slot);
    if (status == TIDE_OK)
        status = tide_host_memory_remap(&device->memory, slot, from, to);
    tide_mappings_put(mappings, slot, status == TIDE_OK ? to : from);
    if (status != TIDE_OK)
        return status;
    tide_account_count(account, &account->unmaps);
    tide_account_count(account, &account->maps);
    return TIDE_OK;
}

tide_status tide_host_remap(tide_device *device, uint32_t slot, void *from, void *to)
{
    tide_host_device *host = tide_host_device_of(device);
    pthread_mutex_lock(&host->account.lock);
    tide_status status = remap_locked(host, slot, from, to);
    if (status == TIDE_ERROR_INTERNAL)
        tide_host_place_lost(device, status);
    pthread_mutex_unlock(&host->account.lock);
    return status;
}

/* --- guard --- */

typedef struct guard_arguments {
    tide_host_device *device;
    void *place;
    uint64_t serial; /* of the mapping for which the guard was enqueued */
    uint32_t slot;
    bool accessible;
} guard_arguments;

/* Runs on the stream's thread. Does nothing if the mapping has been replaced since, as another chunk may be
 * mapped there. */
static tide_status guard_run(void *stream, const void *arguments)
{
    (void)stream;
    const guard_arguments *it = arguments;
    tide_host_device *device = it->device;
    tide_status status = TIDE_OK;
    pthread_mutex_lock(&device->account.lock);
    const tide_mappings_slot *slot = &device->account.mappings.slots[it->slot];
    if (slot->place == it->place && slot->serial == it->serial)
        status = tide_host_memory_protect(&device->memory, it->place, it->accessible);
    pthread_mutex_unlock(&device->account.lock);
    return status;
}

tide_status tide_host_guard(tide_device *device, tide_stream stream, void *place, bool accessible)
{
    tide_host_device *host = tide_host_device_of(device);
    tide_status status = tide_stream_check(stream);
    if (status != TIDE_OK || !host->options.checks.guard)
        return status;
    guard_arguments arguments = {.device = host, .place = place, .accessible = accessible};
    pthread_mutex_lock(&host->account.lock);
    status = tide_mappings_find(&host->account.mappings, place, &arguments.slot);
    if (status == TIDE_OK)
        arguments.serial = host->account.mappings.slots[arguments.slot].serial;
    pthread_mutex_unlock(&host->account.lock);
    if (status != TIDE_OK)
        return status;
    return tide_host_enqueue_internal(host, stream, "guard", UINT32_MAX, guard_run, &arguments,
                                      sizeof arguments);
}
