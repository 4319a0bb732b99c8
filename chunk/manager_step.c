/* Steps, ops and slices: checks which calls are allowed, and changes the states of tensors and pending
 * updates.
 *
 * At an op's end each of its params becomes
 *   HOLD_AFTER_BWD   if this op closes its gradient
 *   HOLD_AFTER_FWD   otherwise, until the step's end
 * An activation part becomes FREE after a use with LAST, otherwise HOLD.
 */
#include "chunk/manager_internal.h"

#include <assert.h>

/* --- steps --- */

tide_status tide_manager_step_begin(tide_manager *manager, bool training, bool updates_wait)
{
    if (tide_manager_step_is_open(manager))
        return tide_fail(TIDE_ERROR_STATE, "step begin: a step is open");
    if (manager->phase == TIDE_PHASE_RELEASE_PENDING)
        return tide_fail(TIDE_ERROR_STATE,
                         "step begin: the last step's updates are neither released nor skipped");
    if (manager->tasks.access.task_count)
        return tide_fail(TIDE_ERROR_STATE, "step begin: a host request is open");
    if (manager->collectives.stopped)
        return tide_fail(TIDE_ERROR_STATE, "step begin: a step of several ranks was given up");
    if (tide_roll_count(&manager->collectives.roll) > 0)
        return tide_fail(TIDE_ERROR_STATE, "step begin: the norm of the step before is not issued");
    manager->counters.calls++;
    assert(manager->phase == TIDE_PHASE_BETWEEN && !manager->request.open);
    manager->phase = training ? TIDE_PHASE_TRAINING : TIDE_PHASE_FORWARD;
    manager->updates_wait = updates_wait;
    manager->step++;
    if (training)
        tide_pending_step_begin(&manager->pending, manager->step);
    tide_gradients_begin(&manager->ops.gradients);
    tide_future_step_begin(&manager->future, training);
    if (tide_manager_has_peers(manager)) {
        tide_roll_note(&manager->collectives.roll, TIDE_EVENT_STEP_BEGIN, training);
        tide_frames_step_begin(&manager->collectives.frames, training);
    }
    tide_manager_changed(manager);
    return TIDE_OK;
}

tide_status tide_manager_values_set(tide_manager *manager)
{
    if (tide_manager_step_is_open(manager))
        return tide_fail(TIDE_ERROR_STATE, "values set: a step is open");
    assert(tide_manager_has_peers(manager));
    tide_roll_note(&manager->collectives.roll, TIDE_EVENT_VALUES_SET, 0);
    tide_frames_forget(&manager->collectives.frames);
    return TIDE_OK;
}

static void end_training(tide_manager *m)
{
    assert(m->phase == TIDE_PHASE_TRAINING && !m->request.open);
    m->counters.zero_gradients += tide_tensors_take_zeros(&m->tensors, m->step);
    m->phase = m->updates_wait ? TIDE_PHASE_RELEASE_PENDING : TIDE_PHASE_BETWEEN;
    for (uint32_t p = 0; !m->updates_wait && p < tide_layout_params(m->layout); p++)
        tide_pending_start_complete(&m->pending, p);
}

static void end_collectives(tide_collectives *c, bool training)
{
    assert(c->closing == TIDE_OP_NONE);
    tide_roll_note(&c->roll, TIDE_EVENT_STEP_END, 0);
    tide_frames_step_end(&c->frames);
    if (training)
        (void)tide_roll_append(&c->roll, &(tide_collective){.kind = TIDE_COLLECTIVE_NORM});
}

