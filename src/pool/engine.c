#include "src/pool/engine.h"

#include <assert.h>

bool tide_engine_is_valid(const tide_engine *engine)
{
    return tide_commands_is_valid(&engine->commands) && tide_running_tasks_is_valid(engine->running_tasks) &&
           tide_norm_is_valid(engine->norm) && engine->ends.passed <= engine->ends.count &&
           (!engine->poisoned || engine->poisonings > 0);
}

/* --- conditions for tide_engine_wait --- */

static bool request_ready(const tide_engine *engine)
{
    return tide_manager_ready(engine->manager);
}

bool tide_engine_norm_known(const tide_engine *engine)
{
    return tide_norm_is_known(engine->norm);
}

bool tide_engine_updates_done(const tide_engine *engine)
{
    assert(tide_monitor_is_held(engine->monitor));
    return tide_manager_updates_open(engine->manager) == 0;
}

bool tide_engine_updates_ended(const tide_engine *engine)
{
    return tide_commands_updates_ended(&engine->commands);
}

static bool access_done(const tide_engine *engine)
{
    return engine->running_tasks->request == NULL;
}

static bool given_up(const tide_engine *engine)
{
    return !engine->abort.asked;
}

/* --- poisoning, terms of updates --- */

static void poison(tide_engine *engine)
{
    assert(tide_monitor_is_held(engine->monitor));
    engine->poisoned = true;
    engine->poisonings++;
}

void tide_engine_set_terms(tide_engine *engine, const tide_step_options *step, float gradient_scale)
{
    tide_counters_let_go(&engine->telemetry->counters);
    engine->running_tasks->terms =
        (tide_update_terms){.step = *step, .scale = gradient_scale, .update = engine->updates + 1};
}

/* --- the norm's verdicts --- */

static tide_status go(tide_engine *engine)
{
    const tide_norm *norm = engine->norm;
    const bool awaited = tide_norm_is_awaited(engine->context, &norm->step);
    if (awaited)
        tide_engine_set_terms(engine, &norm->step, norm->result.gradient_scale);
    assert(engine->running_tasks->terms.update == engine->updates + 1 && !engine->is_counted);
    engine->updates = engine->running_tasks->terms.update;
    engine->is_counted = true;
    return awaited ? tide_manager_release_updates(engine->manager) : TIDE_OK;
}

static tide_status skip(tide_engine *engine)
{
    engine->telemetry->counters.sums.skipped++;
    tide_counters_let_go(&engine->telemetry->counters);
    return tide_manager_skip_updates(engine->manager);
}

static tide_status say_poisoned(tide_engine *engine)
{
    poison(engine);
    return tide_fail(
        TIDE_ERROR_NONFINITE,
        "step %llu: the gradient norm is not finite, and updates did not wait for it; the pool is poisoned",
        (unsigned long long)engine->telemetry->tracer.step);
}

static bool poll_norm(tide_engine *engine)
{
    tide_norm_verdict verdict;
    tide_status status = tide_norm_poll(engine->norm, &verdict);
    if (status == TIDE_OK && verdict == TIDE_NORM_WAIT)
        return false;
    if (verdict == TIDE_NORM_GO)
        status = go(engine);
    else if (verdict == TIDE_NORM_SKIP)
        status = skip(engine);
    else if (verdict == TIDE_NORM_POISONS)
        status = say_poisoned(engine);
    if (status != TIDE_OK)
        tide_monitor_fail(engine->monitor, status); /* if reading the norm failed, the norm stays unknown */
    tide_monitor_progress(engine->monitor);
    assert(tide_engine_is_valid(engine));
    return true;
}

/* --- giving a step up --- */

/* Undo the last training step in the manager, which says whether it could (gave_up) or params are undefined
 * (poisoned). The manager does not know of two cases that also poison the pool. */
static tide_status abort_manager(tide_engine *engine, bool norm_lost, bool update_lost)
{
    tide_give_up *abort = &engine->abort;
    const tide_status status = tide_manager_abort(engine->manager, &abort->gave_up, &abort->poisoned);
    /* 1. The updates did not wait for the norm and may all have run, but the norm, which says whether they
     * were right, is lost. 2. A kernel on the update stream failed after the engine had told the manager that
     * the update was done. */
    if (norm_lost && !abort->gave_up && !tide_norm_is_awaited(engine->context, &engine->norm->step))
        abort->poisoned = true;
    if (update_lost)
        abort->poisoned = true;
    return status;
}

