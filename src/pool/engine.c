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

static const char label_zero[] = "zero chunk";

enum { LINK_COMMANDS_AHEAD = 2 }; /* one that runs, one that follows at once */

static char *place_of(const tide_pool *pool, tide_chunk chunk)
{
    return pool->ground.space_address[tide_layout_chunk_space(pool->ground.layout, chunk)] +
           tide_layout_chunk_index(pool->ground.layout, chunk) * pool->ground.plan.chunk_bytes;
}

void *tide_pool_reach(const tide_pool *pool, tide_tier tier, uint32_t slot, tide_chunk chunk)
{
    if (tier == TIDE_TIER_DEVICE && !pool->ground.options.guard)
        return place_of(pool, chunk);
    return pool->ground.device->ops->slot_address(pool->ground.device, tier, slot);
}

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

/* --- moves --- */

static tide_status copy_in(tide_pool *pool, const tide_command *command)
{
    tide_marks *to = &pool->order.marks[TIDE_TIER_DEVICE][command->device_slot],
               *from = &pool->order.marks[TIDE_TIER_HOST][command->host_slot];
    const uint64_t bytes = tide_layout_chunk_used_bytes(pool->ground.layout, command->chunk);
    const tide_work work = {.label = tide_journal_copy_label(command), .tag = command->chunk};
    tide_needs needs = {0};
    tide_needs_add(&needs, to, true);
    tide_needs_add(&needs, from, false);
    tide_order_enqueue_from_engine(&pool->order, TIDE_STREAM_IN);
    assert(tide_order_may_enqueue(&pool->order, TIDE_STREAM_IN));
    tide_status status = tide_order_wait(&pool->order, TIDE_STREAM_IN, &needs);
    if (status == TIDE_OK)
        status =
            pool->ground.device->ops->copy_slot(pool->ground.device, TIDE_STREAM_IN, &work, TIDE_TIER_DEVICE,
                                                command->device_slot, command->host_slot, bytes);
    uint64_t number;
    if (status == TIDE_OK)
        status = tide_order_record(&pool->order, TIDE_STREAM_IN, &number);
    if (status != TIDE_OK)
        return status;
    tide_marks_set(to, TIDE_STREAM_IN, number, true);
    tide_marks_set(from, TIDE_STREAM_IN, number, false);
    pool->link.used = true;
    tide_records_count_bytes(&pool->journal.records, command->reason, bytes, 0);
    return TIDE_OK;
}

static tide_status zero_in(tide_pool *pool, const tide_command *command)
{
    tide_marks *marks = &pool->order.marks[TIDE_TIER_DEVICE][command->device_slot];
    const uint64_t bytes = tide_layout_chunk_used_bytes(pool->ground.layout, command->chunk);
    const tide_access access = tide_writes(TIDE_OBJECT_DEVICE_SLOT, command->device_slot);
    const tide_work work = {.label = label_zero,
                            .tag = command->chunk,
                            .bytes = (double)bytes,
                            .accesses = &access,
                            .access_count = 1};
    const tide_zero_args zero = {
        .data = tide_pool_reach(pool, TIDE_TIER_DEVICE, command->device_slot, command->chunk),
        .bytes = bytes};
    tide_needs needs = {0};
    tide_needs_add(&needs, marks, true);
    tide_order_enqueue_from_engine(&pool->order, TIDE_STREAM_IN);
    assert(tide_order_may_enqueue(&pool->order, TIDE_STREAM_IN));
    tide_status status = tide_order_wait(&pool->order, TIDE_STREAM_IN, &needs);
    if (status == TIDE_OK)
        status = pool->ground.device->ops->launch(pool->ground.device, TIDE_STREAM_IN, &work,
                                                  pool->ground.kernels->zero, &zero, sizeof zero);
    uint64_t number;
    if (status == TIDE_OK)
        status = tide_order_record(&pool->order, TIDE_STREAM_IN, &number);
    if (status == TIDE_OK)
        tide_marks_set(marks, TIDE_STREAM_IN, number, true);
    return status;
}

/* A call failed after the mapping. What was enqueued before it may still run and touch the place: it has to end first. The
 * failure is told before the device may say more. */
