/* The engine: executes what the chunk manager decides, in its order, without making anybody wait who need
 * not.
 *
 * A command's life
 *
 *   FETCH        map (outside the lock; not where the slot stands already), enqueue the copy on the in stream behind the
 *                marks of both slots: done
 *   WRITE_BACK   enqueue the copy on the out stream; open until it has been seen to end: done
 *   EVICT        enqueue the copy on the out stream; open until all uses of the slot, the copy included, have
 *                been seen; unmap (outside the lock): done. Where one call takes a slot from place to place (remap), the
 *                place is left as it is, and done: if the next command fetches into that slot, it is one call, else the
 *                place is unmapped before anything else is done
 *   tasks        open until a job is free and the slots' copies have been seen, then until the lane has finished
 *                (tasks.c); on the device done when enqueued
 *
 * No command is asked for while a way of the link has no room for it, and no job is started while its stream has none: the
 * engine holds the lock and never sleeps for room.
 *
 * Everything enqueued here runs on the engine's thread (asynchronous devices) so that what the engine has
 * seen pass is what orders it; the hazard checker knows threads apart. A failure stops the engine from asking
 * for more commands; what is open is brought to its end at abort (give_up).
 */
#include "src/pool/internal.h"

#include <assert.h>
#include <string.h>

/* What the open op's request waits for; nothing if none is open. */
static tide_request_wait request_wait(const tide_pool *pool)
{
    return tide_manager_request_wait(pool->engine.manager);
}

/* The caller may wait for something else now. Costs nothing while nobody is held up. */
static void tell_stalls(tide_pool *pool)
{
    if (pool->journal.stalls.held)
        tide_stalls_tell(&pool->journal.stalls, !tide_pool_norm_known(pool), request_wait(pool));
}

void tide_engine_hold(tide_pool *pool)
{
    tide_stalls_hold(&pool->journal.stalls, !tide_pool_norm_known(pool), request_wait(pool));
}

void tide_engine_release(tide_pool *pool)
{
    tide_stalls_release(&pool->journal.stalls);
}

tide_status tide_engine_wait_held(tide_pool *pool, bool (*ready)(const tide_pool *pool))
{
    if (ready(pool))
        return tide_monitor_failure(&pool->monitor);
    tide_engine_hold(pool);
    const tide_status status = tide_engine_wait(pool, ready);
    tide_engine_release(pool);
    return status;
}

void tide_engine_tell_updates(tide_pool *pool)
{
    if (tide_pool_updates_ended(pool))
        tide_records_updates_ended(&pool->journal.records);
}

void tide_engine_ring(tide_pool *pool)
{
    if (pool->engine.started) {
        pool->ground.device->ops->ring(pool->ground.device);
        return;
    }
    const bool holds = pool->step.is_open; /* mappings, made here, take the caller's time */
    if (holds)
        tide_engine_hold(pool);
    while (tide_pool_engine_step(pool)) {
    }
    if (holds)
        tide_engine_release(pool);
}

void tide_pool_command_done(tide_pool *pool, const tide_command *command, tide_status status)
{
    if (status != TIDE_OK)
        tide_monitor_fail(&pool->monitor, status);
    tide_manager_done(pool->engine.manager, command->id, status);
    if (status == TIDE_OK)
        tide_records_count_command(&pool->journal.records, command);
    tide_engine_tell_updates(pool);
    tide_monitor_progress(&pool->monitor);
}

/* --- open commands --- */

/* `number` is that of its copy out, if it has one. */
static void open_add(tide_pool *pool, const tide_command *command, tide_pool_command_phase phase,
                     uint64_t number)
{
    assert(pool->commands.count < TIDE_COMMANDS_OPEN_MAX);
    pool->commands.open[pool->commands.count++] =
        (tide_pool_command){.command = *command, .phase = phase, .number = number, .task.job = UINT32_MAX};
}

static void open_remove(tide_pool *pool, uint32_t i)
{
    pool->commands.open[i] = pool->commands.open[--pool->commands.count];
}

static void issue(tide_pool *pool, const tide_command *command)
{
    tide_status status = TIDE_OK;
    uint64_t number = 0;
    switch (command->kind) {
    case TIDE_COMMAND_FETCH:
        tide_pool_command_done(pool, command, tide_link_fetch(&pool->link, command));
        return;
    case TIDE_COMMAND_WRITE_BACK:
    case TIDE_COMMAND_EVICT:
        if (command->copy)
            status = tide_link_copy_out(&pool->link, command, &number);
        if (status != TIDE_OK)
            tide_pool_command_done(pool, command, status);
        else
            open_add(pool, command, command->kind == TIDE_COMMAND_EVICT ? TIDE_OPEN_UNMAP : TIDE_OPEN_COPY,
                     number);
        return;
    case TIDE_COMMAND_UPDATE:
    case TIDE_COMMAND_RESTORE:
    case TIDE_COMMAND_ACCESS:
        open_add(pool, command, TIDE_OPEN_READY, 0);
        return;
    }
}

