#include "src/pool/order.h"

#include "src/pool/monitor.h"

#include <assert.h>
#include <stdlib.h>

static const uint8_t stream_sites[TIDE_STREAM_COUNT][TIDE_STREAM_COUNT] = {
    [TIDE_STREAM_COMPUTE] = {[TIDE_STREAM_IN] = TIDE_SITE_COMPUTE_IN,
                             [TIDE_STREAM_OUT] = TIDE_SITE_COMPUTE_OUT,
                             [TIDE_STREAM_UPDATE] = TIDE_SITE_COMPUTE_UPDATE,
                             [TIDE_STREAM_COLLECTIVE] = TIDE_SITE_COMPUTE_COLLECTIVE},
    [TIDE_STREAM_OUT] = {[TIDE_STREAM_COMPUTE] = TIDE_SITE_OUT_COMPUTE,
                         [TIDE_STREAM_IN] = TIDE_SITE_OUT_IN,
                         [TIDE_STREAM_UPDATE] = TIDE_SITE_OUT_UPDATE,
                         [TIDE_STREAM_COLLECTIVE] = TIDE_SITE_OUT_COLLECTIVE},
    [TIDE_STREAM_UPDATE] = {[TIDE_STREAM_COMPUTE] = TIDE_SITE_UPDATE_COMPUTE,
                            [TIDE_STREAM_IN] = TIDE_SITE_UPDATE_IN,
                            [TIDE_STREAM_COLLECTIVE] = TIDE_SITE_UPDATE_COLLECTIVE},
    [TIDE_STREAM_COLLECTIVE] = {[TIDE_STREAM_COMPUTE] = TIDE_SITE_COLLECTIVE_COMPUTE},
};

static_assert((int)TIDE_SITE_COUNT <= (int)TIDE_WAIT_SITE_COUNT, "the device counts waits per site");

tide_status tide_order_create(tide_order *order, tide_device *device, tide_tracer *tracer,
                              const uint32_t slots[TIDE_TIER_COUNT])
{
    *order = (tide_order){.device = device, .tracer = tracer};
    for (int tier = 0; tier < TIDE_TIER_COUNT; tier++) {
        order->marks[tier] = calloc(slots[tier], sizeof *order->marks[tier]);
        if (order->marks[tier] == NULL)
            return tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory for bookkeeping of %u slots",
                             slots[tier]);
    }
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++) {
        for (int i = 0; i < TIDE_ORDER_RING; i++) {
            const tide_status status = device->ops->event_create(device, &order->events[stream][i]);
            if (status != TIDE_OK)
                return status;
        }
    }
    return TIDE_OK;
}

void tide_order_destroy(tide_order *order)
{
    for (int tier = 0; tier < TIDE_TIER_COUNT; tier++)
        free(order->marks[tier]);
    *order = (tide_order){0};
}

bool tide_order_may_enqueue(const tide_order *order, tide_stream stream)
{
    return !tide_monitor_is_held(NULL) || order->device->ops->has_capacity(order->device, stream, false);
}

/* Checks that no number in `seen` or `knows` is above the stream's last recorded submission, and that each
 * stream knows its own last one. */
bool tide_order_is_valid(const tide_order *order)
{
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++) {
        if (order->seen[stream] > order->recorded[stream] ||
            order->knows[stream][stream] != order->recorded[stream])
            return false;
        for (int other = 0; other < TIDE_STREAM_COUNT; other++) {
            if (order->knows[stream][other] > order->recorded[other])
                return false;
        }
    }
    return true;
}

tide_event tide_order_event(const tide_order *order, tide_stream stream, uint64_t number)
{
    assert(tide_monitor_is_held(NULL) && number <= order->recorded[stream] + 1);
    return order->events[stream][number % TIDE_ORDER_RING];
}