static void answer_give_up(tide_engine *engine)
{
    tide_device *device = engine->context->device;
    tide_monitor_unlock(engine->monitor);
    tide_context_abort(engine->context, "a step was given up");
    device->ops->synchronize(device);
    tide_monitor_lock(engine->monitor);
    tide_order_synchronized(engine->order);
    const bool norm_lost = tide_norm_lose(engine->norm);
    const bool update_lost = device->ops->stream_failed(device, TIDE_STREAM_UPDATE);
    tide_status status = tide_commands_resolve(&engine->commands);
    if (status == TIDE_OK)
        status = abort_manager(engine, norm_lost, update_lost);
    if (status == TIDE_OK)
        status = device->ops->recover(device);
    if (status == TIDE_OK && tide_context_has_peers(engine->context))
        status = tide_comm_failure(engine->context->options.ranks.comm); /* final */
    if (status == TIDE_OK)
        tide_monitor_clear(engine->monitor);
    else
        tide_monitor_fail(engine->monitor, status);
    engine->abort.asked = false;
    tide_monitor_progress(engine->monitor);
    assert(tide_engine_is_valid(engine));
}

/* Undo the counts of the training step that was given up, as if it had not begun. */
static void forget_step(tide_engine *engine)
{
    tide_tracer_given_up(&engine->telemetry->tracer);
    tide_counters_drop(&engine->telemetry->counters);
    tide_measure_step_forget(&engine->telemetry->measure);
    assert(engine->telemetry->tracer.step > 0 && engine->updates >= engine->is_counted);
    engine->updates -= engine->is_counted;
    engine->is_counted = false;
    engine->telemetry->tracer.step--;
}

tide_status tide_engine_give_up(tide_engine *engine)
{
    engine->norm->skipped_in_row = 0;
    engine->abort = (tide_give_up){.asked = true};
    tide_engine_ring(engine, false);
    const tide_status status = tide_engine_wait(engine, given_up);
    engine->running_tasks->request = NULL;
    if (status != TIDE_OK)
        return status;
    if (engine->poisoned || engine->abort.poisoned || engine->abort.gave_up)
        engine->norm->has_result = false;
    tide_tracer_look(&engine->telemetry->tracer, engine->manager);
    if (engine->abort.poisoned) {
        tide_measure_step_forget(&engine->telemetry->measure);
        poison(engine);
    } else if (engine->abort.gave_up)
        forget_step(engine);
    assert(tide_engine_is_valid(engine));
    return TIDE_OK;
}

void tide_engine_recovered(tide_engine *engine)
{
    assert(tide_monitor_is_held(engine->monitor) && engine->poisoned);
    engine->poisoned = false;
}

/* --- rounds --- */

/* Count the caller's ops that the device has finished. Chunks that those ops used can be copied out at
 * once. */
static tide_status see_ops_pass(tide_op_ends *ends, tide_order *order)
{
    tide_status status = TIDE_OK;
    bool passed = true;
    if (ends->count - ends->passed > TIDE_OP_ENDS_MAX)
        ends->passed = ends->count - TIDE_OP_ENDS_MAX;
    while (status == TIDE_OK && passed && ends->passed < ends->count) {
        status =
            tide_order_query(order, TIDE_STREAM_COMPUTE, ends->numbers[(ends->passed + 1) % TIDE_OP_ENDS_MAX],
                             TIDE_SITE_UNMAP_COMPUTE, &passed);
        ends->passed += status == TIDE_OK && passed;
    }
    assert(ends->passed <= ends->count);
    return status;
}

/* Tell the manager which link streams have enough copies enqueued, and which ops have finished. Only a few
 * copies are enqueued ahead on each link stream, so that an urgent copy does not queue behind many. The
 * engine asks about the streams only while copies are pending, and about ops only while the eviction queue
 * has chunks, so that it holds the lock for a short time where everything is resident. */
static tide_status look_at_link(tide_engine *engine)
{
    tide_status status = TIDE_OK;
    if (tide_manager_evicting(engine->manager) > 0) {
        status = see_ops_pass(&engine->ends, engine->order);
        tide_manager_set_passed(engine->manager, engine->ends.passed);
    }
    if (status != TIDE_OK || !engine->link->used)
        return status;
    bool in_busy, out_busy;
    tide_link_look(engine->link, &in_busy, &out_busy);
    tide_manager_set_link(engine->manager, in_busy, out_busy);
    return TIDE_OK;
}

/* Ask the manager for the next command, unless a link stream has no space for another. While the link is busy
 * the manager delays prefetches, but it never delays fetches for which an op waits, and there can be as many
 * of those as slots. */
static bool ask_next(tide_engine *engine, tide_command *command)
{
    if (!tide_link_has_capacity(engine->link))
        return false;
    const tide_status status = look_at_link(engine);
    if (status == TIDE_OK)
        return tide_manager_next(engine->manager, command);
    tide_monitor_fail(engine->monitor, status);
    return false;
}

