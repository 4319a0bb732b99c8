/* Stalls: the time in which compute stood still within steps, each nanosecond with one cause.
 *
 * Compute stands still in three ways, and each is measured where it is known best:
 *
 *   held back    the compute stream waits for another's event: the observer is told from when to when, and at which site
 *   held up      the caller is blocked, so nothing can be enqueued: from hold to release, as far as the stream is idle
 *   left idle    nothing is enqueued although nothing held the caller up: the observer sees the gap between two commands
 *
 *   compute      |kernel|      |kernel|wait|kernel|       |norm|copy|             |kernel|
 *   the caller      |... op ...|         step end            |step begin: held|op ...|
 *                       caller         link                  norm                caller
 *
 * What holds the caller up may change while it does: first a chunk's update, then its copy. The engine looks whenever it has
 * done something, and before and after it maps; where the cause is another, the time since is the old one's. The copy that
 * carries the norm to the host is the norm's time, not compute's, and so is the gap before it.
 *
 * Why an op's request is not ready (cause_now), in this order: a chunk owes an update; the engine is mapping; a chunk has no
 * slot and none is free; else a copy is under way. A stream that waits for copies into the device waits for the link: such
 * copies themselves wait for nothing (order.h). So does one that is to write what is still being copied out.
 *
 * The caller is late from a step's first op to its last one's end, in training steps: `settled_ns` is where the last account
 * ended or the first op began, `late_until_ns` where the step ended. Work between ops (tag >= op_count) takes no account of
 * the gap before it. What is before the first op and after the last belongs to nobody, unless the norm or updates hold up
 * the next step's begin.
 *
 * No lock but the pool's: the observer alone writes compute_end_ns. `settled_ns` moves on only while the stream is idle and the
 * observer has heard of all that ended (a GPU's does in statistics()), or at a first op, when gaps before are nobody's.
 */
#include "src/pool/internal.h"

#include <assert.h>

const char tide_label_norm_to_host[] = "norm to host";

static uint64_t later(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns > b_ns ? a_ns : b_ns;
}

static uint64_t earlier(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}

/* Nothing if it would end before it begins. */
static void add(tide_pool *pool, tide_stall_cause cause, uint64_t begin_ns, uint64_t end_ns)
{
    if (begin_ns >= end_ns)
        return;
    pool->journal.stalls.ns[cause] += end_ns - begin_ns;
    tide_pool_trace_stall(pool, cause, begin_ns, end_ns);
}

/* Idle time before this is not to be counted any more. */
static uint64_t idle_since(const tide_stalls *stalls)
{
    return later(stalls->compute_end_ns, stalls->settled_ns);
}

/* --- held back, and left idle --- */

void tide_stall_observe(tide_pool *pool, const char *label, uint32_t tag, bool is_wait, uint64_t begin_ns,
                        uint64_t end_ns)
{
    tide_stalls *stalls = &pool->journal.stalls;
    const uint64_t idle_ns = idle_since(stalls);
    stalls->compute_end_ns = end_ns;
    if (label == tide_label_norm_to_host) {
        stalls->norm_copy_ns += end_ns - begin_ns;
        add(pool, TIDE_STALL_NORM, idle_ns, end_ns);
        return;
    }
    if (is_wait || tag < pool->model.op_count)
        add(pool, TIDE_STALL_CALLER, idle_ns, earlier(begin_ns, stalls->late_until_ns));
    if (is_wait)
        add(pool, tag == TIDE_SITE_COMPUTE_UPDATE ? TIDE_STALL_UPDATE : TIDE_STALL_LINK, begin_ns, end_ns);
}

void tide_stall_ops_begin(tide_pool *pool)
{
    pool->journal.stalls.settled_ns = pool->ground.device->ops->now_ns(pool->ground.device);
    pool->journal.stalls.late_until_ns = UINT64_MAX;
}

void tide_stall_ops_end(tide_pool *pool)
{
    pool->journal.stalls.late_until_ns = pool->ground.device->ops->now_ns(pool->ground.device);
}

/* --- held up --- */

static tide_stall_cause cause_now(const tide_pool *pool)
{
    if (!tide_pool_norm_known(pool))
        return TIDE_STALL_NORM;
    const tide_request_wait wait =
        pool->op.is_open ? tide_manager_request_wait(pool->engine.manager) : TIDE_REQUEST_READY;
    if (wait == TIDE_REQUEST_WORK)
        return TIDE_STALL_UPDATE;
    if (pool->journal.stalls.mapping)
        return TIDE_STALL_MAP;
    if (wait == TIDE_REQUEST_SLOT)
        return TIDE_STALL_ROOM;
    return wait == TIDE_REQUEST_MOVE ? TIDE_STALL_LINK : TIDE_STALL_UPDATE;
}

/* The caller is blocked, so a stream found idle was so since its last command ended. What is before the hold's begin is the
 * caller's own. */
static void settle(tide_pool *pool)
{
    tide_stalls *stalls = &pool->journal.stalls;
    const uint64_t now_ns = pool->ground.device->ops->now_ns(pool->ground.device);
    tide_device_statistics device;
    pool->ground.device->ops->statistics(pool->ground.device, &device);
    if (device.pending[TIDE_STREAM_COMPUTE] == 0) {
        const uint64_t idle_ns = idle_since(stalls);
        add(pool, TIDE_STALL_CALLER, idle_ns, earlier(stalls->since_ns, stalls->late_until_ns));
        add(pool, stalls->cause, later(idle_ns, stalls->since_ns), now_ns);
        stalls->settled_ns = now_ns;
    }
    stalls->since_ns = now_ns;
}

void tide_stall_hold(tide_pool *pool)
{
    tide_stalls *stalls = &pool->journal.stalls;
    assert(!stalls->held);
    stalls->held = true;
    stalls->cause = cause_now(pool);
    stalls->since_ns = pool->ground.device->ops->now_ns(pool->ground.device);
}

void tide_stall_look(tide_pool *pool)
{
    tide_stalls *stalls = &pool->journal.stalls;
    if (!stalls->held)
        return;
    const tide_stall_cause cause = cause_now(pool);
    if (cause == stalls->cause)
        return;
    settle(pool);
    stalls->cause = cause;
}

void tide_stall_release(tide_pool *pool)
{
    assert(pool->journal.stalls.held);
    settle(pool);
    pool->journal.stalls.held = false;
}

tide_status tide_stall_wait(tide_pool *pool, bool (*ready)(const tide_pool *pool))
{
    if (ready(pool))
        return tide_monitor_failure(&pool->monitor);
    tide_stall_hold(pool);
    const tide_status status = tide_pool_wait(pool, ready);
    tide_stall_release(pool);
    return status;
}

void tide_stall_mapping(tide_pool *pool, bool mapping)
{
    pool->journal.stalls.mapping = mapping;
    tide_stall_look(pool);
}
