/* The account of a device's memory: its budgets, slots, mappings, region, buffers and events, in the same
 * form for every kind of device.
 *
 * Every call checks its arguments and the budget, counts for fault injection, calls the device's function
 * that makes the memory, and then enters the result into the tables; a call that fails changes nothing. A
 * device only supplies the functions that make memory (tide_account_makers). A device's struct begins with
 * its account, so most of these functions are directly in the device's table of operations.
 *
 * Owns budgets, mappings, which tiers have slots, the region's extent and the number of its parts, and the
 * tables of buffers and events. Calls device.c, mappings.c and the makers.
 */
#ifndef TIDE_OFFLOAD_ACCOUNT_H
#define TIDE_OFFLOAD_ACCOUNT_H

#include "offload/device_common.h"
#include "offload/mappings.h"

#include <pthread.h>

typedef struct tide_extent {
    char *address; /* NULL: not made yet */
    uint64_t bytes;
} tide_extent;

/* The functions with which a device makes its memory. They are called with the account's lock. A function
 * that fails must have undone its own changes. */
typedef struct tide_account_makers {
    tide_status (*slots)(tide_device *device, tide_tier tier, uint32_t count);
    tide_status (*range)(tide_device *device, uint64_t bytes, void **base);
    void (*range_undo)(tide_device *device, void *base, uint64_t bytes);
    tide_status (*region)(tide_device *device, uint64_t bytes, void **address);
    /* prepare for one more named part of the region; NULL: the device has nothing to prepare */
    tide_status (*part)(tide_device *device, const char *name);
    tide_status (*buffer)(tide_device *device, const char *name, uint64_t bytes, void **address);
    /* Prepare for `capacity` events; commands_lock is held. NULL: the device has nothing to prepare. */
    tide_status (*events)(tide_device *device, uint32_t capacity);
    tide_status (*map)(tide_device *device, uint32_t slot, void *place);
    tide_status (*unmap)(tide_device *device, uint32_t slot, void *place);
    /* Called after map or unmap has returned INTERNAL (`status`): it is unknown what is mapped at a place, so
     * the device must fail for good. */
    void (*place_lost)(tide_device *device, tide_status status);
} tide_account_makers;

typedef struct tide_account {
    tide_device base;
    const tide_account_makers *makers;
    tide_fault fault;

    pthread_mutex_t lock; /* guards the fields below */
    tide_memory_usage ledgers[TIDE_TIER_COUNT];
    tide_mappings mappings;
    bool slots_made[TIDE_TIER_COUNT];
    tide_extent region; /* `bytes` as the caller asked, not rounded to pages */
    uint32_t region_part_count;

    /* Guards the fields below, which commands read; taken after `lock`. If it is NULL, `lock` guards them. */
    pthread_mutex_t *commands_lock;
    tide_extent *buffers; /* indexed by the object number that buffer_create() returns */
    uint32_t buffer_count;
    /* [event - 1]: the latest record of each event; NULL if the device keeps a table of its own (the null
     * device) */
    tide_stream_point *events;
    uint32_t event_count;
    uint32_t event_capacity;
    uint64_t maps, unmaps;
} tide_account;

static inline tide_account *tide_account_of(tide_device *device)
{
    return (tide_account *)device;
}

/* Set up an empty account; can't fail. Destroy it after the device has freed all memory; this frees the
 * account's tables. */
void tide_account_init(tide_account *account, const tide_device_ops *ops, const tide_account_makers *makers,
                       const tide_device_options *options, pthread_mutex_t *commands_lock);
void tide_account_destroy(tide_account *account);
/* Check that no tier is over its budget, and that the counts of slots, region and mappings agree. With the
 * lock. */
bool tide_account_is_valid(const tide_account *account);

/* The operations of tide_device_ops: */
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

/* Add one to `maps` or `unmaps`. */
void tide_account_count(tide_account *account, uint64_t *counter);

/* ARGUMENT unless one side of the copy lies in the region and the other in one buffer. Takes commands_lock if
 * there is one. */
tide_status tide_account_copy_check(tide_account *account, const tide_work *work, const void *to,
                                    const void *from, uint64_t bytes, bool to_device);

#endif