static bool issue_next(tide_engine *engine)
{
    bool moved = false;
    tide_command command;
    while (engine->monitor->failure == TIDE_OK && engine->commands.count < TIDE_COMMANDS_OPEN_MAX &&
           ask_next(engine, &command)) {
        tide_commands_tell_stalls(&engine->commands);
        tide_link_settle(engine->link, &command); /* if that fails, the engine asks for no further command */
        tide_commands_issue(&engine->commands, &command);
        moved = true;
    }
    tide_commands_tell_stalls(&engine->commands);
    tide_link_settle(engine->link, NULL);
    /* A request can become ready inside tide_manager_next, without a command: wake the caller. */
    tide_monitor_progress(engine->monitor);
    return moved;
}

/* Is a request open although no command is open and the manager has none: will it never be ready? */
static bool is_stuck(const tide_engine *engine)
{
    return engine->monitor->failure == TIDE_OK && engine->commands.count == 0 &&
           tide_manager_is_stuck(engine->manager);
}

bool tide_engine_round(tide_engine *engine)
{
    assert(tide_monitor_is_held(engine->monitor));
    if (engine->abort.asked) {
        answer_give_up(engine);
        return true;
    }
    if (tide_engine_failure(engine) != TIDE_OK)
        return false;
    tide_order_ask_anew(engine->order);
    bool moved = tide_commands_poll(&engine->commands);
    moved |= poll_norm(engine);
    moved |= issue_next(engine);
    if (!moved && is_stuck(engine)) {
        const char *op = engine->telemetry->tracer.op;
        tide_monitor_fail(engine->monitor, tide_fail(TIDE_ERROR_INTERNAL, "op %s can never become ready",
                                                     op == NULL ? "(none)" : op));
        return true;
    }
    tide_commands_tell_stalls(&engine->commands);
    return moved;
}

tide_status tide_engine_failure(tide_engine *engine)
{
    tide_monitor *monitor = engine->monitor;
    if (monitor->failure == TIDE_OK) {
        const tide_status failed = engine->context->device->ops->failure(engine->context->device);
        if (failed != TIDE_OK)
            tide_monitor_fail(monitor, failed);
    }
    return tide_monitor_failure(monitor);
}

/* --- the caller's side of it --- */

void tide_engine_hold(tide_engine *engine)
{
    tide_chunk chunk;
    const tide_request_wait wait = tide_manager_request_wait(engine->manager, &chunk);
    tide_stalls_hold(&engine->telemetry->stalls, !tide_norm_is_known(engine->norm), wait, chunk);
}

void tide_engine_ring(tide_engine *engine, bool held_up)
{
    assert(tide_monitor_is_held(engine->monitor));
    if (engine->started) {
        engine->context->device->ops->ring(engine->context->device);
        return;
    }
    if (held_up)
        tide_engine_hold(engine);
    while (tide_engine_round(engine)) {
    }
    if (held_up)
        tide_stalls_release(&engine->telemetry->stalls);
}

tide_status tide_engine_wait(tide_engine *engine, tide_engine_ready ready)
{
    tide_device *device = engine->context->device;
    while (!ready(engine)) {
        if (engine->monitor->failure != TIDE_OK && !engine->abort.asked)
            break;
        if (engine->started) {
            tide_monitor_wait(engine->monitor);
            continue;
        }
        const uint64_t ticket = device->ops->doorbell(device);
        if (tide_engine_round(engine) || ready(engine))
            continue;
        const tide_status status = device->ops->park(device, ticket, true);
        if (status != TIDE_OK)
            tide_monitor_fail(engine->monitor, status);
    }
    return tide_monitor_failure(engine->monitor);
}

tide_status tide_engine_wait_held(tide_engine *engine, tide_engine_ready ready)
{
    if (ready(engine))
        return tide_monitor_failure(engine->monitor);
    tide_engine_hold(engine);
    const tide_status status = tide_engine_wait(engine, ready);
    tide_stalls_release(&engine->telemetry->stalls);
    return status;
}

tide_status tide_engine_wait_request(tide_engine *engine)
{
    const bool ready = tide_manager_ready(engine->manager);
    if (!ready || tide_manager_may_act(engine->manager))
        tide_engine_ring(engine, true);
    return ready ? tide_monitor_failure(engine->monitor) : tide_engine_wait_held(engine, request_ready);
}

tide_status tide_engine_settle(tide_engine *engine)
{
    const tide_status status = tide_engine_wait(engine, tide_engine_norm_known);
    return status == TIDE_OK ? tide_engine_wait(engine, tide_engine_updates_done) : status;
}

tide_status tide_engine_access(tide_engine *engine, tide_access_request *request)
{
    assert(engine->running_tasks->request == NULL);
    engine->running_tasks->request = request;
    tide_engine_ring(engine, false);
    return tide_engine_wait(engine, access_done);
}