/* Has the last use passed? Then unmap. True if the command is done. */
static bool poll_unmap(tide_pool *pool, uint32_t i)
{
    const tide_pool_command open = pool->commands.open[i];
    bool unused = false;
    tide_status status = tide_link_unused(&pool->link, open.command.device_slot, &unused);
    if (status == TIDE_OK && !unused)
        return false;
    open_remove(pool, i);
    if (status == TIDE_OK) {
        tell_stalls(pool);
        status = tide_link_leave(&pool->link, &open.command);
    }
    tide_pool_command_done(pool, &open.command, status);
    return true;
}

/* The lane may read what was copied out only when that has been seen. */
static bool poll_copy(tide_pool *pool, uint32_t i)
{
    const tide_pool_command open = pool->commands.open[i];
    bool passed;
    const tide_status status =
        tide_order_query(&pool->order, TIDE_STREAM_OUT, open.number, TIDE_SITE_LANE_OUT, &passed);
    if (status == TIDE_OK && !passed)
        return false;
    open_remove(pool, i);
    tide_pool_command_done(pool, &open.command, status);
    return true;
}

static void task_done(tide_pool *pool, uint32_t i, tide_status status)
{
    tide_pool_command open = pool->commands.open[i];
    open_remove(pool, i);
    tide_jobs_finish(&pool->jobs, &open.command, &open.task);
    tide_pool_command_done(pool, &open.command, status);
}

/* A task that waits for its slots or a job has changed nothing. */
static void task_cancel(tide_pool *pool, uint32_t i)
{
    const tide_pool_command open = pool->commands.open[i];
    assert(open.phase == TIDE_OPEN_READY && open.task.job == UINT32_MAX);
    open_remove(pool, i);
    if (open.command.kind == TIDE_COMMAND_ACCESS)
        pool->jobs.request = NULL;
    tide_manager_cancel(pool->engine.manager, open.command.id);
}

static bool poll_ready(tide_pool *pool, uint32_t i)
{
    bool started = false;
    if (pool->monitor.failure != TIDE_OK)
        return false;
    const tide_status status =
        tide_jobs_start(&pool->jobs, &pool->commands.open[i].command, &pool->commands.open[i].task, &started);
    if (status != TIDE_OK && started) {
        task_done(pool, i, status);
        return true;
    }
    if (status != TIDE_OK)
        tide_monitor_fail(
            &pool->monitor,
            status); /* it has changed nothing: giving up cancels it, and it is owed as before */
    if (!started)
        return false;
    if (pool->commands.open[i].command.tier == TIDE_TIER_DEVICE)
        task_done(pool, i, TIDE_OK);
    else
        pool->commands.open[i].phase = TIDE_OPEN_LANE;
    return true;
}

static bool poll_lane(tide_pool *pool, uint32_t i)
{
    tide_pool_command *open = &pool->commands.open[i];
    bool passed;
    const tide_status status = tide_jobs_passed(&pool->jobs, &open->command, &open->task, &passed);
    if (status == TIDE_OK && !passed)
        return false;
    task_done(pool, i, status);
    return true;
}

static bool poll_one(tide_pool *pool, uint32_t i)
{
    switch (pool->commands.open[i].phase) {
    case TIDE_OPEN_COPY:
        return poll_copy(pool, i);
    case TIDE_OPEN_UNMAP:
        return poll_unmap(pool, i);
    case TIDE_OPEN_READY:
        return poll_ready(pool, i);
    case TIDE_OPEN_LANE:
        return poll_lane(pool, i);
    case TIDE_OPEN_NONE:
        break;
    }
    return false;
}

/* Up to the first unmap, which is slow, or leaves a place to the next fetch: what came meanwhile may be more urgent. */
static bool poll_open(tide_pool *pool)
{
    bool moved = false;
    for (uint32_t i = 0; i < pool->commands.count;) {
        const bool unmaps = pool->commands.open[i].phase == TIDE_OPEN_UNMAP;
        /* Polling may drop the lock, but only the engine changes this table. */
        if (!poll_one(pool, i)) {
            i++;
            continue;
        }
        moved = true;
        if (unmaps)
            break;
    }
    return moved;
}