tide_status tide_manager_step_end(tide_manager *manager)
{
    tide_chunk older;
    if (!tide_manager_step_is_open(manager))
        return tide_fail(TIDE_ERROR_STATE, "step end: no step is open");
    if (manager->request.open)
        return tide_fail(TIDE_ERROR_STATE, "step end: op %s is open",
                         manager->ops.records[manager->request.op].name);
    const tide_status gradients = tide_gradients_check_end(&manager->ops.gradients);
    if (gradients != TIDE_OK)
        return gradients;
    /* An update of the step before may still be pending for a chunk that no op of this step used. */
    if (manager->phase == TIDE_PHASE_TRAINING &&
        tide_pending_has_older(&manager->pending, manager->step, &older))
        return tide_fail(TIDE_ERROR_STATE,
                         "step end: the update of chunk %u from the step before is still pending", older);
    if (tide_roll_count(&manager->collectives.roll) > 0)
        return tide_fail(TIDE_ERROR_STATE, "step end: %u collectives are not issued",
                         tide_roll_count(&manager->collectives.roll));
    manager->counters.calls++;
    if (tide_manager_has_peers(manager))
        end_collectives(&manager->collectives, manager->phase == TIDE_PHASE_TRAINING);
    if (manager->phase == TIDE_PHASE_TRAINING)
        end_training(manager);
    else
        manager->phase = TIDE_PHASE_BETWEEN;
    tide_tensors_rest(&manager->tensors); /* in a training step only frozen params change state here */
    tide_tensors_free_activations(&manager->tensors);
    tide_future_step_end(&manager->future);
    tide_manager_changed(manager);
    return TIDE_OK;
}

tide_status tide_manager_release_updates(tide_manager *manager)
{
    if (manager->phase != TIDE_PHASE_RELEASE_PENDING)
        return tide_fail(TIDE_ERROR_STATE, "release updates: no step's updates wait");
    assert(manager->updates_wait && !manager->request.open);
    manager->phase = TIDE_PHASE_BETWEEN;
    tide_pending_start_all(&manager->pending);
    tide_manager_changed(manager);
    return TIDE_OK;
}

tide_status tide_manager_skip_updates(tide_manager *manager)
{
    if (manager->phase != TIDE_PHASE_RELEASE_PENDING)
        return tide_fail(TIDE_ERROR_STATE, "skip updates: no step's updates wait");
    manager->phase = TIDE_PHASE_BETWEEN;
    tide_pending_restore(&manager->pending);
    tide_manager_changed(manager);
    return TIDE_OK;
}

/* --- ops --- */

static tide_status check_begin(tide_manager *m, tide_op op)
{
    if (op >= m->ops.count)
        return tide_fail(TIDE_ERROR_ARGUMENT, "begin: there is no op %u", op);
    const tide_op_record *record = &m->ops.records[op];
    if (!tide_manager_step_is_open(m))
        return tide_fail(TIDE_ERROR_STATE, "begin of op %s: no step is open", record->name);
    if (m->request.open)
        return tide_fail(TIDE_ERROR_STATE, "begin of op %s: op %s is open", record->name,
                         m->ops.records[m->request.op].name);
    if (m->phase == TIDE_PHASE_FORWARD && record->pass != TIDE_PASS_FORWARD)
        return tide_fail(TIDE_ERROR_STATE, "begin of op %s: it goes backward, the pass is forward only",
                         record->name);
    return tide_gradients_check(&m->ops.gradients, op);
}

tide_status tide_manager_begin(tide_manager *manager, tide_op op)
{
    const tide_status status = check_begin(manager, op);
    if (status != TIDE_OK)
        return status;
    manager->counters.calls++;
    tide_future_schedule_step(&manager->future, op, TIDE_SLICE_NONE);
    if (tide_manager_has_peers(manager)) {
        tide_roll_note(&manager->collectives.roll, TIDE_EVENT_OP_BEGIN, op);
        tide_frames_begin(&manager->collectives.frames, op);
    }
    tide_request_open(&manager->request, op);
    (void)tide_request_try_pin(&manager->request);
    tide_manager_changed(manager);
    return TIDE_OK;
}

/* The param's place holds its gradient: its update may start when those of its chunks' other params do. */
static void hold_gradient(tide_manager *m, uint32_t param)
{
    tide_tensors_set_param(&m->tensors, param, TIDE_TENSOR_HOLD_AFTER_BWD);
    if (!m->updates_wait)
        tide_pending_start_complete(&m->pending, param);
}

/* Does the end of this op close a gradient? */
static bool closes_any(const tide_manager *m, tide_op op)
{
    const tide_op_record *record = &m->ops.records[op];
    for (uint32_t i = 0; i < record->param_count; i++)
        if (tide_gradients_closes(&m->ops.gradients, op, &record->params[i]))
            return true;
    return false;
}

/* Change the states of the op's params. `reduced`: the gradients that it closes will stand in their params'
 * places when its REDUCE has been issued. */
