/* The internals of the null device, for its files: null_memory.c makes up addresses and keeps accounts,
 * null_time.c runs commands and events on the virtual clock, null_device.c opens, closes and counts. */
#ifndef TIDE_OFFLOAD_NULL_DEVICE_H
#define TIDE_OFFLOAD_NULL_DEVICE_H

#include "offload/account.h"
#include "offload/null/null_flow.h"

typedef struct tide_null_device {
    tide_account account; /* its lock guards the fields below */
    tide_device_options options;
    uint64_t slots_base[TIDE_TIER_COUNT];
    tide_slot_counts counts;
    uint64_t address_next;

    tide_null_flow flow;
    tide_device_statistics statistics;
} tide_null_device;

static inline tide_null_device *null_of(tide_device *device)
{
    return (tide_null_device *)device;
}

static inline tide_null_device *null_lock(tide_device *device)
{
    tide_null_device *null = null_of(device);
    pthread_mutex_lock(&null->account.lock);
    return null;
}

static inline tide_status null_unlock(tide_null_device *null, tide_status status)
{
    pthread_mutex_unlock(&null->account.lock);
    return status;
}

static inline void *made_up(uint64_t address)
{
    return (void *)(uintptr_t)address; /* nothing accesses it */
}

/* For tide_account_makers and tide_device_ops, in null_memory.c: */
tide_status tide_null_slots_make(tide_device *device, tide_tier tier, uint32_t count);
tide_status tide_null_range_make(tide_device *device, uint64_t bytes, void **base);
void tide_null_range_undo(tide_device *device, void *base, uint64_t bytes);
tide_status tide_null_region_make(tide_device *device, uint64_t bytes, void **address);
tide_status tide_null_buffer_make(tide_device *device, const char *name, uint64_t bytes, void **address);
tide_status tide_null_place_map(tide_device *device, uint32_t slot, void *place);
tide_status tide_null_place_unmap(tide_device *device, uint32_t slot, void *place);
tide_status tide_null_event_create(tide_device *device, tide_event *event);
void *tide_null_slot_address(tide_device *device, tide_tier tier, uint32_t slot);
tide_status tide_null_guard(tide_device *device, tide_stream stream, void *place, bool accessible);

/* For tide_device_ops, in null_time.c: */
tide_status tide_null_launch(tide_device *device, tide_stream stream, const tide_work *work, tide_kernel fn,
                             const void *arguments, size_t argument_bytes);
tide_status tide_null_copy_slot(tide_device *device, tide_stream stream, const tide_work *work,
                                tide_tier to_tier, uint32_t to_slot, uint32_t from_slot, uint64_t bytes);
tide_status tide_null_copy_bytes(tide_device *device, tide_stream stream, const tide_work *work, void *to,
                                 const void *from, uint64_t bytes, bool to_device);
tide_status tide_null_event_record(tide_device *device, tide_event event, tide_stream stream);
tide_status tide_null_stream_wait(tide_device *device, tide_stream stream, tide_event event,
                                  tide_wait_site site, uint64_t id);
tide_status tide_null_event_query(tide_device *device, tide_event event, tide_wait_site site, bool *done);
tide_status tide_null_event_wait(tide_device *device, tide_event event, tide_wait_site site);
uint64_t tide_null_doorbell(tide_device *device);
tide_status tide_null_park(tide_device *device, uint64_t ticket, bool events);
void tide_null_ring(tide_device *device);
tide_status tide_null_host_touch(tide_device *device, const tide_work *work);
void tide_null_synchronize(tide_device *device);
tide_status tide_null_never_failed(tide_device *device);
uint64_t tide_null_now_ns(tide_device *device);

#endif
