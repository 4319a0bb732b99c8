/* The null device has no data, only accounts and a virtual clock. Plans and predictions run the real manager
 * on it.
 *
 * Streams are queues in virtual time (null_flow.h). A command takes as long as options.kernel_time or the
 * simulated machine's speeds say, and longer while other streams slow it down (options.slowdowns). Time
 * passes in park(), to the next record that passes; in event_wait() and synchronize(), to the end of the
 * wait; and in map() and unmap(), by the time that they take, since they keep the engine busy.
 *
 * Budgets, and checks of misuse with their messages, are those of the host device (device.c, mappings.c).
 * Kernels are not called. Addresses are invented, where no user memory can be, so that an access faults. The
 * same calls take the same virtual times in every run.
 */
#include "offload/null/null_device.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

/* Higher than any address that Linux gives to a program that does not ask for one so high, and far below
 * 2^64. */
static const uint64_t address_first = UINT64_C(1) << 52;

/* --- counters --- */

static void null_statistics(tide_device *device, tide_device_statistics *statistics)
{
    tide_null_device *null = null_lock(device);
    *statistics = null->statistics;
    statistics->maps = null->account.maps;
    statistics->unmaps = null->account.unmaps;
    for (int i = 0; i < TIDE_STREAM_COUNT; i++)
        statistics->pending[i] = !tide_null_flow_is_idle(&null->flow, (tide_stream)i);
    (void)null_unlock(null, TIDE_OK);
}

static void null_set_describe(tide_device *device, tide_device_describe describe, void *context)
{
    (void)device; /* its addresses have no memory, so there is no fault to describe */
    (void)describe;
    (void)context;
}

/* --- open and close --- */

static void null_close(tide_device *device)
{
    if (device == NULL)
        return;
    tide_null_device *null = null_of(device);
    tide_null_flow_drain(&null->flow);
    tide_null_flow_destroy(&null->flow);
    tide_account_destroy(&null->account);
    free(null);
}

/* Always true: a queue grows as needed. */
static bool null_has_capacity(tide_device *device, tide_stream stream, bool wait)
{
    (void)device, (void)stream, (void)wait;
    return true;
}

static const tide_device_ops null_ops = {
    .kind = "null",
    .asynchronous = false,
    .has_data = false,
    .close = null_close,
    .slots_create = tide_account_slots_create,
    .reserve = tide_account_reserve,
    .region_create = tide_account_region_create,
    .region_object = tide_account_region_object,
    .buffer_create = tide_account_buffer_create,
    .event_create = tide_null_event_create,
    .slot_address = tide_null_slot_address,
    .map = tide_account_map,
    .unmap = tide_account_unmap,
    .guard = tide_null_guard,
    .has_capacity = null_has_capacity,
    .launch = tide_null_launch,
    .copy_slot = tide_null_copy_slot,
    .copy_bytes = tide_null_copy_bytes,
    .event_record = tide_null_event_record,
    .stream_wait = tide_null_stream_wait,
    .event_query = tide_null_event_query,
    .event_wait = tide_null_event_wait,
    .doorbell = tide_null_doorbell,
    .park = tide_null_park,
    .ring = tide_null_ring,
    .host_touch = tide_null_host_touch,
    .synchronize = tide_null_synchronize,
    .failure = tide_null_never_failed,
    .stream_failed = tide_no_stream_failed,
    .recover = tide_null_never_failed,
    .now_ns = tide_null_now_ns,
    .usage = tide_account_usage,
    .statistics = null_statistics,
    .set_describe = null_set_describe,
    .set_fault = tide_account_set_fault,
};

static const tide_account_makers null_makers = {
    .slots = tide_null_slots_make,
    .range = tide_null_range_make,
    .range_undo = tide_null_range_undo,
    .region = tide_null_region_make,
    .buffer = tide_null_buffer_make,
    .map = tide_null_place_map,
    .unmap = tide_null_place_unmap,
};

tide_status tide_device_null_imitate(tide_device *device, const tide_device_options *machine)
{
    tide_null_device *null = null_lock(device);
    tide_device_options merged = null->options;
    merged.link_bytes_per_second = machine->link_bytes_per_second;
    merged.machine = machine->machine;
    merged.slowdowns = machine->slowdowns;
    merged.kernel_time = machine->kernel_time;
    merged.kernel_time_context = machine->kernel_time_context;
    const tide_status status = tide_device_options_check(&merged);
    if (status == TIDE_OK) {
        null->options = merged;
        null->flow.slowdowns = merged.slowdowns;
    }
    return null_unlock(null, status);
}

tide_status tide_device_null_reserve(tide_device *device, uint32_t commands)
{
    tide_null_device *null = null_lock(device);
    return null_unlock(null, tide_null_flow_reserve(&null->flow, commands));
}

tide_status tide_device_null_open(const tide_device_options *options, tide_device **device)
{
    tide_status status = tide_device_options_check(options);
    if (status != TIDE_OK)
        return status;
    tide_null_device *null = calloc(1, sizeof *null);
    if (null == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the null device (%zu bytes)", sizeof *null);
    tide_account_init(&null->account, &null_ops, &null_makers, options, NULL);
    null->options = *options;
    null->flow.slowdowns = options->slowdowns;
    null->flow.statistics = &null->statistics;
    null->flow.observer = options->observer;
    null->flow.observer_context = options->observer_context;
    null->counts.chunk_bytes = options->chunk_bytes;
    null->address_next = address_first;
    *device = &null->account.base;
    return TIDE_OK;
}
