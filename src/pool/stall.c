#include "src/pool/stall.h"

#include "src/pool/monitor.h"
#include "src/pool/order.h"

#include <assert.h>

static uint64_t later(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns > b_ns ? a_ns : b_ns;
}

static uint64_t earlier(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}

static uint64_t now_ns(const tide_stalls *stalls)
{
    tide_device *device = stalls->tracer->ground->device;
    return device->ops->now_ns(device);
}

/* Nothing if it would end before it begins. */
static void add(tide_stalls *stalls, tide_stall_cause cause, uint64_t begin_ns, uint64_t end_ns)
{
    assert((unsigned)cause < TIDE_STALL_CAUSE_COUNT);
    if (begin_ns >= end_ns)
        return;
    stalls->ns[cause] += end_ns - begin_ns;
    tide_tracer_stall(stalls->tracer, cause, begin_ns, end_ns);
}

/* Idle time before this is not to be counted any more. */
static uint64_t idle_since(const tide_stalls *stalls)
{
    return later(stalls->compute_end_ns, stalls->settled_ns);
}

/* --- held back, and left idle --- */

void tide_stalls_observe(tide_stalls *stalls, tide_stall_command command, uint32_t site, uint64_t begin_ns,
                         uint64_t end_ns)
{
    const uint64_t idle_ns = idle_since(stalls);
    stalls->compute_end_ns = end_ns;
    if (command == TIDE_STALL_NORM_COPY) {
        stalls->norm_copy_ns += end_ns - begin_ns;
        add(stalls, TIDE_STALL_NORM, idle_ns, end_ns);
        return;
    }
    if (command != TIDE_STALL_BETWEEN)
        add(stalls, TIDE_STALL_CALLER, idle_ns, earlier(begin_ns, stalls->late_until_ns));
    if (command == TIDE_STALL_WAIT)
        add(stalls, site == TIDE_SITE_COMPUTE_UPDATE ? TIDE_STALL_UPDATE : TIDE_STALL_LINK, begin_ns, end_ns);
}

void tide_stalls_ops_begin(tide_stalls *stalls)
{
    assert(tide_monitor_is_held(NULL) && !stalls->held);
    stalls->settled_ns = now_ns(stalls);
    stalls->late_until_ns = UINT64_MAX;
}

void tide_stalls_ops_end(tide_stalls *stalls)
{
    assert(tide_monitor_is_held(NULL));
    stalls->late_until_ns = now_ns(stalls);
}

/* --- held up --- */

static tide_stall_cause cause_now(const tide_stalls *stalls)
{
    if (stalls->norm_awaited)
        return TIDE_STALL_NORM;
    if (stalls->wait == TIDE_REQUEST_WORK)
        return TIDE_STALL_UPDATE;
    if (stalls->mapping)
        return TIDE_STALL_MAP;
    if (stalls->wait == TIDE_REQUEST_SLOT)
        return TIDE_STALL_ROOM;
    return stalls->wait == TIDE_REQUEST_MOVE ? TIDE_STALL_LINK : TIDE_STALL_UPDATE;
}

/* The caller is blocked, so a stream found idle was so since its last command ended. What is before the hold's begin is the
 * caller's own. */
static void settle(tide_stalls *stalls)
{
    tide_device *device = stalls->tracer->ground->device;
    const uint64_t end_ns = now_ns(stalls);
    tide_device_statistics statistics;
    device->ops->statistics(device, &statistics);
    if (statistics.pending[TIDE_STREAM_COMPUTE] == 0) {
        const uint64_t idle_ns = idle_since(stalls);
        add(stalls, TIDE_STALL_CALLER, idle_ns, earlier(stalls->since_ns, stalls->late_until_ns));
        add(stalls, stalls->cause, later(idle_ns, stalls->since_ns), end_ns);
        stalls->settled_ns = end_ns;
    }
    assert(stalls->since_ns <= end_ns);
    stalls->since_ns = end_ns;
}

/* Nobody is held up, or what was told last may have another cause now. */
static void look(tide_stalls *stalls)
{
    if (!stalls->held || cause_now(stalls) == stalls->cause)
        return;
    settle(stalls);
    stalls->cause = cause_now(stalls);
}

void tide_stalls_tell(tide_stalls *stalls, bool norm_awaited, tide_request_wait wait)
{
    assert(tide_monitor_is_held(NULL));
    stalls->norm_awaited = norm_awaited;
    stalls->wait = wait;
    look(stalls);
}

void tide_stalls_hold(tide_stalls *stalls, bool norm_awaited, tide_request_wait wait)
{
    assert(!stalls->held);
    tide_stalls_tell(stalls, norm_awaited, wait);
    stalls->held = true;
    stalls->cause = cause_now(stalls);
    stalls->since_ns = now_ns(stalls);
}

void tide_stalls_mapping(tide_stalls *stalls, bool mapping)
{
    assert(tide_monitor_is_held(NULL));
    assert(stalls->mapping != mapping);
    stalls->mapping = mapping;
    look(stalls);
}

void tide_stalls_release(tide_stalls *stalls)
{
    assert(tide_monitor_is_held(NULL));
    assert(stalls->held);
    settle(stalls);
    stalls->held = false;
}
