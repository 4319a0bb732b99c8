/* The manager: needs, creation, next and done, queries, validity. Steps and ops are in manager_step.c.
 *
 * How many slots the manager needs, and why these are enough:
 *
 *   device   the largest op, because its params' chunks and one slice's are pinned together. A device
 *            update's chunks are not pinned while they are being assembled, so it waits for the op to end.
 *   host     a host task's chunks. Nothing else is ever pinned there.
 *   total    one for every chunk, and one more. While no command is open, every chunk needs only one of its
 *            slots, so at least one slot is free or has a second copy that can be dropped at once. A chunk
 *            can always move into that slot: by an eviction to the host, by a fetch to the device, or by a
 *            promotion to the device, which frees a host slot.
 */
#include "chunk/manager_internal.h"

#include "base/minmax.h"

#include <assert.h>
#include <stdlib.h>

enum { SPARE_SLOTS = 1 };

/* --- needs --- */

/* The most PARAM chunks that an op uses. */
static uint32_t most_chunks(const tide_ops *ops)
{
    uint32_t most = 0;
    for (tide_op op = 0; op < ops->count; op++)
        most = tide_max_u32(most, ops->records[op].chunks.count);
    return most;
}

void tide_manager_needs(const tide_ops *ops, tide_placement placement, tide_slot_needs *needs)
{
    const uint32_t task = TIDE_TASK_CHUNKS_MAX; /* slots of a task */
    *needs = (tide_slot_needs){.host_slots = task,
                               .total_slots = tide_layout_chunk_count(ops->layout) + SPARE_SLOTS};
    needs->largest_op_slots = tide_ops_largest(ops, &needs->largest_op);
    needs->device_slots = needs->largest_op_slots > 0 ? needs->largest_op_slots : 1;
    if (placement == TIDE_PLACEMENT_DEVICE && needs->device_slots < task)
        needs->device_slots = task;
    if (tide_layout_shard(ops->layout).ranks == 1)
        return;
    needs->frames = tide_frames_needed(ops, false);
    needs->frames_ahead = tide_frames_needed(ops, true);
    /* the open op, the chunks of the next one, and the state for the update of one of them */
    needs->device_slots_ahead = tide_max_u32(needs->device_slots, needs->largest_op_slots + most_chunks(ops) +
                                                                      (placement != TIDE_PLACEMENT_HOST));
}

static tide_status check_slots(const tide_ops *ops, const tide_manager_options *o,
                               const tide_slot_needs *needs)
{
    if (o->device_slots < needs->device_slots)
        return tide_fail(
            TIDE_ERROR_BUDGET,
            "op %s needs %u chunks on the device at once, there are %u device slots, %u are needed",
            ops->count ? ops->records[needs->largest_op].name : "(none)", needs->largest_op_slots,
            o->device_slots, needs->device_slots);
    if (o->host_slots < needs->host_slots)
        return tide_fail(TIDE_ERROR_BUDGET, "an update on the host needs %u host slots, there are %u",
                         needs->host_slots, o->host_slots);
    if ((uint64_t)o->device_slots + o->host_slots < needs->total_slots)
        return tide_fail(
            TIDE_ERROR_BUDGET, "%u chunks need %u slots, there are %u on the device and %u on the host",
            needs->total_slots - SPARE_SLOTS, needs->total_slots, o->device_slots, o->host_slots);
    if (o->frames < needs->frames)
        return tide_fail(TIDE_ERROR_BUDGET, "an op reads %u groups at once, there are %u frames",
                         needs->frames, o->frames);
    if (o->ahead && (o->frames < needs->frames_ahead || o->device_slots < needs->device_slots_ahead))
        return tide_fail(TIDE_ERROR_BUDGET,
                         "gathers ahead need %u frames and %u device slots, there are %u and %u",
                         needs->frames_ahead, needs->device_slots_ahead, o->frames, o->device_slots);
    return TIDE_OK;
}

/* --- creation --- */

