/* Commands, events and waits of the null device on its virtual clock. */
#include "offload/null/null_device.h"

#include "base/minmax.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

/* --- commands --- */

/* How long `amount` takes at a speed; 0 if the speed is 0. Limited, so that any finite values give a
 * duration. */
static uint64_t duration_ns(double amount, double per_second)
{
    const double ns = per_second > 0 ? amount / per_second * 1e9 + 0.5 : 0;
    return ns < (double)INT64_MAX ? (uint64_t)ns : INT64_MAX;
}

/* How long a kernel takes: options.kernel_time says it or, if it does not know, the machine's speeds: on the
 * device the longer of arithmetic and memory traffic, on the host memory traffic. */
static uint64_t kernel_ns(const tide_null_device *null, tide_stream stream, const tide_work *work,
                          tide_kernel fn, const void *arguments)
{
    const tide_device_options *rates = &null->options;
    const double known_ns = rates->kernel_time == NULL
                                ? -1
                                : rates->kernel_time(rates->kernel_time_context, stream, work, fn, arguments);
    if (known_ns >= 0)
        return duration_ns(known_ns, 1e9);
    if (stream == TIDE_STREAM_HOST)
        return duration_ns(work->bytes, rates->machine.host_bytes_per_second);
    return tide_max_u64(duration_ns(work->flops, rates->machine.flops_per_second),
                        duration_ns(work->bytes, rates->machine.device_bytes_per_second));
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
        status =
            tide_null_flow_command(&null->flow, stream, work, kernel_ns(null, stream, work, fn, arguments));
    return null_unlock(null, status);
}

static double link_rate(const tide_null_device *null, bool to_device)
{
    const tide_device_options *rates = &null->options;
    return to_device || rates->machine.link_out_bytes_per_second <= 0
               ? rates->link_bytes_per_second
               : rates->machine.link_out_bytes_per_second;
}

static tide_status copy_run(tide_null_device *null, tide_stream stream, const tide_work *work, uint64_t bytes,
                            bool to_device)
{
    tide_status status = tide_fault_count(&null->account.fault, TIDE_FAULT_COPY, work->label);
    if (status != TIDE_OK)
        return status;
    status = tide_null_flow_command(&null->flow, stream, work,
                                    duration_ns((double)bytes, link_rate(null, to_device)));
    if (status == TIDE_OK)
        *(to_device ? &null->statistics.h2d_bytes : &null->statistics.d2h_bytes) += bytes;
    return status;
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
    return tide_event_check(event, null->flow.event_count);
}

tide_status tide_null_event_record(tide_device *device, tide_event event, tide_stream stream)
{
    tide_status status = tide_stream_check(stream);
    if (status != TIDE_OK)
        return status;
    tide_null_device *null = null_lock(device);
    status = event_check(null, event);
    if (status == TIDE_OK)
        status = tide_null_flow_record(&null->flow, stream, event);
    return null_unlock(null, status);
}

static tide_status stream_wait_locked(tide_null_device *null, tide_stream stream, tide_event event,
                                      tide_wait_site site, uint64_t id)
{
    tide_status status = event_check(null, event);
    if (status != TIDE_OK)
        return status;
    status = tide_stream_wait_check(stream, event, null->flow.events[event - 1].stream);
    if (status == TIDE_OK)
        status = tide_null_flow_wait(&null->flow, stream, event, site, id);
    if (status == TIDE_OK)
        null->statistics.waits[site]++;
    return status;
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
        *done = tide_null_flow_passed(&null->flow, null->flow.events[event - 1]);
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
        tide_null_flow_until(&null->flow, null->flow.events[event - 1]);
    }
    return null_unlock(null, status);
}

/* --- sleep and time --- */

uint64_t tide_null_doorbell(tide_device *device)
{
    tide_null_device *null = null_lock(device);
    uint64_t ticket = null->flow.doorbell;
    (void)null_unlock(null, TIDE_OK);
    return ticket;
}

tide_status tide_null_park(tide_device *device, uint64_t ticket, bool events)
{
    tide_null_device *null = null_lock(device);
    tide_status status = TIDE_OK;
    if ((events ? null->flow.doorbell : null->flow.ringing) > ticket)
        status = TIDE_OK;
    else if (!events || !tide_null_flow_next(&null->flow))
        status = tide_fail(TIDE_ERROR_STATE,
                           "parked with no completion to come: nothing would ever wake this thread");
    return null_unlock(null, status);
}

void tide_null_ring(tide_device *device)
{
    tide_null_device *null = null_lock(device);
    null->flow.ringing = ++null->flow.doorbell;
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
    tide_null_flow_drain(&null->flow);
    assert(tide_null_flow_is_valid(&null->flow));
    (void)null_unlock(null, TIDE_OK);
}

/* Always TIDE_OK: commands do nothing, so none fails after it was enqueued. */
tide_status tide_null_never_failed(tide_device *device)
{
    (void)device;
    return TIDE_OK;
}

uint64_t tide_null_now_ns(tide_device *device)
{
    tide_null_device *null = null_lock(device);
    uint64_t now_ns = null->flow.now_ns;
    (void)null_unlock(null, TIDE_OK);
    return now_ns;
}
