/* The null device's time: commands, events and sleep on the virtual clock. See null_device.c. */
#include "offload/null_device.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

/* --- commands --- */

/* How long `amount` takes at a rate; a rate of 0 is no limit. Any finite amount at any finite rate has a duration. */
static uint64_t duration_ns(double amount, double per_second)
{
    const double ns = per_second > 0 ? amount / per_second * 1e9 + 0.5 : 0;
    return ns < (double)INT64_MAX ? (uint64_t)ns : INT64_MAX;
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

static void observe(const tide_null_device *null, const tide_observed *observed)
{
    const tide_device_options *options = &null->options;
    if (options->observer != NULL)
        options->observer(options->observer_context, observed);
}

static void stream_run(tide_null_device *null, tide_stream stream, const tide_work *work, uint64_t lasts_ns)
{
    uint64_t begin_ns = longer(null->tail_ns[stream], null->clock.now_ns);
    null->tail_ns[stream] = tide_null_clock_after(begin_ns, lasts_ns);
    null->statistics.busy_ns[stream] += lasts_ns;
    null->statistics.commands[stream]++;
    observe(null, &(tide_observed){stream, false, work->label, work->tag, work->meter, work->id, begin_ns,
                                   null->tail_ns[stream]});
}

tide_status tide_null_launch(tide_device *device, tide_stream stream, const tide_work *work, tide_kernel fn,
                             const void *arguments, size_t argument_bytes)
{
    tide_status status = tide_launch_check(stream, work, fn, arguments, argument_bytes);
    if (status != TIDE_OK)
        return status;
    tide_null_device *null = null_lock(device);
    status = tide_fault_count(&null->account.fault, TIDE_FAULT_LAUNCH, work->label);
    if (status == TIDE_OK)
        stream_run(null, stream, work, kernel_ns(null, stream, work));
    return null_unlock(null, status);
}

static double link_rate(const tide_null_device *null, bool to_device)
{
    const tide_device_options *rates = &null->options;
    return to_device || rates->link_out_bytes_per_second <= 0 ? rates->link_bytes_per_second
                                                              : rates->link_out_bytes_per_second;
}

static tide_status copy_run(tide_null_device *null, tide_stream stream, const tide_work *work, uint64_t bytes,
                            bool to_device)
{
    tide_status status = tide_fault_count(&null->account.fault, TIDE_FAULT_COPY, work->label);
    if (status != TIDE_OK)
        return status;
    *(to_device ? &null->statistics.h2d_bytes : &null->statistics.d2h_bytes) += bytes;
    stream_run(null, stream, work, duration_ns((double)bytes, link_rate(null, to_device)));
    return TIDE_OK;
}

tide_status tide_null_copy_slot(tide_device *device, tide_stream stream, const tide_work *work,
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

tide_status tide_null_copy_bytes(tide_device *device, tide_stream stream, const tide_work *work, void *to,
                                 const void *from, uint64_t bytes, bool to_device)
{
    tide_status status = tide_copy_check(stream, work);
    if (status != TIDE_OK)
        return status;
    tide_null_device *null = null_lock(device);
    status = tide_account_copy_check(&null->account, work, to, from, bytes, to_device);
    if (status == TIDE_OK)
        status = copy_run(null, stream, work, bytes, to_device);
    return null_unlock(null, status);
}

/* --- events --- */

static tide_status event_check(const tide_null_device *null, tide_event event)
{
    return tide_event_check(event, null->clock.event_count);
}

tide_status tide_null_event_record(tide_device *device, tide_event event, tide_stream stream)
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

static void stream_hold(tide_null_device *null, tide_stream stream, uint64_t until_ns, tide_wait_site site,
                        uint64_t id)
{
    uint64_t begin_ns = longer(null->tail_ns[stream], null->clock.now_ns);
    if (until_ns <= begin_ns)
        return;
    null->tail_ns[stream] = until_ns;
    null->statistics.wait_ns[stream] += until_ns - begin_ns;
    observe(null, &(tide_observed){stream, true, "wait", site, 0, id, begin_ns, until_ns});
}

static tide_status stream_wait_locked(tide_null_device *null, tide_stream stream, tide_event event,
                                      tide_wait_site site, uint64_t id)
{
    tide_status status = event_check(null, event);
    if (status != TIDE_OK)
        return status;
    const tide_null_event *it = &null->clock.events[event - 1];
    status = tide_stream_wait_check(stream, event, it->stream);
    if (status != TIDE_OK)
        return status;
    null->statistics.waits[site]++;
    stream_hold(null, stream, it->completion_ns, site, id);
    return TIDE_OK;
}

tide_status tide_null_stream_wait(tide_device *device, tide_stream stream, tide_event event,
                                  tide_wait_site site, uint64_t id)
{
    tide_status status = tide_stream_check(stream);
    if (status == TIDE_OK)
        status = tide_wait_site_check(site);
    if (status != TIDE_OK)
        return status;
    tide_null_device *null = null_lock(device);
    return null_unlock(null, stream_wait_locked(null, stream, event, site, id));
}

tide_status tide_null_event_query(tide_device *device, tide_event event, tide_wait_site site, bool *done)
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

tide_status tide_null_event_wait(tide_device *device, tide_event event, tide_wait_site site)
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

uint64_t tide_null_doorbell(tide_device *device)
{
    tide_null_device *null = null_lock(device);
    uint64_t ticket = null->clock.doorbell;
    (void)null_unlock(null, TIDE_OK);
    return ticket;
}

tide_status tide_null_park(tide_device *device, uint64_t ticket, bool events)
{
    uint64_t next_ns;
    tide_null_device *null = null_lock(device);
    tide_status status = TIDE_OK;
    if ((events ? null->clock.doorbell : null->clock.ringing) > ticket)
        status = TIDE_OK;
    else if (events && tide_null_clock_next(&null->clock, &next_ns))
        tide_null_clock_advance(&null->clock, next_ns);
    else
        status = tide_fail(TIDE_ERROR_STATE,
                           "parked with no completion to come: nothing would ever wake this thread");
    return null_unlock(null, status);
}

void tide_null_ring(tide_device *device)
{
    tide_null_device *null = null_lock(device);
    null->clock.ringing = ++null->clock.doorbell;
    (void)null_unlock(null, TIDE_OK);
}

tide_status tide_null_host_touch(tide_device *device, const tide_work *work)
{
    (void)device;
    return tide_work_check(work);
}

void tide_null_synchronize(tide_device *device)
{
    tide_null_device *null = null_lock(device);
    for (int i = 0; i < TIDE_STREAM_COUNT; i++)
        tide_null_clock_advance(&null->clock, null->tail_ns[i]);
    assert(tide_null_clock_is_valid(&null->clock));
    (void)null_unlock(null, TIDE_OK);
}

/* Commands do nothing, so none fails after it was enqueued. */
tide_status tide_null_never_failed(tide_device *device)
{
    (void)device;
    return TIDE_OK;
}

uint64_t tide_null_now_ns(tide_device *device)
{
    tide_null_device *null = null_lock(device);
    uint64_t now_ns = null->clock.now_ns;
    (void)null_unlock(null, TIDE_OK);
    return now_ns;
}