static tide_status make_parts(tide_manager *m, const tide_manager_options *options)
{
    const uint32_t slots[TIDE_TIER_COUNT] = {options->device_slots, options->host_slots};
    tide_slot_needs needs = {0};
    tide_status status = tide_ops_create(&m->ops, m->layout);
    if (status == TIDE_OK) {
        tide_ops_find_modified(&m->ops);
        tide_manager_needs(&m->ops, options->placement, &needs);
        status = check_slots(&m->ops, options, &needs);
    }
    if (status == TIDE_OK)
        status = tide_tensors_create(&m->tensors, m->layout, &m->places);
    if (status == TIDE_OK)
        status = tide_pending_create(&m->pending, m->layout, &m->tensors, slots, options->placement);
    if (status == TIDE_OK)
        status = tide_places_create(&m->places, tide_layout_chunk_count(m->layout), slots);
    if (status == TIDE_OK)
        status = tide_future_create(&m->future, &m->ops, &m->pending, options->device_slots,
                                    needs.device_slots, options->prefetch);
    if (status == TIDE_OK)
        status = tide_victims_create(&m->victims, m->layout, &m->places, &m->moves, &m->future, &m->pending);
    if (status == TIDE_OK)
        status = tide_eviction_queue_create(&m->eviction_queue, &m->victims);
    if (status == TIDE_OK)
        status = tide_tasks_create(&m->tasks, &m->victims, &m->tensors, &m->pending);
    const bool peers = tide_manager_has_peers(m);
    if (status == TIDE_OK && peers)
        status =
            tide_collectives_create(&m->collectives, &m->ops, &m->tasks, options->frames, options->ahead);
    if (status == TIDE_OK)
        status = tide_request_create(&m->request, &m->ops, &m->eviction_queue, &m->tasks,
                                     peers ? &m->collectives : NULL);
    if (status == TIDE_OK)
        status = tide_prefetch_create(&m->prefetch, &m->places, &m->moves, &m->future, &m->pending);
    return status;
}

tide_status tide_manager_create(const tide_layout *layout, const tide_manager_options *options,
                                tide_manager **manager)
{
    tide_manager *m = calloc(1, sizeof *m);
    if (!m)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for %zu bytes", sizeof *m);
    m->layout = layout;
    tide_moves_init(&m->moves, layout, &m->places, &m->counters);
    const tide_status status = make_parts(m, options);
    if (status != TIDE_OK) {
        tide_manager_destroy(m);
        return status;
    }
    tide_manager_changed(m);
    *manager = m;
    return TIDE_OK;
}

void tide_manager_destroy(tide_manager *manager)
{
    if (!manager)
        return;
    tide_least_destroy(manager->least);
    tide_prefetch_destroy(&manager->prefetch);
    tide_request_destroy(&manager->request);
    tide_collectives_destroy(&manager->collectives);
    tide_tasks_destroy(&manager->tasks);
    tide_eviction_queue_destroy(&manager->eviction_queue);
    tide_victims_destroy(&manager->victims);
    tide_future_destroy(&manager->future);
    tide_places_destroy(&manager->places);
    tide_pending_destroy(&manager->pending);
    tide_tensors_destroy(&manager->tensors);
    tide_ops_destroy(&manager->ops);
    free(manager);
}

void tide_manager_set_update_seconds(tide_manager *manager, double host_seconds, double device_seconds)
{
    tide_pending_set_seconds(&manager->pending, host_seconds, device_seconds);
}

/* --- next --- */

void tide_manager_set_link(tide_manager *manager, bool in_busy, bool out_busy)
{
    if (manager->in_busy == in_busy && manager->out_busy == out_busy)
        return;
    manager->in_busy = in_busy;
    manager->out_busy = out_busy;
    manager->idle = false;
}

void tide_manager_set_passed(tide_manager *manager, uint64_t ends)
{
    tide_eviction_queue_set_passed(&manager->eviction_queue, ends);
}

bool tide_manager_may_act(const tide_manager *manager)
{
    const tide_request *request = &manager->request;
    if (manager->places.queued || manager->pending.count || manager->tasks.access.task_count ||
        (request->open && !request->ready) || tide_roll_count(&manager->collectives.roll) > 0)
        return true;
    const tide_step_plan *step = tide_future_plan(&manager->future);
    return step && step->plan->fetch_count > 0;
}

