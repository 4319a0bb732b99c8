/* The account of a device's memory: its slots, mappings, buffers and events, the same for every kind of
 * device.
 *
 * Every call checks the values and the budget, counts a fault, makes, and then enters the result into the
 * tables; a failure leaves no trace. Each device brings its own functions that make (tide_account_makers);
 * all the rest is here, under one lock. A device's struct begins with its account, so most of these functions
 * stand in its table of operations as they are.
 *
 * Owns budgets, mappings, slots made, the region's extent, numbers of its parts, the tables of buffers and events. Calls device.c,
 * mappings.c and the makers.
 */
#ifndef TIDE_OFFLOAD_ACCOUNT_H
#define TIDE_OFFLOAD_ACCOUNT_H

#include "offload/device_common.h"
#include "offload/mappings.h"

#include <pthread.h>

typedef struct tide_extent {
    char *address; /* NULL: not made */
    uint64_t bytes;
} tide_extent;

/* A device's own part of each call, under the account's lock. A failure has undone what it did. */
typedef struct tide_account_makers {
    tide_status (*slots)(tide_device *device, tide_tier tier, uint32_t count);
    tide_status (*range)(tide_device *device, uint64_t bytes, void **base);
    void (*range_undo)(tide_device *device, void *base, uint64_t bytes);
    tide_status (*region)(tide_device *device, uint64_t bytes, void **address);
    tide_status (*part)(tide_device *device,
                        const char *name); /* NULL: parts of the region are numbered only */
    tide_status (*buffer)(tide_device *device, const char *name, uint64_t bytes, void **address);
    /* Be ready for `capacity` events, under commands_lock. NULL: it needs nothing. */
    tide_status (*events)(tide_device *device, uint32_t capacity);
    tide_status (*map)(tide_device *device, uint32_t slot, void *place);
    tide_status (*unmap)(tide_device *device, uint32_t slot, void *place);
    /* map or unmap gave `status`, INTERNAL: the content of a place is unknown, and the device can't be used
     * any more. */
    void (*place_lost)(tide_device *device, tide_status status);
} tide_account_makers;

typedef struct tide_account {
    tide_device base;
    const tide_account_makers *makers;
    tide_fault fault;

    pthread_mutex_t lock; /* guards what follows */
    tide_memory_usage ledgers[TIDE_TIER_COUNT];
    tide_mappings mappings;
    bool slots_made[TIDE_TIER_COUNT];
    tide_extent region; /* in bytes as asked for */
    uint32_t region_part_count;

    /* guards the rest, which commands look at; taken after `lock`. NULL: that does */
    pthread_mutex_t *commands_lock;
    tide_extent *buffers; /* [object] */
    uint32_t buffer_count;
    /* [event - 1], the latest record of each; unless the device keeps its own (null) */
    tide_stream_point *events;
    uint32_t event_count;
    uint32_t event_capacity;
    uint64_t maps, unmaps;
} tide_account;

static inline tide_account *tide_account_of(tide_device *device)
{
    return (tide_account *)device;
}

/* Can't fail. Destroyed when all that was made has been given back; the tables of buffers and events go with it. */
void tide_account_init(tide_account *account, const tide_device_ops *ops, const tide_account_makers *makers,
                       const tide_device_options *options, pthread_mutex_t *commands_lock);
void tide_account_destroy(tide_account *account);
/* No tier is over its budget, and all that the tables name exists. The lock is held. */
bool tide_account_is_valid(const tide_account *account);

/* tide_device_ops */
tide_status tide_account_slots_create(tide_device *device, tide_tier tier, uint32_t count);
tide_status tide_account_reserve(tide_device *device, uint64_t bytes, void **address);
tide_status tide_account_region_create(tide_device *device, uint64_t bytes, void **address);
tide_status tide_account_region_object(tide_device *device, const char *name, uint64_t offset_bytes,
                                       uint64_t bytes, uint32_t *object);
tide_status tide_account_buffer_create(tide_device *device, const char *name, uint64_t bytes, void **address,
                                       uint32_t *object);
tide_status tide_account_event_create(tide_device *device, tide_event *event);
tide_status tide_account_map(tide_device *device, uint32_t slot, void *place);
tide_status tide_account_unmap(tide_device *device, uint32_t slot, void *place);
void tide_account_usage(tide_device *device, tide_tier tier, tide_memory_usage *usage);
void tide_account_set_fault(tide_device *device, uint32_t mask, uint64_t countdown);

/* One more of `maps` or `unmaps`. */
void tide_account_count(tide_account *account, uint64_t *counter);

/* ARGUMENT unless the two sides of a copy lie in the region and in one buffer. With a commands_lock, takes it. */
tide_status tide_account_copy_check(tide_account *account, const tide_work *work, const void *to,
                                    const void *from, uint64_t bytes, bool to_device);

#endif