static tide_status fetch_undo(tide_pool *pool, const tide_command *command, char *place, tide_status status)
{
    tide_monitor_fail(&pool->monitor, status);
    tide_monitor_unlock(&pool->monitor);
    pool->ground.device->ops->synchronize(pool->ground.device);
    const tide_status undone =
        pool->ground.device->ops->unmap(pool->ground.device, command->device_slot, place);
    tide_monitor_lock(&pool->monitor);
    return undone == TIDE_OK ? status : undone;
}

static tide_status fetch(tide_pool *pool, const tide_command *command)
{
    char *place = place_of(pool, command->chunk);
    if (command->in_place)
        return copy_in(pool, command);
    tide_status status = tide_pool_place_take(pool, command->device_slot, place);
    if (status != TIDE_OK)
        return status;
    tide_tracer_chunk(&pool->journal.tracer, "map", command->chunk, "", "device",
                      tide_reason_name(command->reason));
    if (command->copy)
        status = copy_in(pool, command);
    else if (command->zero)
        status = zero_in(pool, command);
    return status == TIDE_OK ? TIDE_OK : fetch_undo(pool, command, place, status);
}

/* Enqueue the copy out of an EVICT or a WRITE_BACK. */
static tide_status copy_out(tide_pool *pool, const tide_command *command, uint64_t *number)
{
    tide_marks *from = &pool->order.marks[TIDE_TIER_DEVICE][command->device_slot],
               *to = &pool->order.marks[TIDE_TIER_HOST][command->host_slot];
    const uint64_t bytes = tide_layout_chunk_used_bytes(pool->ground.layout, command->chunk);
    const tide_work work = {.label = tide_journal_copy_label(command), .tag = command->chunk};
    tide_needs needs = {0};
    tide_needs_add(&needs, from, false);
    tide_needs_add(&needs, to, true);
    to->filled = true;
    tide_order_enqueue_from_engine(&pool->order, TIDE_STREAM_OUT);
    assert(tide_order_may_enqueue(&pool->order, TIDE_STREAM_OUT));
    tide_status status = tide_order_wait(&pool->order, TIDE_STREAM_OUT, &needs);
    if (status == TIDE_OK)
        status =
            pool->ground.device->ops->copy_slot(pool->ground.device, TIDE_STREAM_OUT, &work, TIDE_TIER_HOST,
                                                command->host_slot, command->device_slot, bytes);
    if (status == TIDE_OK)
        status = tide_order_record(&pool->order, TIDE_STREAM_OUT, number);
    if (status != TIDE_OK)
        return status;
    tide_marks_set(from, TIDE_STREAM_OUT, *number, false);
    tide_marks_set(to, TIDE_STREAM_OUT, *number, true);
    pool->link.used = true;
    tide_records_count_bytes(&pool->journal.records, command->reason, 0, bytes);
    return TIDE_OK;
}

/* --- open commands --- */