/* Try the sources of commands in order: the roll; the open request; the eviction queue; the host request;
 * updates and restores; the chunk of a gather ahead; prefetch. */
static bool find_next(tide_manager *m, tide_command *command)
{
    if (!tide_manager_may_act(m))
        return false;
    (void)tide_request_try_pin(&m->request);
    tide_turn turn = {.in_busy = m->in_busy,
                      .out_busy = m->out_busy,
                      .request_yields = tide_request_waits_for_pending(&m->request),
                      .reserved = tide_request_reserved(&m->request),
                      .assembles = true,
                      .prefetches = m->tasks.access.task_count == 0};
    const bool blocks = tide_request_waits_for_peers(&m->request);
    if (tide_collectives_next(&m->collectives, command) ||
        (blocks && tide_collectives_bring(&m->collectives, &turn, true, command)))
        return true;
    if (blocks && !turn.request_yields && tide_collectives_needs_slots(&m->collectives))
        turn.assembles = turn.prefetches = false;
    else if (tide_request_next(&m->request, &turn, command))
        return true;
    if (tide_eviction_queue_next(&m->eviction_queue, TIDE_MARKS_QUEUED, !turn.out_busy, command))
        return true;
    if (tide_tasks_access_waits(&m->tasks))
        return tide_tasks_next_access(&m->tasks, &turn, command);
    return tide_tasks_next_ready(&m->tasks, false, command) ||
           (turn.assembles && tide_tasks_next_assembly(&m->tasks, &turn, false, command)) ||
           (!blocks && tide_collectives_bring(&m->collectives, &turn, false, command)) ||
           (turn.prefetches && tide_prefetch_next(&m->prefetch, &turn, command));
}

bool tide_manager_next(tide_manager *manager, tide_command *command)
{
    manager->counters.calls++;
    if (manager->idle || tide_moves_open(&manager->moves) == TIDE_OPEN_COMMANDS_MAX)
        return false;
    tide_command found;
    const bool any = find_next(manager, &found);
    tide_manager_changed(manager);
    manager->idle = !any;
    if (any)
        *command = found;
    return any;
}

bool tide_manager_is_stuck(tide_manager *manager)
{
    const tide_request *request = &manager->request;
    const bool full = manager->collectives.early_reduces == TIDE_EARLY_REDUCES_MAX;
    const bool waiting = request->open
                             ? !request->ready || full
                             : manager->tasks.access.task_count > 0 || manager->pending.pieces_open > 0 ||
                                   tide_roll_count(&manager->collectives.roll) > 0;
    /* while the link is busy, next() may hold commands back; the owner calls it again when that changes */
    const bool later = manager->in_busy || manager->out_busy;
    return waiting && !later && manager->idle && tide_moves_open(&manager->moves) == 0;
}

/* --- done --- */

static void finish_collective(tide_manager *m, const tide_command *command, bool ok)
{
    const tide_collective *it = &command->collective;
    tide_collectives_finish(&m->collectives, ok);
    if (ok && it->kind == TIDE_COLLECTIVE_REDUCE && it->param == TIDE_PARAM_NONE)
        tide_manager_op_closed(m);
}

static void finish(tide_manager *m, uint32_t id, tide_piece_end how)
{
    const tide_command *command = tide_moves_find(&m->moves, id);
    m->counters.calls++;
    if (command->kind <= TIDE_COMMAND_WRITE_BACK)
        tide_moves_finish(&m->moves, command, how == TIDE_PIECE_DONE);
    else if (command->kind == TIDE_COMMAND_COLLECTIVE)
        finish_collective(m, command, how == TIDE_PIECE_DONE);
    else
        tide_tasks_finish(&m->tasks, command, how);
    tide_moves_close(&m->moves, id);
    tide_manager_changed(m);
}

void tide_manager_done(tide_manager *manager, uint32_t id, tide_status status)
{
    finish(manager, id, status == TIDE_OK ? TIDE_PIECE_DONE : TIDE_PIECE_FAILED);
}

