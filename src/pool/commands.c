#include "src/pool/commands.h"

#include <assert.h>

bool tide_commands_is_valid(const tide_commands *commands)
{
    if (commands->count > TIDE_COMMANDS_OPEN_MAX)
        return false;
    for (uint32_t i = 0; i < commands->count; i++) {
        const tide_open_command *open = &commands->open[i];
        const bool moves =
            open->command.kind == TIDE_COMMAND_EVICT || open->command.kind == TIDE_COMMAND_WRITE_BACK;
        if (moves != (open->phase == TIDE_OPEN_COPY || open->phase == TIDE_OPEN_UNMAP) ||
            (moves && open->running != NULL))
            return false;
    }
    return true;
}

/* --- reports to counters, stalls and trace --- */

bool tide_commands_updates_ended(const tide_commands *commands)
{
    return !tide_running_tasks_busy(commands->running_tasks) &&
           tide_manager_updates_open(commands->manager) == 0;
}

void tide_commands_tell_updates(tide_commands *commands)
{
    tide_counters *counters = &commands->telemetry->counters;
    if (tide_commands_updates_ended(commands))
        tide_counters_updates_ended(counters);
    else if (counters->ending > 0 && !tide_running_tasks_busy_for(commands->running_tasks, counters->ending))
        tide_counters_ended(counters);
}

void tide_commands_tell_stalls(tide_commands *commands)
{
    tide_stalls *stalls = &commands->telemetry->stalls;
    tide_chunk chunk;
    if (!stalls->held)
        return;
    const tide_request_wait wait = tide_manager_request_wait(commands->manager, &chunk);
    tide_stalls_tell(stalls, !tide_norm_is_known(commands->norm), wait, chunk);
}

static void tell_move(const tide_commands *commands, const tide_open_command *open)
{
    static const tide_trace_move moves[] = {[TIDE_COMMAND_FETCH] = TIDE_TRACE_FETCH,
                                            [TIDE_COMMAND_EVICT] = TIDE_TRACE_EVICT,
                                            [TIDE_COMMAND_WRITE_BACK] = TIDE_TRACE_WRITE_BACK};
    const tide_tracer *tracer = &commands->telemetry->tracer;
    tide_device *device = commands->link->context->device;
    const tide_command *command = &open->command;
    if (!tracer->on || command->kind > TIDE_COMMAND_WRITE_BACK)
        return;
    tide_trace_event event = tide_tracer_event(tracer, TIDE_TRACE_MOVE);
    event.step = tide_counters_step(&commands->telemetry->counters, command->reason);
    event.begin_ns = open->issued_ns;
    event.end_ns = device->ops->now_ns(device);
    event.id = open->id;
    event.move = moves[command->kind];
    event.chunk = command->chunk;
    event.reason = command->reason;
    event.device_slot = command->device_slot;
    event.host_slot = command->host_slot;
    event.copied = command->copy;
    event.zeroed = command->zero;
    event.in_place = command->in_place;
    tide_tracer_tell(tracer, &event);
}

static void done(tide_commands *commands, const tide_open_command *open, tide_status status)
{
    const tide_command *command = &open->command;
    tide_tracer *tracer = &commands->telemetry->tracer;
    assert(tide_monitor_is_held(commands->monitor));
    if (status != TIDE_OK)
        tide_monitor_fail(commands->monitor, status);
    tide_manager_done(commands->manager, command->id, status);
    if (status == TIDE_OK) {
        tell_move(commands, open);
        tide_counters_count_command(&commands->telemetry->counters, command);
    }
    tide_tracer_brought_on(tracer, open->id);
    tide_tracer_look(tracer, commands->manager);
    tide_commands_tell_updates(commands);
    tide_monitor_progress(commands->monitor);
}

/* --- open commands --- */

static tide_open_command take(tide_commands *commands, uint32_t i)
{
    const tide_open_command taken = commands->open[i];
    assert(i < commands->count);
    commands->open[i] = commands->open[--commands->count];
    assert(tide_commands_is_valid(commands));
    return taken;
}

/* With a trace: give a move its id and begin time, and trace its chunk's new state. */
static void tell_issued(tide_commands *commands, tide_open_command *open)
{
    tide_tracer *tracer = &commands->telemetry->tracer;
    tide_device *device = commands->link->context->device;
    if (!tracer->on)
        return;
    open->id = tide_link_number(commands->link, &open->command);
    open->issued_ns = device->ops->now_ns(device);
    tide_tracer_look(tracer, commands->manager);
}