static void end_params(tide_manager *m, tide_op op, bool reduced)
{
    const tide_op_record *record = &m->ops.records[op];
    for (uint32_t i = 0; i < record->param_count; i++) {
        const uint32_t param = record->params[i].tensor;
        if (!tide_gradients_closes(&m->ops.gradients, op, &record->params[i])) {
            tide_tensors_set_param(&m->tensors, param, TIDE_TENSOR_HOLD_AFTER_FWD);
            continue;
        }
        assert(m->phase == TIDE_PHASE_TRAINING);
        tide_tensors_take_gradient(&m->tensors, param, m->step, true);
        if (!reduced)
            hold_gradient(m, param);
    }
    tide_gradients_end(&m->ops.gradients, op);
}

/* The op's uses of its chunks have ended: of those that its end modifies, or only of the others. */
static void end_uses(tide_manager *m, tide_op op, uint32_t first_use, bool modified, uint64_t ends)
{
    const tide_op_record *record = &m->ops.records[op];
    for (uint32_t i = 0; i < record->chunks.count; i++)
        if (record->modifies[i] == modified)
            tide_eviction_queue_use_ended(&m->eviction_queue, &record->chunks.list[i], 1,
                                          first_use == TIDE_USE_NONE ? TIDE_USE_NONE : first_use + i, ends);
}

tide_status tide_manager_end(tide_manager *manager)
{
    tide_request *request = &manager->request;
    if (!request->open || !request->ready)
        return tide_fail(TIDE_ERROR_STATE, "end: no op is open and ready");
    assert(tide_manager_step_is_open(manager) && request->pinned_count == request->pin_count);
    const tide_op op = request->op;
    const tide_chunk_set *chunks = &manager->ops.records[op].chunks;
    const bool peers = tide_manager_has_peers(manager), reduced = peers && closes_any(manager, op);
    manager->counters.calls++;
    if (peers)
        tide_roll_note(&manager->collectives.roll, TIDE_EVENT_OP_END, op);
    if (reduced)
        tide_collectives_close(&manager->collectives, op, request->param_use);
    const uint64_t ends = ++manager->eviction_queue.ended;
    tide_request_end_slice(request, ends);
    tide_request_close(request);
    end_params(manager, op, reduced);
    if (reduced)
        end_uses(manager, op, request->param_use, false, ends);
    else
        tide_eviction_queue_use_ended(&manager->eviction_queue, chunks->list, chunks->count,
                                      request->param_use, ends);
    tide_manager_changed(manager);
    return TIDE_OK;
}

void tide_manager_op_closed(tide_manager *manager)
{
    const tide_op op = manager->collectives.closing;
    const tide_op_record *record = &manager->ops.records[op];
    tide_collectives_closed(&manager->collectives);
    for (uint32_t i = 0; i < record->param_count; i++) {
        const tide_gradient *gradient = &manager->ops.gradients.params[record->params[i].tensor];
        if (gradient->is_closed && gradient->closing_op == op)
            hold_gradient(manager, record->params[i].tensor);
    }
    end_uses(manager, op, manager->collectives.closing_use, true, ++manager->eviction_queue.ended);
}

tide_status tide_manager_reduce(tide_manager *manager, uint32_t param, uint64_t first, uint64_t count,
                                bool *appended)
{
    const tide_request *request = &manager->request;
    if (!request->open || !request->ready)
        return tide_fail(TIDE_ERROR_STATE, "reduce: no op is open and ready");
    assert(tide_manager_has_peers(manager));
    *appended = tide_collectives_reduce(&manager->collectives, request->op, param, first, count);
    tide_manager_changed(manager);
    return TIDE_OK;
}

bool tide_manager_ready(const tide_manager *manager)
{
    return manager->request.open && manager->request.ready;
}

/* --- slices --- */

/* The state that part `slice` of an activation will have after the open slice is released. */
static tide_tensor_state state_then(const tide_manager *m, const tide_use *use, uint32_t slice)
{
    return m->request.slice == slice ? tide_state_after_slice(use)
                                     : tide_tensors_part(&m->tensors, use->tensor, slice);
}