/* See which jobs of the update stream have passed. */
static bool poll_jobs(tide_pool *pool)
{
    if (!tide_jobs_poll(&pool->jobs))
        return false;
    tide_engine_tell_updates(pool);
    tide_monitor_progress(&pool->monitor);
    return true;
}

/* --- giving a step up --- */

/* Everything enqueued has ended: bring every open command to its end too. Tasks that had not started change
 * nothing. */
static void resolve_open(tide_pool *pool)
{
    while (pool->commands.count > 0) {
        const uint32_t last = pool->commands.count - 1;
        if (pool->commands.open[last].phase == TIDE_OPEN_READY)
            task_cancel(pool, last);
        else if (!poll_one(pool, last))
            break; /* after a synchronize nothing is pending; a device that says otherwise is reported below
                    */
    }
}

/* The manager says what of the last training step still stands; two things it can't know. */
static tide_status abort_manager(tide_pool *pool, bool norm_lost, bool update_lost)
{
    if (pool->commands.count > 0)
        return tide_fail(TIDE_ERROR_INTERNAL, "abort: %u commands never ended", pool->commands.count);
    const tide_status status =
        tide_manager_abort(pool->engine.manager, &pool->engine.abort.gave_up, &pool->engine.abort.torn);
    /* Without clipping all updates may have run while the norm that judges them is not known and now never will be;
     * and a kernel of the update stream may have failed after the engine had told that it was enqueued. */
    if (norm_lost && !pool->engine.abort.gave_up && !tide_pool_step_waits(pool, &pool->step.options))
        pool->engine.abort.torn = true;
    if (update_lost)
        pool->engine.abort.torn = true;
    return status;
}

static void answer_give_up(tide_pool *pool)
{
    tide_monitor_unlock(&pool->monitor);
    pool->ground.device->ops->synchronize(pool->ground.device);
    tide_monitor_lock(&pool->monitor);
    tide_order_synchronized(&pool->order);
    const bool norm_lost = pool->norm.phase != TIDE_NORM_IDLE && pool->norm.phase != TIDE_NORM_KNOWN;
    const bool update_lost = pool->ground.device->ops->stream_failed(pool->ground.device, TIDE_STREAM_UPDATE);
    pool->norm.phase = TIDE_NORM_IDLE;
    resolve_open(pool);
    (void)poll_jobs(pool);
    tide_status status = abort_manager(pool, norm_lost, update_lost);
    if (status == TIDE_OK)
        status = pool->ground.device->ops->recover(pool->ground.device);
    if (status == TIDE_OK)
        pool->monitor.failure = TIDE_OK;
    else
        tide_monitor_fail(&pool->monitor, status);
    pool->engine.abort.asked = false;
    tide_monitor_progress(&pool->monitor);
}

/* --- rounds --- */

/* How far has the device come with the caller's ops? Chunks of those may be copied out at once. */
static tide_status see_ops_pass(tide_pool *pool)
{
    tide_status status = TIDE_OK;
    bool passed = true;
    if (pool->engine.ends.count - pool->engine.ends.passed > TIDE_OP_ENDS_MAX)
        pool->engine.ends.passed = pool->engine.ends.count - TIDE_OP_ENDS_MAX;
    while (status == TIDE_OK && passed && pool->engine.ends.passed < pool->engine.ends.count) {
        status =
            tide_order_query(&pool->order, TIDE_STREAM_COMPUTE,
                             pool->engine.ends.numbers[(pool->engine.ends.passed + 1) % TIDE_OP_ENDS_MAX],
                             TIDE_SITE_UNMAP_COMPUTE, &passed);
        pool->engine.ends.passed += status == TIDE_OK && passed;
    }
    tide_manager_set_passed(pool->engine.manager, pool->engine.ends.passed);
    return status;
}

/* Each way of the link gets a few copies ahead, no more: what becomes urgent is not to stand behind many. Looked at only
 * while copies are about, and how far the device has come only while chunks wait to leave: where everything is resident
 * the engine is soon done with the lock. */
static tide_status look_at_link(tide_pool *pool)
{
    tide_status status = TIDE_OK;
    if (tide_manager_leaving(pool->engine.manager) > 0)
        status = see_ops_pass(pool);
    if (status != TIDE_OK || !pool->link.used)
        return status;
    bool in_busy, out_busy;
    tide_link_look(&pool->link, &in_busy, &out_busy);
    tide_manager_set_link(pool->engine.manager, in_busy, out_busy);
    return TIDE_OK;
}

/* The manager holds prefetches back while the link is busy, but not what an op waits for: that can be as many as there are
 * slots. */
