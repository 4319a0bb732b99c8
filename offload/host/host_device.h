/* The internals of the host device: its structure, and the operations that its files implement for the table
 * in host_device.c. Only files of offload/ include this.
 *
 *   account.c        the account of memory and mappings, shared by all devices; calls
 *   host_setup.c       slots, ranges, region, buffers
 *   host_residency.c   map, unmap; remap and guard
 *   host_command.c   launches, copies, events, sleep
 *   host_device.c    open, close, failure, counters
 *
 * Locks, in this order: the account's (the memory lock), then the streams' lock. Each field names its lock.
 * Memory (addresses of slots, the region) is made only at start (device.h), so later it is read without a
 * lock.
 */
#ifndef TIDE_OFFLOAD_HOST_DEVICE_H
#define TIDE_OFFLOAD_HOST_DEVICE_H

#include "offload/account.h"
#include "offload/hazard.h"
#include "offload/host/host_slots.h"
#include "offload/host/host_stream.h"
#include "offload/host_arena.h"
#include "offload/host_link.h"
#include "offload/host_memory.h"

typedef struct tide_host_device {
    tide_account account; /* its lock is called the memory lock */
    tide_device_options options;
    uint32_t threads;
    tide_host_link link;

    tide_host_memory memory;    /* the DEVICE tier; [memory lock] for changes */
    tide_host_slots host_slots; /* [memory lock] for changes */
    tide_host_arena *arena;     /* [memory lock] */

    tide_host_streams streams; /* their lock also guards the next three fields */
    tide_hazard *hazard;       /* NULL: off */
    bool place_lost;           /* it is unknown what is mapped at a chunk's place: the device can't recover */
    tide_device_statistics statistics; /* all counters except those that the streams keep */

    _Atomic(tide_device_describe) describe; /* atomic, since the fault handler reads it */
    _Atomic(void *) describe_context;
} tide_host_device;

static inline tide_host_device *tide_host_device_of(tide_device *device)
{
    return (tide_host_device *)device;
}

/* host_setup.c */
tide_status tide_host_slots_make(tide_device *device, tide_tier tier, uint32_t count);
tide_status tide_host_range_make(tide_device *device, uint64_t bytes, void **base);
void tide_host_range_undo(tide_device *device, void *base, uint64_t bytes);
tide_status tide_host_region_make(tide_device *device, uint64_t bytes, void **address);
tide_status tide_host_part_make(tide_device *device, const char *name);
tide_status tide_host_buffer_make(tide_device *device, const char *name, uint64_t bytes, void **address);
tide_status tide_host_events_reserve(tide_device *device, uint32_t capacity);
void *tide_host_slot_address(tide_device *device, tide_tier tier, uint32_t slot);
/* Free everything that the functions above made. */
void tide_host_setup_undo(tide_host_device *device);

/* host_residency.c */
tide_status tide_host_place_map(tide_device *device, uint32_t slot, void *place);
tide_status tide_host_place_unmap(tide_device *device, uint32_t slot, void *place);
void tide_host_place_lost(tide_device *device, tide_status status);
tide_status tide_host_remap(tide_device *device, uint32_t slot, void *from, void *to);
bool tide_host_has_capacity(tide_device *device, tide_stream stream, bool wait);
tide_status tide_host_guard(tide_device *device, tide_stream stream, void *place, bool accessible);

/* host_command.c */
tide_status tide_host_launch(tide_device *device, tide_stream stream, const tide_work *work, tide_kernel fn,
                             const void *arguments, size_t argument_bytes);
tide_status tide_host_copy_slot(tide_device *device, tide_stream stream, const tide_work *work,
                                tide_tier to_tier, uint32_t to_slot, uint32_t from_slot, uint64_t bytes);
tide_status tide_host_copy_bytes(tide_device *device, tide_stream stream, const tide_work *work, void *to,
                                 const void *from, uint64_t bytes, bool to_device);
tide_status tide_host_event_record(tide_device *device, tide_event event, tide_stream stream);
tide_status tide_host_stream_wait(tide_device *device, tide_stream stream, tide_event event,
                                  tide_wait_site site, uint64_t id);
tide_status tide_host_event_query(tide_device *device, tide_event event, tide_wait_site site, bool *done);
tide_status tide_host_event_wait(tide_device *device, tide_event event, tide_wait_site site);
tide_status tide_host_touch(tide_device *device, const tide_work *work);
/* Enqueue a command of the device itself (a guard), without fault injection and without hazard checks. */
tide_status tide_host_enqueue_internal(tide_host_device *device, tide_stream stream, const char *label,
                                       uint32_t tag, tide_kernel fn, const void *arguments,
                                       size_t argument_bytes);
/* The address at which copies access a slot: its chunk's place while it is mapped there (unless
 * options.checks.guard is set), otherwise its own. Takes the memory lock. */
void *tide_host_slot_reach(tide_host_device *device, tide_tier tier, uint32_t slot);
/* Check accesses by the calling thread for hazards; a hazard makes the device fail. Checks nothing after the
 * device has failed, since the caller then only cleans up. With the streams' lock. */
tide_status tide_host_check_touch(tide_host_device *device, const tide_work *work);
/* Check, like tide_host_check_touch, that the calling thread may unmap a slot. */
tide_status tide_host_check_unmap(tide_host_device *device, uint32_t slot);

#endif