tide_status tide_order_record(tide_order *order, tide_stream stream, uint64_t id, uint64_t *number)
{
    assert(tide_monitor_is_held(NULL));
    const uint64_t next = order->recorded[stream] + 1;
    const tide_status status =
        order->device->ops->event_record(order->device, tide_order_event(order, stream, next), stream);
    if (status != TIDE_OK)
        return status;
    order->recorded[stream] = next;
    order->ids[stream][next % TIDE_ORDER_RING] = id;
    order->knows[stream][stream] = next;
    memcpy(order->knowledge[stream][next % TIDE_ORDER_RING], order->knows[stream],
           sizeof order->knows[stream]);
    *number = next;
    assert(tide_order_is_valid(order));
    return TIDE_OK;
}

static void learn(uint64_t knows[TIDE_STREAM_COUNT], const uint64_t told[TIDE_STREAM_COUNT])
{
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++) {
        if (knows[stream] < told[stream])
            knows[stream] = told[stream];
    }
}

static tide_status wait_for(tide_order *order, tide_stream stream, tide_stream other, uint64_t number)
{
    assert(number <= order->recorded[other]);
    if (other == stream || order->knows[stream][other] >= number)
        return TIDE_OK;
    const tide_wait_site site = stream_sites[stream][other];
    if (site == 0)
        return tide_fail(TIDE_ERROR_INTERNAL,
                         "stream %s would have to wait for stream %s, which never happens",
                         tide_stream_name(stream), tide_stream_name(other));
    const tide_event event = tide_order_event(order, other, number);
    const bool forgotten = order->recorded[other] - number >= TIDE_ORDER_RING;
    const uint64_t id =
        tide_tracer_wait(order->tracer, stream, forgotten ? 0 : order->ids[other][number % TIDE_ORDER_RING]);
    const tide_status status = order->device->ops->stream_wait(order->device, stream, event, site, id);
    if (status == TIDE_OK)
        learn(order->knows[stream], order->knowledge[other][number % TIDE_ORDER_RING]);
    assert(status != TIDE_OK || order->knows[stream][other] >= number);
    return status;
}

void tide_needs_add(tide_needs *needs, const tide_marks *marks, bool write)
{
    learn(needs->numbers, write ? marks->used : marks->written);
}

tide_status tide_order_wait(tide_order *order, tide_stream stream, const tide_needs *needs)
{
    assert(tide_monitor_is_held(NULL) && tide_order_may_enqueue(order, stream));
    tide_status status = TIDE_OK;
    if (stream != TIDE_STREAM_COMPUTE && stream != TIDE_STREAM_COLLECTIVE)
        learn(order->knows[stream], order->seen);
    for (int other = 0; other < TIDE_STREAM_COUNT && status == TIDE_OK; other++)
        status = wait_for(order, stream, (tide_stream)other, needs->numbers[other]);
    assert(tide_order_is_valid(order));
    return status;
}

tide_status tide_order_query(tide_order *order, tide_stream stream, uint64_t number, tide_wait_site site,
                             bool *passed)
{
    assert(tide_monitor_is_held(NULL) && number <= order->recorded[stream]);
    tide_status status = TIDE_OK;
    bool done = order->seen[stream] >= number;
    assert(site < TIDE_SITE_COUNT);
    const bool runs = order->unended[site] != 0 && number >= order->unended[site];
    if (!done && !runs) {
        const tide_event event = tide_order_event(order, stream, number);
        status = order->device->ops->event_query(order->device, event, site, &done);
        if (status == TIDE_OK && done)
            learn(order->seen, order->knowledge[stream][number % TIDE_ORDER_RING]);
        else if (status == TIDE_OK && order->recorded[stream] - number < TIDE_ORDER_RING)
            order->unended[site] = number; /* not if the event stands for a later submission by now */
    }
    if (status == TIDE_OK)
        *passed = done;
    return status;
}

void tide_order_synchronized(tide_order *order)
{
    assert(tide_monitor_is_held(NULL));
    learn(order->seen, order->recorded);
    assert(tide_order_is_valid(order));
}