static bool ask_next(tide_pool *pool, tide_command *command)
{
    if (!tide_link_has_room(&pool->link))
        return false;
    const tide_status status = look_at_link(pool);
    if (status == TIDE_OK)
        return tide_manager_next(pool->engine.manager, command);
    tide_monitor_fail(&pool->monitor, status);
    return false;
}

static bool issue_next(tide_pool *pool)
{
    bool moved = false;
    tide_command command;
    while (pool->monitor.failure == TIDE_OK && pool->commands.count < TIDE_COMMANDS_OPEN_MAX &&
           ask_next(pool, &command)) {
        tell_stalls(pool);
        tide_link_settle(&pool->link, &command); /* if that fails, the manager's command is its last */
        issue(pool, &command);
        moved = true;
    }
    tell_stalls(pool);
    tide_link_settle(&pool->link, NULL);
    /* A request becomes ready inside next(), without a command. */
    tide_monitor_progress(&pool->monitor);
    return moved;
}

bool tide_pool_engine_step(tide_pool *pool)
{
    if (pool->engine.abort.asked) {
        answer_give_up(pool);
        return true;
    }
    if (pool->monitor.failure != TIDE_OK)
        return false;
    const tide_status device = pool->ground.device->ops->failure(pool->ground.device);
    if (device != TIDE_OK) {
        tide_monitor_fail(&pool->monitor, device);
        return false;
    }
    bool moved = poll_jobs(pool);
    moved |= poll_open(pool);
    moved |= tide_pool_norm_poll(pool);
    moved |= issue_next(pool);
    if (!moved && pool->monitor.failure == TIDE_OK && pool->commands.count == 0 &&
        tide_manager_is_stuck(pool->engine.manager)) {
        tide_monitor_fail(&pool->monitor,
                          tide_fail(TIDE_ERROR_INTERNAL, "op %s can never become ready",
                                    pool->journal.tracer.op == NULL ? "(none)" : pool->journal.tracer.op));
        return true;
    }
    tell_stalls(pool);
    return moved;
}

/* Can anything that completes on the device give the engine something to do? If not, it sleeps until it is rung, and the
 * caller finds the lock free. */
static bool awaits_device(const tide_pool *pool)
{
    const bool norm_awaited = pool->norm.phase != TIDE_NORM_IDLE && pool->norm.phase != TIDE_NORM_KNOWN;
    return pool->commands.count > 0 || pool->link.used || norm_awaited || tide_jobs_busy(&pool->jobs) ||
           tide_manager_may_act(pool->engine.manager);
}

/* What the engine enqueues it also sees to its end, unless a test has it see what is not there. (Zeros on the in stream need
 * nobody.) */
__attribute__((unused)) static bool device_owes_nothing(const tide_pool *pool)
{
    tide_device_statistics device;
    pool->ground.device->ops->statistics(pool->ground.device, &device);
    return pool->ground.options.skip_wait_site > 0 ||
           (device.pending[TIDE_STREAM_OUT] == 0 && device.pending[TIDE_STREAM_HOST] == 0 &&
            device.pending[TIDE_STREAM_UPDATE] == 0);
}

void *tide_pool_engine_main(void *context)
{
    tide_pool *pool = context;
    tide_monitor_lock(&pool->monitor);
    while (!pool->engine.stopping) {
        const uint64_t ticket = pool->ground.device->ops->doorbell(pool->ground.device);
        if (tide_pool_engine_step(pool))
            continue;
        const bool events = awaits_device(pool);
        assert(events || device_owes_nothing(pool));
        tide_monitor_unlock(&pool->monitor);
        const tide_status status = pool->ground.device->ops->park(pool->ground.device, ticket, events);
        tide_monitor_lock(&pool->monitor);
        if (status != TIDE_OK)
            tide_monitor_fail(&pool->monitor, status);
    }
    tide_monitor_unlock(&pool->monitor);
    return NULL;
}

tide_status tide_engine_wait(tide_pool *pool, bool (*ready)(const tide_pool *pool))
{
    while (!ready(pool)) {
        if (pool->monitor.failure != TIDE_OK && !pool->engine.abort.asked)
            return tide_monitor_failure(&pool->monitor);
        if (pool->engine.started) {
            tide_monitor_wait(&pool->monitor);
            continue;
        }
        const uint64_t ticket = pool->ground.device->ops->doorbell(pool->ground.device);
        if (tide_pool_engine_step(pool) || ready(pool))
            continue;
        const tide_status status = pool->ground.device->ops->park(pool->ground.device, ticket, true);
        if (status != TIDE_OK)
            tide_monitor_fail(&pool->monitor, status);
    }
    return tide_monitor_failure(&pool->monitor);
}