/* `number` is that of its copy out, if it has one. */
static void open_add(tide_pool *pool, const tide_command *command, tide_pool_command_phase phase,
                     uint64_t number)
{
    assert(pool->commands.count < TIDE_COMMANDS_OPEN_MAX);
    pool->commands.open[pool->commands.count++] =
        (tide_pool_command){.command = *command, .phase = phase, .number = number, .job = UINT32_MAX};
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
        tide_pool_command_done(pool, command, fetch(pool, command));
        return;
    case TIDE_COMMAND_WRITE_BACK:
    case TIDE_COMMAND_EVICT:
        if (command->copy)
            status = copy_out(pool, command, &number);
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

/* Have all uses of the slot been seen to pass? Later ones than at the command's issue there are none. */
static tide_status slot_unused(tide_pool *pool, uint32_t slot, bool *unused)
{
    static const struct {
        tide_stream stream;
        tide_wait_site site;
    } waits[] = {{TIDE_STREAM_COMPUTE, TIDE_SITE_UNMAP_COMPUTE},
                 {TIDE_STREAM_IN, TIDE_SITE_UNMAP_IN},
                 {TIDE_STREAM_OUT, TIDE_SITE_UNMAP_OUT}};
    const tide_marks *marks = &pool->order.marks[TIDE_TIER_DEVICE][slot];
    *unused = true;
    for (size_t i = 0; i < sizeof waits / sizeof waits[0] && *unused; i++) {
        const tide_status status = tide_order_query(&pool->order, waits[i].stream,
                                                    marks->used[waits[i].stream], waits[i].site, unused);
        if (status != TIDE_OK)
            return status;
    }
    assert(!*unused ||
           marks->used[TIDE_STREAM_UPDATE] <= pool->order.seen[TIDE_STREAM_UPDATE]); /* by its copy out */
    return TIDE_OK;
}

/* Has the last use passed? Then unmap. True if the command is done. */
static bool poll_unmap(tide_pool *pool, uint32_t i)
{
    const tide_pool_command open = pool->commands.open[i];
    bool unused = false;
    tide_status status = slot_unused(pool, open.command.device_slot, &unused);
    if (status == TIDE_OK && !unused)
        return false;
    open_remove(pool, i);
    if (status == TIDE_OK) {
        tell_stalls(pool);
        status = tide_pool_place_leave(pool, open.command.device_slot, place_of(pool, open.command.chunk));
        if (status == TIDE_OK)
            tide_tracer_chunk(&pool->journal.tracer, "unmap", open.command.chunk, "device",
                              open.command.copy ? "host" : "", tide_reason_name(open.command.reason));
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
    tide_pool_task_finish(pool, &open);
    if (open.command.kind == TIDE_COMMAND_ACCESS)
        pool->jobs.request = NULL;
    tide_pool_command_done(pool, &open.command, status);
}

/* A task that waits for its slots or a job has changed nothing. */
static void task_cancel(tide_pool *pool, uint32_t i)
{
    const tide_pool_command open = pool->commands.open[i];
    assert(open.phase == TIDE_OPEN_READY && open.job == UINT32_MAX);
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
    const tide_status status = tide_pool_task_start(pool, &pool->commands.open[i], &started);
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
    bool passed;
    tide_status status = tide_order_query(&pool->order, TIDE_STREAM_HOST, pool->commands.open[i].number,
                                          TIDE_SITE_LANE_DONE, &passed);
    if (status == TIDE_OK && !passed)
        return false;
    if (status == TIDE_OK)
        status = tide_pool_task_status(pool, &pool->commands.open[i]);
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
    (void)tide_pool_jobs_poll(pool);
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
    tide_device_statistics device;
    pool->ground.device->ops->statistics(pool->ground.device, &device);
    const uint64_t ahead = pool->ground.device->ops->asynchronous ? LINK_COMMANDS_AHEAD : 1;
    const uint64_t in = device.pending[TIDE_STREAM_IN], out = device.pending[TIDE_STREAM_OUT];
    tide_manager_set_link(pool->engine.manager, in >= ahead, out >= ahead);
    pool->link.used = in > 0 || out > 0;
    return TIDE_OK;
}

/* The manager holds prefetches back while the link is busy, but not what an op waits for: that can be as many as there
 * are slots. A stream without room has copies under way, whose ends bring the engine back. */
static bool link_has_room(const tide_pool *pool)
{
    const tide_device_ops *ops = pool->ground.device->ops;
    return ops->room(pool->ground.device, TIDE_STREAM_IN, false) &&
           ops->room(pool->ground.device, TIDE_STREAM_OUT, false);
}

static bool ask_next(tide_pool *pool, tide_command *command)
{
    if (!link_has_room(pool))
        return false;
    const tide_status status = look_at_link(pool);
    if (status == TIDE_OK)
        return tide_manager_next(pool->engine.manager, command);
    tide_monitor_fail(&pool->monitor, status);
    return false;
}

static bool takes_left_slot(const tide_pool *pool, const tide_command *command)
{
    return command->kind == TIDE_COMMAND_FETCH && !command->in_place &&
           tide_pool_place_is_next(pool, command->device_slot, place_of(pool, command->chunk));
}

static bool issue_next(tide_pool *pool)
{
    bool moved = false;
    tide_command command;
    while (pool->monitor.failure == TIDE_OK && pool->commands.count < TIDE_COMMANDS_OPEN_MAX &&
           ask_next(pool, &command)) {
        tell_stalls(pool);
        if (!takes_left_slot(pool, &command))
            tide_pool_place_settle(pool); /* if that fails, the manager's command is its last */
        issue(pool, &command);
        moved = true;
    }
    tell_stalls(pool);
    tide_pool_place_settle(pool);
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
    bool moved = tide_pool_jobs_poll(pool);
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
    return pool->commands.count > 0 || pool->link.used || norm_awaited || tide_pool_jobs_busy(pool) ||
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
