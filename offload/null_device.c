/* The null device: no data, only accounting and a virtual clock. Plans and predictions run the very same
 * manager on it.
 *
 * Each stream is one number, its tail: when all that was enqueued so far will have ended.
 *
 *   command      begins at max(tail, now), lasts what the machine's rates say, its end is the new tail
 *   record       the event completes at max(tail, now)
 *   stream wait  the tail becomes at least the event's completion; the gap is the stream's wait
 *   now          moves in park() to the next completion, in event_wait() and synchronize() to what is waited
 *                for, and by map_ns in map() and unmap(), which keep the engine busy
 *
 * Budgets, misuse and their messages are the host device's (device.c, mappings.c). Kernels are not called;
 * addresses are made up, where no user memory can be, so that a touch faults. A schedule gives the same times
 * on every run.
 */
#include "offload/device_common.h"
#include "offload/mappings.h"
#include "offload/null_clock.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

/* Beyond any address that Linux gives out unasked, and far from wrapping around. */
static const uint64_t address_first = UINT64_C(1) << 52;

typedef struct null_extent {
    uint64_t base; /* 0: not made */
    uint64_t bytes;
} null_extent;

typedef struct tide_null_device {
    tide_device base;
    tide_device_options options;
    tide_fault fault;

    pthread_mutex_t lock; /* guards all below */
    tide_memory_usage ledgers[TIDE_TIER_COUNT];
    tide_mappings mappings;
    bool slots_made[TIDE_TIER_COUNT];
    uint64_t slots_base[TIDE_TIER_COUNT];
    tide_slot_counts counts;
    null_extent region;
    null_extent *buffers; /* [object] */
    uint32_t buffer_count;
    uint32_t region_object_count;
    uint64_t address_next;

    tide_null_clock clock;
    uint64_t tail_ns[TIDE_STREAM_COUNT];
    tide_device_statistics statistics;
} tide_null_device;

static tide_null_device *null_of(tide_device *device)
{
    return (tide_null_device *)device;
}

static tide_null_device *null_lock(tide_device *device)
{
    tide_null_device *null = null_of(device);
    pthread_mutex_lock(&null->lock);
    return null;
}

static tide_status null_unlock(tide_null_device *null, tide_status status)
{
    pthread_mutex_unlock(&null->lock);
    return status;
}

static void *made_up(uint64_t address)
{
    return (void *)(uintptr_t)address; /* never touched */
}

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

static tide_status null_slots_create(tide_device *device, tide_tier tier, uint32_t count)
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

static tide_status null_reserve(tide_device *device, uint64_t bytes, void **address)
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

static tide_status null_region_create(tide_device *device, uint64_t bytes, void **address)
{
    tide_null_device *null = null_lock(device);
    return null_unlock(null, region_create_locked(null, bytes, address));
}

