#include "src/pool/stall.h"

#include "base/minmax.h"
#include "src/pool/monitor.h"
#include "src/pool/order.h"

#include <assert.h>

static uint64_t now_ns(const tide_stalls *stalls)
{
    tide_device *device = stalls->tracer->context->device;
    return device->ops->now_ns(device);
}

/* Count the time from `begin_ns` to `end_ns` for the cause; nothing if it is empty or negative. */
static void add(tide_stalls *stalls, tide_stall_cause cause, uint64_t begin_ns, uint64_t end_ns,
                const tide_trace_event *where)
{
    assert((unsigned)cause < TIDE_STALL_CAUSE_COUNT);
    if (begin_ns >= end_ns)
        return;
    stalls->ns[cause] += end_ns - begin_ns;
    tide_tracer_stall(stalls->tracer, cause, begin_ns, end_ns, where);
}

/* Where the idle time begins that is not counted yet. */
static uint64_t idle_since(const tide_stalls *stalls)
{
    return tide_max_u64(stalls->compute_end_ns, stalls->settled_ns);
}

/* --- held back, and left idle --- */

/* Count a time in which the stream idled because the caller enqueued the command `where` late. The trace
 * names no chunk. */
static void tell_caller(tide_stalls *stalls, uint64_t begin_ns, uint64_t end_ns,
                        const tide_trace_event *where)
{
    tide_trace_event late;
    if (where != NULL) {
        late = *where;
        late.chunk = TIDE_TRACE_NONE;
        late.ended_by = 0;
        where = &late;
    }
    add(stalls, TIDE_STALL_CALLER, begin_ns, end_ns, where);
}

static tide_stall_cause cause_of(uint32_t site)
{
    return site == TIDE_SITE_COMPUTE_UPDATE       ? TIDE_STALL_UPDATE
           : site == TIDE_SITE_COMPUTE_COLLECTIVE ? TIDE_STALL_PEER
                                                  : TIDE_STALL_LINK;
}

void tide_stalls_observe(tide_stalls *stalls, tide_stall_command command, uint32_t site, uint64_t begin_ns,
                         uint64_t end_ns, const tide_trace_event *where)
{
    const uint64_t idle_ns = idle_since(stalls);
    stalls->compute_end_ns = end_ns;
    if (command == TIDE_STALL_NORM_COPY) {
        stalls->norm_copy_ns += end_ns - begin_ns;
        add(stalls, TIDE_STALL_NORM, idle_ns, end_ns, NULL);
        return;
    }
    if (command != TIDE_STALL_BETWEEN)
        tell_caller(stalls, idle_ns, tide_min_u64(begin_ns, stalls->late_until_ns), where);
    if (command == TIDE_STALL_WAIT)
        add(stalls, cause_of(site), begin_ns, end_ns, where);
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
    if (stalls->wait == TIDE_REQUEST_PENDING)
        return TIDE_STALL_UPDATE;
    if (stalls->mapping)
        return TIDE_STALL_MAP;
    if (stalls->wait == TIDE_REQUEST_SLOT)
        return TIDE_STALL_SLOT;
    return stalls->wait == TIDE_REQUEST_MOVE ? TIDE_STALL_LINK : TIDE_STALL_UPDATE;
}

/* The id of the command that ended the cause; 0: no command has gone on since the cause began. */
static uint64_t ended_by(const tide_stalls *stalls)
{
    const tide_tracer *tracer = stalls->tracer;
    if (stalls->ended_by != 0)
        return stalls->ended_by;
    return tracer->brought_on != stalls->brought_on ? tracer->last_id : 0;
}

/* If the compute stream is idle, count the time since its last command ended: for the caller until the hold
 * began, after that for the cause. The caller is blocked, so no command can be on its way. */
static void settle(tide_stalls *stalls)
{
    tide_device *device = stalls->tracer->context->device;
    const uint64_t end_ns = now_ns(stalls);
    tide_device_statistics statistics;
    device->ops->statistics(device, &statistics);
    if (statistics.pending[TIDE_STREAM_COMPUTE] == 0) {
        const uint64_t idle_ns = idle_since(stalls);
        tide_trace_event where = stalls->tracer->here;
        tell_caller(stalls, idle_ns, tide_min_u64(stalls->since_ns, stalls->late_until_ns), &where);
        if (stalls->cause != TIDE_STALL_NORM) {
            where.chunk = stalls->chunk;
            where.ended_by = ended_by(stalls);
        }
        add(stalls, stalls->cause, tide_max_u64(idle_ns, stalls->since_ns), end_ns, &where);
        stalls->settled_ns = end_ns;
    }
    assert(stalls->since_ns <= end_ns);
    stalls->since_ns = end_ns;
}

/* If the caller is held up and the cause has changed, count the time so far for the old one. */
static void look(tide_stalls *stalls)
{
    if (!stalls->held || cause_now(stalls) == stalls->cause)
        return;
    if (stalls->asked && stalls->wait == TIDE_REQUEST_READY) {
        if (stalls->ended_by == 0)
            stalls->ended_by = stalls->tracer->last_id;
        return;
    }
    settle(stalls);
    stalls->cause = cause_now(stalls);
    stalls->brought_on = stalls->tracer->brought_on;
}

void tide_stalls_tell(tide_stalls *stalls, bool norm_awaited, tide_request_wait wait, tide_chunk chunk)
{
    assert(tide_monitor_is_held(NULL));
    stalls->norm_awaited = norm_awaited;
    stalls->wait = wait;
    look(stalls);
    if (wait != TIDE_REQUEST_READY)
        stalls->chunk = chunk;
}

void tide_stalls_hold(tide_stalls *stalls, bool norm_awaited, tide_request_wait wait, tide_chunk chunk)
{
    tide_device *device = stalls->tracer->context->device;
    tide_device_statistics unused;
    assert(!stalls->held);
    /* Reading the statistics makes a GPU end the timing of the kernels so far, so that it does not time them
     * together with kernels after the hold. */
    device->ops->statistics(device, &unused);
    stalls->chunk = TIDE_CHUNK_NONE;
    tide_stalls_tell(stalls, norm_awaited, wait, chunk);
    stalls->asked = wait != TIDE_REQUEST_READY;
    stalls->ended_by = 0;
    stalls->brought_on = stalls->tracer->brought_on;
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