void tide_manager_cancel(tide_manager *manager, uint32_t id)
{
    assert(tide_moves_find(&manager->moves, id)->kind > TIDE_COMMAND_WRITE_BACK);
    finish(manager, id, TIDE_PIECE_CANCELLED);
}

/* --- the host request --- */

tide_status tide_manager_host_request(tide_manager *manager, const tide_use *chunks, uint32_t count)
{
    if (tide_manager_step_is_open(manager))
        return tide_fail(TIDE_ERROR_STATE, "host request: a step is open");
    if (manager->phase == TIDE_PHASE_RELEASE_PENDING)
        return tide_fail(TIDE_ERROR_STATE,
                         "host request: the last step's updates are neither released nor skipped");
    if (manager->tasks.access.task_count)
        return tide_fail(TIDE_ERROR_STATE, "host request: another one is open");
    const tide_status status = tide_tasks_open_access(&manager->tasks, chunks, count);
    if (status != TIDE_OK)
        return status;
    manager->counters.calls++;
    tide_manager_changed(manager);
    return TIDE_OK;
}

/* --- queries --- */

uint32_t tide_manager_evicting(const tide_manager *manager)
{
    return manager->places.queued;
}

uint32_t tide_manager_updates_open(const tide_manager *manager)
{
    return manager->pending.pieces_open;
}

tide_request_wait tide_manager_request_wait(tide_manager *manager, tide_chunk *chunk)
{
    tide_request *request = &manager->request;
    tide_request_wait wait = TIDE_REQUEST_READY;
    if (request->open && !request->ready) {
        const bool pending = tide_request_waits_for_pending(request);
        const uint32_t free = tide_places_free(&manager->places, TIDE_TIER_DEVICE);
        wait = pending                                 ? TIDE_REQUEST_PENDING
               : tide_request_reserved(request) > free ? TIDE_REQUEST_SLOT
                                                       : TIDE_REQUEST_MOVE;
        if (tide_request_lacking(request, TIDE_REQUEST_MOVE) == TIDE_CHUNK_NONE &&
            tide_request_waits_for_peers(request))
            wait = TIDE_REQUEST_PEERS;
    }
    if (chunk != NULL)
        *chunk = wait == TIDE_REQUEST_READY ? TIDE_CHUNK_NONE : tide_request_lacking(request, wait);
    return wait;
}

tide_gradients *tide_manager_gradients(tide_manager *manager)
{
    return &manager->ops.gradients;
}

bool tide_manager_updates_on_device(const tide_manager *manager, tide_chunk param_chunk)
{
    assert(tide_pending_is_param_chunk(&manager->pending, param_chunk));
    return manager->pending.on_device[param_chunk];
}

uint32_t tide_manager_held_slot(const tide_manager *manager, tide_chunk chunk)
{
    const tide_place *place = tide_place_of(&manager->places, chunk);
    assert(tide_place_has(place, TIDE_TIER_DEVICE) && place->pins[TIDE_TIER_DEVICE] > 0);
    return place->slot[TIDE_TIER_DEVICE];
}

void tide_manager_counters_get(const tide_manager *manager, tide_manager_counters *counters)
{
    *counters = manager->counters;
    counters->re_recordings = manager->future.re_recordings;
    counters->plans = manager->future.planned;
}

/* --- validity --- */

bool tide_manager_is_valid(const tide_manager *manager)
{
    const tide_manager *m = manager;
    if (!tide_places_is_valid(&m->places, m->deep_checks) ||
        !tide_request_is_valid(&m->request, m->deep_checks))
        return false;
    if (m->request.open && !tide_manager_step_is_open(m))
        return false;
    return !m->deep_checks ||
           (tide_tensors_is_valid(&m->tensors) && tide_pending_is_valid(&m->pending) &&
            tide_gradients_is_valid(&m->ops.gradients) && tide_victims_is_valid(&m->victims) &&
            tide_eviction_queue_is_valid(&m->eviction_queue) && tide_tasks_is_valid(&m->tasks) &&
            tide_prefetch_is_valid(&m->prefetch) && tide_frames_is_valid(&m->collectives.frames));
}

void tide_manager_changed(tide_manager *manager)
{
    manager->idle = false;
    assert(tide_manager_is_valid(manager));
}