static tide_status null_region_object(tide_device *device, const char *name, uint64_t offset_bytes,
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

static tide_status null_buffer_create(tide_device *device, const char *name, uint64_t bytes, void **address,
                                      uint32_t *object)
{
    tide_status status = tide_buffer_check(name, bytes);
    if (status != TIDE_OK)
        return status;
    tide_null_device *null = null_lock(device);
    return null_unlock(null, buffer_create_locked(null, name, bytes, address, object));
}

static tide_status null_event_create(tide_device *device, tide_event *event)
{
    tide_null_device *null = null_lock(device);
    tide_status status = tide_fault_count(&null->fault, TIDE_FAULT_MEMORY, "making an event");
    if (status == TIDE_OK)
        status = tide_null_clock_add(&null->clock, event);
    if (status == TIDE_OK)
        tide_ledger_commit(&null->ledgers[TIDE_TIER_DEVICE], 0);
    return null_unlock(null, status);
}

static void *null_slot_address(tide_device *device, tide_tier tier, uint32_t slot)
{
    tide_null_device *null = null_of(device);
    assert((unsigned)tier < TIDE_TIER_COUNT && slot < null->counts.slots[tier]);
    return made_up(null->slots_base[tier] + slot * null->options.chunk_bytes);
}

/* --- residency --- */

static tide_status null_map(tide_device *device, uint32_t slot, void *place)
{
    tide_null_device *null = null_lock(device);
    tide_status status = tide_mappings_put_check(&null->mappings, slot, place);
    if (status == TIDE_OK)
        status = tide_fault_count(&null->fault, TIDE_FAULT_MAP, "mapping a slot");
    if (status == TIDE_OK) {
        tide_mappings_put(&null->mappings, slot, place);
        null->statistics.maps++;
        tide_null_clock_advance(&null->clock, null->clock.now_ns + null->options.map_ns);
    }
    return null_unlock(null, status);
}

static tide_status null_unmap(tide_device *device, uint32_t slot, void *place)
{
    tide_null_device *null = null_lock(device);
    tide_status status = tide_mappings_take_check(&null->mappings, slot, place);
    if (status == TIDE_OK)
        status = tide_fault_count(&null->fault, TIDE_FAULT_MAP, "unmapping a slot");
    if (status == TIDE_OK) {
        tide_mappings_take(&null->mappings, slot, place);
        null->statistics.unmaps++;
        tide_null_clock_advance(&null->clock, null->clock.now_ns + null->options.map_ns);
    }
    return null_unlock(null, status);
}

static tide_status null_guard(tide_device *device, tide_stream stream, void *place, bool accessible)
{
    (void)device;
    (void)place;
    (void)accessible;
    return tide_stream_check(stream); /* nothing is accessible anyway */
}

/* --- commands --- */

/* How long `amount` takes at a rate; a rate of 0 is no limit. */
static uint64_t duration_ns(double amount, double per_second)
{
    return per_second > 0 ? (uint64_t)(amount / per_second * 1e9 + 0.5) : 0;
}

static uint64_t longer(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns > b_ns ? a_ns : b_ns;
}

/* A device kernel is bound by arithmetic or by memory; work on the host by memory. */
static uint64_t kernel_ns(const tide_null_device *null, tide_stream stream, const tide_work *work)
{
    const tide_device_options *rates = &null->options;
    if (stream == TIDE_STREAM_HOST)
        return duration_ns(work->bytes, rates->host_bytes_per_second);
    return longer(duration_ns(work->flops, rates->flops_per_second),
                  duration_ns(work->bytes, rates->device_bytes_per_second));
}

static void observe(const tide_null_device *null, tide_stream stream, const char *label, uint32_t tag,
                    uint64_t begin_ns, uint64_t end_ns)
{
    const tide_device_options *options = &null->options;
    if (options->observer != NULL)
        options->observer(options->observer_context, stream, label, tag, begin_ns, end_ns);
}

static void stream_run(tide_null_device *null, tide_stream stream, const tide_work *work, uint64_t lasts_ns)
{
    uint64_t begin_ns = longer(null->tail_ns[stream], null->clock.now_ns);
    null->tail_ns[stream] = begin_ns + lasts_ns;
    null->statistics.busy_ns[stream] += lasts_ns;
    null->statistics.commands[stream]++;
    observe(null, stream, work->label, work->tag, begin_ns, begin_ns + lasts_ns);
}

static tide_status null_launch(tide_device *device, tide_stream stream, const tide_work *work, tide_kernel fn,
                               const void *arguments, size_t argument_bytes)
{
    tide_status status = tide_launch_check(stream, work, fn, arguments, argument_bytes);
    if (status != TIDE_OK)
        return status;
    tide_null_device *null = null_lock(device);
    status = tide_fault_count(&null->fault, TIDE_FAULT_LAUNCH, work->label);
    if (status == TIDE_OK)
        stream_run(null, stream, work, kernel_ns(null, stream, work));
    return null_unlock(null, status);
}

static tide_status copy_run(tide_null_device *null, tide_stream stream, const tide_work *work, uint64_t bytes,
                            bool to_device)
{
    tide_status status = tide_fault_count(&null->fault, TIDE_FAULT_COPY, work->label);
    if (status != TIDE_OK)
        return status;
    *(to_device ? &null->statistics.h2d_bytes : &null->statistics.d2h_bytes) += bytes;
    stream_run(null, stream, work, duration_ns((double)bytes, null->options.link_bytes_per_second));
    return TIDE_OK;
}

static tide_status null_copy_slot(tide_device *device, tide_stream stream, const tide_work *work,
                                  tide_tier to_tier, uint32_t to_slot, uint32_t from_slot, uint64_t bytes)
{
    tide_status status = tide_copy_check(stream, work);
    if (status != TIDE_OK)
        return status;
    tide_null_device *null = null_lock(device);
    status = tide_copy_slot_check(&null->counts, to_tier, to_slot, from_slot, bytes);
    if (status == TIDE_OK)
        status = copy_run(null, stream, work, bytes, to_tier == TIDE_TIER_DEVICE);
    return null_unlock(null, status);
}

static bool is_inside(const void *address, uint64_t bytes, null_extent extent)
{
    return tide_is_inside(address, bytes, made_up(extent.base), extent.bytes);
}

static bool is_in_a_buffer(const tide_null_device *null, const void *address, uint64_t bytes)
{
    for (uint32_t i = 0; i < null->buffer_count; i++)
        if (is_inside(address, bytes, null->buffers[i]))
            return true;
    return false;
}

static tide_status null_copy_bytes(tide_device *device, tide_stream stream, const tide_work *work, void *to,
                                   const void *from, uint64_t bytes, bool to_device)
{
    tide_status status = tide_copy_check(stream, work);
    if (status != TIDE_OK)
        return status;
    tide_null_device *null = null_lock(device);
    const void *device_side = to_device ? to : from;
    const void *host_side = to_device ? from : to;
    status = tide_copy_bytes_check(work, bytes, device_side, is_inside(device_side, bytes, null->region),
                                   host_side, is_in_a_buffer(null, host_side, bytes));
    if (status == TIDE_OK)
        status = copy_run(null, stream, work, bytes, to_device);
    return null_unlock(null, status);
}

/* --- events --- */

static tide_status event_check(const tide_null_device *null, tide_event event)
{
    return tide_event_check(event, null->clock.event_count);
}

static tide_status null_event_record(tide_device *device, tide_event event, tide_stream stream)
{
    tide_status status = tide_stream_check(stream);
    if (status != TIDE_OK)
        return status;
    tide_null_device *null = null_lock(device);
    status = event_check(null, event);
    if (status == TIDE_OK)
        tide_null_clock_record(&null->clock, event, stream,
                               longer(null->tail_ns[stream], null->clock.now_ns));
    return null_unlock(null, status);
}

static void stream_hold(tide_null_device *null, tide_stream stream, uint64_t until_ns, tide_wait_site site)
{
    uint64_t begin_ns = longer(null->tail_ns[stream], null->clock.now_ns);
    if (until_ns <= begin_ns)
        return;
    null->tail_ns[stream] = until_ns;
    null->statistics.wait_ns[stream] += until_ns - begin_ns;
    observe(null, stream, "wait", site, begin_ns, until_ns);
}

static tide_status stream_wait_locked(tide_null_device *null, tide_stream stream, tide_event event,
                                      tide_wait_site site)
{
    tide_status status = event_check(null, event);
    if (status != TIDE_OK)
        return status;
    const tide_null_event *it = &null->clock.events[event - 1];
    status = tide_stream_wait_check(stream, event, it->stream);
    if (status != TIDE_OK)
        return status;
    null->statistics.waits[site]++;
    stream_hold(null, stream, it->completion_ns, site);
    return TIDE_OK;
}

static tide_status null_stream_wait(tide_device *device, tide_stream stream, tide_event event,
                                    tide_wait_site site)
{
    tide_status status = tide_stream_check(stream);
    if (status == TIDE_OK)
        status = tide_wait_site_check(site);
    if (status != TIDE_OK)
        return status;
    tide_null_device *null = null_lock(device);
    return null_unlock(null, stream_wait_locked(null, stream, event, site));
}

static tide_status null_event_query(tide_device *device, tide_event event, tide_wait_site site, bool *done)
{
    tide_status status = tide_wait_site_check(site);
    if (status != TIDE_OK)
        return status;
    tide_null_device *null = null_lock(device);
    status = event_check(null, event);
    if (status == TIDE_OK) {
        null->statistics.waits[site]++;
        *done = null->clock.events[event - 1].completion_ns <= null->clock.now_ns;
    }
    return null_unlock(null, status);
}

static tide_status null_event_wait(tide_device *device, tide_event event, tide_wait_site site)
{
    tide_status status = tide_wait_site_check(site);
    if (status != TIDE_OK)
        return status;
    tide_null_device *null = null_lock(device);
    status = event_check(null, event);
    if (status == TIDE_OK) {
        null->statistics.waits[site]++;
        tide_null_clock_advance(&null->clock, null->clock.events[event - 1].completion_ns);
    }
    return null_unlock(null, status);
}

/* --- sleep and time --- */

static uint64_t null_doorbell(tide_device *device)
{
    tide_null_device *null = null_lock(device);
    uint64_t ticket = null->clock.doorbell;
    (void)null_unlock(null, TIDE_OK);
    return ticket;
}

static tide_status null_park(tide_device *device, uint64_t ticket)
{
    uint64_t next_ns;
    tide_null_device *null = null_lock(device);
    tide_status status = TIDE_OK;
    if (null->clock.doorbell != ticket)
        status = TIDE_OK;
    else if (tide_null_clock_next(&null->clock, &next_ns))
        tide_null_clock_advance(&null->clock, next_ns);
    else
        status = tide_fail(TIDE_ERROR_STATE,
                           "parked with no completion to come: nothing would ever wake this thread");
    return null_unlock(null, status);
}

static void null_ring(tide_device *device)
{
    tide_null_device *null = null_lock(device);
    null->clock.doorbell++;
    (void)null_unlock(null, TIDE_OK);
}

static tide_status null_host_touch(tide_device *device, const tide_work *work)
{
    (void)device;
    return tide_work_check(work);
}

static void null_synchronize(tide_device *device)
{
    tide_null_device *null = null_lock(device);
    for (int i = 0; i < TIDE_STREAM_COUNT; i++)
        tide_null_clock_advance(&null->clock, null->tail_ns[i]);
    assert(tide_null_clock_is_valid(&null->clock));
    (void)null_unlock(null, TIDE_OK);
}

/* Commands do nothing, so none fails after it was enqueued. */
static tide_status null_never_failed(tide_device *device)
{
    (void)device;
    return TIDE_OK;
}

static uint64_t null_now_ns(tide_device *device)
{
    tide_null_device *null = null_lock(device);
    uint64_t now_ns = null->clock.now_ns;
    (void)null_unlock(null, TIDE_OK);
    return now_ns;
}

/* --- counters --- */

static void null_usage(tide_device *device, tide_tier tier, tide_memory_usage *usage)
{
    assert((unsigned)tier < TIDE_TIER_COUNT);
    tide_null_device *null = null_lock(device);
    *usage = null->ledgers[tier];
    (void)null_unlock(null, TIDE_OK);
}

static void null_statistics(tide_device *device, tide_device_statistics *statistics)
{
    tide_null_device *null = null_lock(device);
    *statistics = null->statistics;
    for (int i = 0; i < TIDE_STREAM_COUNT; i++)
        statistics->pending[i] = null->tail_ns[i] > null->clock.now_ns;
    (void)null_unlock(null, TIDE_OK);
}

static void null_set_describe(tide_device *device, tide_device_describe describe, void *context)
{
    (void)device; /* its addresses are nobody's: there is no fault to describe */
    (void)describe;
    (void)context;
}

static void null_set_fault(tide_device *device, uint32_t mask, uint64_t countdown)
{
    tide_fault_arm(&null_of(device)->fault, mask, countdown);
}

/* --- open and close --- */

static void null_close(tide_device *device)
{
    if (device == NULL)
        return;
    tide_null_device *null = null_of(device);
    tide_null_clock_destroy(&null->clock);
    tide_mappings_destroy(&null->mappings);
    free(null->buffers);
    pthread_mutex_destroy(&null->lock);
    free(null);
}

static const tide_device_ops null_ops = {
    .kind = "null",
    .asynchronous = false,
    .has_data = false,
    .close = null_close,
    .slots_create = null_slots_create,
    .reserve = null_reserve,
    .region_create = null_region_create,
    .region_object = null_region_object,
    .buffer_create = null_buffer_create,
    .event_create = null_event_create,
    .slot_address = null_slot_address,
    .map = null_map,
    .unmap = null_unmap,
    .guard = null_guard,
    .launch = null_launch,
    .copy_slot = null_copy_slot,
    .copy_bytes = null_copy_bytes,
    .event_record = null_event_record,
    .stream_wait = null_stream_wait,
    .event_query = null_event_query,
    .event_wait = null_event_wait,
    .doorbell = null_doorbell,
    .park = null_park,
    .ring = null_ring,
    .host_touch = null_host_touch,
    .synchronize = null_synchronize,
    .failure = null_never_failed,
    .recover = null_never_failed,
    .now_ns = null_now_ns,
    .usage = null_usage,
    .statistics = null_statistics,
    .set_describe = null_set_describe,
    .set_fault = null_set_fault,
};

tide_status tide_device_null_open(const tide_device_options *options, tide_device **device)
{
    tide_status status = tide_device_options_check(options);
    if (status != TIDE_OK)
        return status;
    tide_null_device *null = calloc(1, sizeof *null);
    if (null == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the null device (%zu bytes)", sizeof *null);
    null->base.ops = &null_ops;
    null->options = *options;
    null->counts.chunk_bytes = options->chunk_bytes;
    null->address_next = address_first;
    null->ledgers[TIDE_TIER_DEVICE].budget_bytes = options->device_memory_bytes;
    null->ledgers[TIDE_TIER_HOST].budget_bytes = options->host_memory_bytes;
    tide_fault_arm(&null->fault, options->fault_mask, options->fault_countdown);
    tide_mappings_init(&null->mappings, options->chunk_bytes);
    (void)pthread_mutex_init(&null->lock, NULL);
    *device = &null->base;
    return TIDE_OK;
}