static tide_status check_slice(const tide_manager *m, uint32_t slice)
{
    const tide_request *request = &m->request;
    if (!request->open || !request->ready)
        return tide_fail(TIDE_ERROR_STATE, "slice %u: no op is open and ready", slice);
    const tide_op_record *op = &m->ops.records[request->op];
    if (slice >= op->slices)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s has %u slices, no slice %u", op->name, op->slices,
                         slice);
    for (uint32_t i = 0; i < op->activation_count; i++) {
        const tide_use *use = &op->activations[i];
        if (use->access & TIDE_ACCESS_READ && state_then(m, use, slice) == TIDE_TENSOR_FREE)
            return tide_fail(TIDE_ERROR_STATE, "op %s reads part %u of activation %s, which holds nothing",
                             op->name, slice, tide_layout_activation(m->layout, use->tensor)->name);
    }
    return TIDE_OK;
}

tide_status tide_manager_slice(tide_manager *manager, uint32_t slice)
{
    const tide_status status = check_slice(manager, slice);
    if (status != TIDE_OK)
        return status;
    tide_request *request = &manager->request;
    manager->counters.calls++;
    /* The device's last use of a slice's chunks has ended at the latest when the op has ended there. */
    tide_request_end_slice(request, manager->eviction_queue.ended + 1);
    tide_future_schedule_step(&manager->future, request->op, slice);
    tide_request_open_slice(request, slice);
    (void)tide_request_try_pin(request);
    tide_manager_changed(manager);
    return TIDE_OK;
}

/* --- abort --- */

/* Does the abort give up the last training step? It does not if that step and all its updates are done, nor
 * if a forward-only pass is open: that pass changes no param, and updates of the step before go on. */
static bool gives_up_training(const tide_manager *m)
{
    if (tide_manager_step_is_open(m))
        return m->phase == TIDE_PHASE_TRAINING;
    return m->phase == TIDE_PHASE_RELEASE_PENDING ||
           tide_pending_has_step(&m->pending, m->pending.training_step);
}

/* The pool may have begun to end the open op and so to overwrite params with gradients: mark these params as
 * having a gradient, so that they are restored, too. */
static void note_open_roundings(tide_manager *m)
{
    const tide_request *request = &m->request;
    if (!request->open || request->pinned_count == 0)
        return;
    assert(tide_manager_step_is_open(m) && request->pinned_count >= request->param_pins);
    const tide_op_record *op = &m->ops.records[request->op];
    for (uint32_t i = 0; i < op->param_count; i++)
        if (tide_gradients_closes(&m->ops.gradients, request->op, &op->params[i]))
            tide_tensors_take_gradient(&m->tensors, op->params[i].tensor, m->step, true);
}

tide_status tide_manager_abort(tide_manager *manager, bool *gave_up, bool *poisoned)
{
    tide_manager *m = manager;
    if (tide_moves_open(&m->moves))
        return tide_fail(TIDE_ERROR_STATE, "abort: %u commands are open", tide_moves_open(&m->moves));
    assert(m->moves.evictions_open == 0 && m->moves.promotions_open == 0);
    assert(m->tasks.running[TIDE_TIER_DEVICE] == 0 && m->tasks.running[TIDE_TIER_HOST] == 0);
    note_open_roundings(m);
    *gave_up = gives_up_training(m);
    *poisoned = m->pending.failed || (*gave_up && m->pending.begun > 0);
    /* First the pins, then the states: the invariant that ties them holds again when this call returns. */
    tide_request_close(&m->request);
    if (tide_manager_has_peers(m))
        tide_collectives_stop(&m->collectives);
    tide_tasks_close_access(&m->tasks);
    tide_assemble_forget(&m->tasks);
    if (*poisoned)
        tide_pending_forget(&m->pending);
    else if (*gave_up)
        tide_pending_restore(&m->pending);
    tide_tensors_rest(&m->tensors);
    tide_tensors_free_activations(&m->tensors);
    if (tide_manager_step_is_open(m))
        tide_future_step_abort(&m->future);
    assert(m->places.pinned[TIDE_TIER_DEVICE] == 0 && m->places.pinned[TIDE_TIER_HOST] == 0);
    m->phase = TIDE_PHASE_BETWEEN;
    tide_manager_changed(m);
    return TIDE_OK;
}