void tide_commands_issue(tide_commands *commands, const tide_command *command)
{
    const bool fetches = command->kind == TIDE_COMMAND_FETCH, evicts = command->kind == TIDE_COMMAND_EVICT,
               moves = fetches || evicts || command->kind == TIDE_COMMAND_WRITE_BACK;
    tide_open_command open = {.command = *command,
                              .phase = evicts  ? TIDE_OPEN_UNMAP
                                       : moves ? TIDE_OPEN_COPY
                                               : TIDE_OPEN_READY};
    tide_status status = TIDE_OK;
    assert(tide_monitor_is_held(commands->monitor) && commands->count < TIDE_COMMANDS_OPEN_MAX);
    if (moves)
        tell_issued(commands, &open);
    if (fetches)
        status = tide_link_fetch(commands->link, command, open.id);
    else if (moves && command->copy)
        status = tide_link_copy(commands->link, command, open.id, &open.number);
    if (fetches || status != TIDE_OK)
        done(commands, &open, status);
    else
        commands->open[commands->count++] = open;
    assert(tide_commands_is_valid(commands));
}

/* Has the work for which the command waits ended? The engine must see a copy out end before it gives a task
 * that reads the copy to the host executor. */
static tide_status ask_passed(tide_commands *commands, const tide_open_command *open, bool *passed)
{
    switch (open->phase) {
    case TIDE_OPEN_COPY:
        return tide_order_query(commands->order, TIDE_STREAM_OUT, open->number, TIDE_SITE_LANE_OUT, passed);
    case TIDE_OPEN_UNMAP:
        return tide_link_unused(commands->link, open->command.device_slot, passed);
    default:
        return tide_running_tasks_passed(commands->running_tasks, open, passed);
    }
}

/* End a command whose awaited work has ended, or which has failed with `status`. */
static void end(tide_commands *commands, uint32_t i, tide_status status)
{
    const tide_open_command open = take(commands, i);
    tide_tracer_brought_on(&commands->telemetry->tracer, open.id);
    if (open.phase == TIDE_OPEN_UNMAP && status == TIDE_OK) {
        tide_commands_tell_stalls(commands);
        status = tide_link_leave(commands->link, &open.command, open.id);
    } else if (open.phase == TIDE_OPEN_READY || open.phase == TIDE_OPEN_EXECUTOR)
        tide_running_tasks_finish(commands->running_tasks, &open);
    done(commands, &open, status);
}

/* Cancel a task that has not started and so has changed nothing. */
static void task_cancel(tide_commands *commands, uint32_t i)
{
    const tide_open_command open = take(commands, i);
    assert(open.phase == TIDE_OPEN_READY && open.running == NULL);
    tide_running_tasks_finish(commands->running_tasks, &open);
    tide_manager_cancel(commands->manager, open.command.id);
}

/* Start a waiting task, if its slots are ready. True if it started. This may release the lock; the table
 * stays, since only the engine changes it. */
static bool poll_ready(tide_commands *commands, uint32_t i)
{
    tide_open_command *open = &commands->open[i];
    bool started = false;
    if (commands->monitor->failure != TIDE_OK)
        return false;
    const tide_status status = tide_running_tasks_start(commands->running_tasks, open, &started);
    if (status != TIDE_OK && !started) /* giving up cancels the task; its update stays pending */
        tide_monitor_fail(commands->monitor, status);
    if (!started)
        return false;
    if (status == TIDE_OK && open->command.tier == TIDE_TIER_HOST)
        open->phase = TIDE_OPEN_EXECUTOR;
    else
        end(commands, i, status);
    return true;
}

static bool poll_one(tide_commands *commands, uint32_t i)
{
    bool passed = false;
    if (commands->open[i].phase == TIDE_OPEN_READY)
        return poll_ready(commands, i);
    const tide_status status = ask_passed(commands, &commands->open[i], &passed);
    if (status == TIDE_OK && !passed)
        return false;
    end(commands, i, status);
    return true;
}

static bool poll_running_tasks(tide_commands *commands)
{
    if (!tide_running_tasks_poll(commands->running_tasks))
        return false;
    assert(tide_running_tasks_is_valid(commands->running_tasks));
    tide_commands_tell_updates(commands);
    tide_monitor_progress(commands->monitor);
    return true;
}

/* Return after the first unmap: either it took long, so the manager may have a more urgent command, or it
 * left a slot mapped for the next fetch. */
bool tide_commands_poll(tide_commands *commands)
{
    bool moved = poll_running_tasks(commands);
    assert(tide_monitor_is_held(commands->monitor));
    for (uint32_t i = 0; i < commands->count;) {
        const bool unmaps = commands->open[i].phase == TIDE_OPEN_UNMAP;
        if (!poll_one(commands, i)) {
            i++;
            continue;
        }
        moved = true;
        if (unmaps)
            break;
    }
    return moved;
}

tide_status tide_commands_resolve(tide_commands *commands)
{
    while (commands->count > 0) {
        const uint32_t last = commands->count - 1;
        if (commands->open[last].phase == TIDE_OPEN_READY)
            task_cancel(commands, last);
        else if (!poll_one(commands, last))
            break; /* the device has ended all work, so each command must end */
    }
    (void)poll_running_tasks(commands);
    return commands->count == 0
               ? TIDE_OK
               : tide_fail(TIDE_ERROR_INTERNAL, "abort: %u commands never ended", commands->count);
}
