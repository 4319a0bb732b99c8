/* Steps, ops and slices: what a caller may do when, and what it does to tensors and pins.
 *
 * A request is pinned whole or not at all, at the moment when all its chunks are resident and owe no update.
 * Then its tensors become COMPUTE and the host copies of what it will change are given up (manager.h: a copy
 * in the other tier is invalid once this tier's is modified; only ops that round a gradient into a chunk
 * modify PARAM chunks, only WRITE modifies CHECKPOINT chunks).
 *
 * At op end a param becomes
 *   HOLD_AFTER_BWD   if this op closes its gradient
 *   HOLD_AFTER_FWD   else, until step end
 * and a checkpoint part FREE after LAST, else HOLD.
 */
#include "chunk/manager_internal.h"

#include <assert.h>

/* --- steps --- */

tide_status tide_manager_step_begin(tide_manager *manager, bool training, bool updates_wait)
{
    assert(manager->sealed);
    if (manager->step_open)
        return tide_fail(TIDE_ERROR_STATE, "step begin: a step is open");
    if (manager->release_owed)
        return tide_fail(TIDE_ERROR_STATE,
                         "step begin: the last step's updates are neither released nor skipped");
    if (manager->host_request.count)
        return tide_fail(TIDE_ERROR_STATE, "step begin: a host request is open");
    manager->counters.calls++;
    manager->step_open = true;
    manager->training = training;
    manager->updates_wait = updates_wait;
    manager->step++;
    if (training) {
        manager->training_step = manager->step;
        manager->updates_begun = 0;
    }
    manager->walk.plan = NULL;
    tide_gradients_begin(&manager->gradients);
    tide_schedule_begin(&manager->schedule, training);
    tide_manager_changed(manager);
    return TIDE_OK;
}

/* The place holds this step's gradient, or zero is taken for it: its chunks owe an update, or a restore. */
static void take_gradient(tide_manager *m, tide_param_record *param, bool made)
{
    param->has_gradient = made;
    param->gradient_step = m->step;
    param->open_chunks = param->last - param->first + 1;
}

/* All its gradients are complete, and its update has not begun. The counts alone do not tell: a param stays
 * HOLD_AFTER_BWD until its last chunk is updated, be it this step's (this chunk may be done) or an older
 * one's. */
static bool chunk_is_complete(const tide_manager *m, tide_chunk chunk)
{
    if (m->works[chunk].step == m->step || !tide_tensor_counts_complete(&m->counts[chunk]))
        return false;
    for (uint32_t i = 0; i < tide_layout_chunk_segments(m->layout, chunk); i++)
        if (m->params[tide_layout_chunk_segment(m->layout, chunk, i).param].gradient_step != m->step)
            return false;
    return true;
}

static void start_complete_chunks(tide_manager *m, const tide_param_record *param)
{
    if (m->updates_wait)
        return;
    for (tide_chunk chunk = param->first; chunk <= param->last; chunk++)
        if (chunk_is_complete(m, chunk))
            tide_manager_start_work(m, chunk, TIDE_WORK_UPDATE);
}

/* A chunk that no op of this step used may still owe the step before's update. */
static bool has_older_work(const tide_manager *m, tide_chunk *owing)
{
    for (*owing = m->work_first; m->work_count && tide_manager_is_param_chunk(m, *owing); ++*owing)
        if (m->works[*owing].kind != TIDE_WORK_NONE && m->works[*owing].step != m->step)
            return true;
    return false;
}

static void end_gradients(tide_manager *m)
{
    for (uint32_t p = 0; p < tide_layout_params(m->layout); p++) {
        tide_param_record *param = &m->params[p];
        param->zero_gradient = param->gradient_step != m->step;
        if (!param->zero_gradient)
            continue;
        m->counters.zero_gradients++;
        take_gradient(m, param, false);
        tide_manager_set_param_state(m, p, TIDE_TENSOR_HOLD_AFTER_BWD);
    }
    for (uint32_t p = 0; p < tide_layout_params(m->layout); p++)
        start_complete_chunks(m, &m->params[p]);
}

/* After a forward-only pass, or one given up. Params whose update is still owed keep their state. */
static void rest_params(tide_manager *m)
{
    for (uint32_t p = 0; p < tide_layout_params(m->layout); p++) {
        tide_tensor_state state = m->params[p].state;
        bool resting = state == TIDE_TENSOR_FREE || state == TIDE_TENSOR_HOLD;
        if (!resting && (state != TIDE_TENSOR_HOLD_AFTER_BWD || m->params[p].open_chunks == 0))
            tide_manager_set_param_state(m, p, TIDE_TENSOR_HOLD);
    }
}

static void free_checkpoints(tide_manager *m)
{
    for (uint32_t tensor = 0; tensor < tide_layout_checkpoints(m->layout); tensor++)
        for (uint32_t part = 0; part < tide_layout_checkpoint_parts(m->layout, tensor); part++)
            if (tide_manager_part_state(m, tensor, part) != TIDE_TENSOR_FREE)
                tide_manager_set_part_state(m, tensor, part, TIDE_TENSOR_FREE);
}

tide_status tide_manager_step_end(tide_manager *manager)
{
    tide_chunk owing;
    if (!manager->step_open)
        return tide_fail(TIDE_ERROR_STATE, "step end: no step is open");
    if (manager->request.open)
        return tide_fail(TIDE_ERROR_STATE, "step end: op %s is open", manager->ops[manager->request.op].name);
    const tide_status gradients = tide_gradients_check_end(&manager->gradients);
    if (gradients != TIDE_OK)
        return gradients;
    if (manager->training && has_older_work(manager, &owing))
        return tide_fail(TIDE_ERROR_STATE, "step end: chunk %u still owes the update of the step before",
                         owing);
    manager->counters.calls++;
    if (manager->training)
        end_gradients(manager);
    else
        rest_params(manager);
    free_checkpoints(manager);
    manager->counters.re_recordings += tide_schedule_end(&manager->schedule);
    manager->release_owed = manager->training && manager->updates_wait;
    manager->step_open = false;
    manager->walk.plan = NULL;
    tide_manager_plan_step(manager);
    tide_manager_changed(manager);
    return TIDE_OK;
}

tide_status tide_manager_release_updates(tide_manager *manager)
{
    if (!manager->release_owed)
        return tide_fail(TIDE_ERROR_STATE, "release updates: no step's updates wait");
    manager->release_owed = false;
    for (tide_chunk chunk = 0; tide_manager_is_param_chunk(manager, chunk); chunk++)
        tide_manager_start_work(manager, chunk, TIDE_WORK_UPDATE);
    tide_manager_changed(manager);
    return TIDE_OK;
}

/* Rewrite what holds gradients of the last training step; the rest owes nothing. */
static void restore_gradients(tide_manager *m)
{
    for (tide_chunk chunk = 0; tide_manager_is_param_chunk(m, chunk); chunk++) {
        tide_work *work = &m->works[chunk];
        if (work->kind == TIDE_WORK_UPDATE && work->step == m->training_step) {
            assert(work->part == 0 && !work->running);
            tide_manager_drop_work(m, chunk);
        }
        if (work->kind != TIDE_WORK_NONE)
            continue;
        m->marks[chunk] &=
            (uint8_t) ~(TIDE_MARK_LEAVING | TIDE_MARK_WRITING | TIDE_MARK_KEPT); /* worth no copy */
        if (tide_manager_chunk_has_gradient(m, chunk, m->training_step))
            tide_manager_start_work(m, chunk, TIDE_WORK_RESTORE);
        else
            tide_manager_settle_chunk(m, chunk, m->training_step);
    }
}

tide_status tide_manager_skip_updates(tide_manager *manager)
{
    if (!manager->release_owed)
        return tide_fail(TIDE_ERROR_STATE, "skip updates: no step's updates wait");
    manager->release_owed = false;
    restore_gradients(manager);
    tide_manager_changed(manager);
    return TIDE_OK;
}

/* --- requests: pins --- */

/* What is wanted on the device stays there, but for what has to be updated on the host first. */
static void let_stay(tide_manager *m, const tide_chunk *chunks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!tide_manager_must_leave(m, chunks[i]))
            m->marks[chunks[i]] &= (uint8_t) ~(TIDE_MARK_LEAVING | TIDE_MARK_WRITING);
    }
}

static void request_chunks(tide_manager *m, const tide_chunk *chunks, uint32_t count)
{
    tide_request *request = &m->request;
    uint32_t marks = 0;
    for (uint32_t i = 0; i < count; i++) {
        assert(!(m->marks[chunks[i]] & TIDE_MARK_REQUESTED));
        request->pins[request->pin_count++] = chunks[i];
        marks |= m->marks[chunks[i]];
        m->marks[chunks[i]] |= TIDE_MARK_REQUESTED | TIDE_MARK_FIRST;
    }
    if (marks & (TIDE_MARK_LEAVING | TIDE_MARK_WRITING))
        let_stay(m, chunks, count);
    request->ready = false;
}

/* Take back pins and marks of the request's chunks from `from` on. */
static void release_chunks(tide_manager *m, uint32_t from)
{
    tide_request *request = &m->request;
    for (uint32_t i = from; i < request->pin_count; i++) {
        tide_chunk chunk = request->pins[i];
        m->marks[chunk] &= (uint8_t) ~(TIDE_MARK_REQUESTED | TIDE_MARK_FIRST);
        if (i < request->pinned_count)
            tide_places_unpin(&m->places, chunk, TIDE_TIER_DEVICE);
    }
    request->pin_count = from;
    if (request->pinned_count > from)
        request->pinned_count = from;
}

/* The device copy is about to change. */
static void drop_host_copy(tide_manager *m, tide_chunk chunk)
{
    assert(m->places.chunks[chunk].pins[TIDE_TIER_DEVICE] > 0);
    if (m->places.chunks[chunk].slot[TIDE_TIER_HOST] != TIDE_SLOT_NONE)
        tide_places_release(&m->places, chunk, TIDE_TIER_HOST);
}

static void start_op(tide_manager *m, const tide_op_record *op)
{
    for (uint32_t i = 0; i < op->param_count; i++)
        tide_manager_set_param_state(m, op->params[i].tensor, TIDE_TENSOR_COMPUTE);
    for (uint32_t i = 0; i < op->chunk_count; i++)
        if (op->modifies[i])
            drop_host_copy(m, op->chunks[i]);
}

static void start_slice(tide_manager *m, const tide_op_record *op, uint32_t slice)
{
    for (uint32_t i = 0; i < op->checkpoint_count; i++) {
        const tide_use *use = &op->checkpoints[i];
        tide_chunk first, last;
        tide_manager_set_part_state(m, use->tensor, slice, TIDE_TENSOR_COMPUTE);
        tide_layout_checkpoint_chunks(m->layout, use->tensor, slice, &first, &last);
        for (tide_chunk chunk = first; use->access & TIDE_ACCESS_WRITE && chunk <= last; chunk++)
            drop_host_copy(m, chunk);
    }
}

bool tide_manager_try_pin(tide_manager *manager)
{
    tide_request *request = &manager->request;
    assert(request->open && !request->ready);
    for (uint32_t i = request->pinned_count; i < request->pin_count; i++) {
        tide_chunk chunk = request->pins[i];
        if (!tide_place_is_resident(&manager->places.chunks[chunk]) || tide_manager_has_work(manager, chunk))
            return false;
    }
    for (uint32_t i = request->pinned_count; i < request->pin_count; i++)
        tide_places_pin(&manager->places, request->pins[i], TIDE_TIER_DEVICE);
    request->pinned_count = request->pin_count;
    request->ready = true;
    const tide_op_record *op = &manager->ops[request->op];
    if (request->slice == TIDE_SLICE_NONE)
        start_op(manager, op);
    else
        start_slice(manager, op, request->slice);
    tide_manager_changed(manager);
    return true;
}

static void note_moment(tide_manager *m, tide_op op, uint32_t slice)
{
    m->counters.calls++;
    m->counters.re_recordings += tide_schedule_advance(&m->schedule, (tide_moment){.op = op, .slice = slice});
}

/* --- ops --- */

static tide_status check_begin(tide_manager *m, tide_op op)
{
    if (op >= m->op_count)
        return tide_fail(TIDE_ERROR_ARGUMENT, "begin: there is no op %u", op);
    const tide_op_record *record = &m->ops[op];
    if (!m->step_open)
        return tide_fail(TIDE_ERROR_STATE, "begin of op %s: no step is open", record->name);
    if (m->request.open)
        return tide_fail(TIDE_ERROR_STATE, "begin of op %s: op %s is open", record->name,
                         m->ops[m->request.op].name);
    if (!m->training && record->pass != TIDE_PASS_FORWARD)
        return tide_fail(TIDE_ERROR_STATE, "begin of op %s: it goes backward, the pass is forward only",
                         record->name);
    return tide_gradients_check(&m->gradients, op);
}

tide_status tide_manager_begin(tide_manager *manager, tide_op op)
{
    tide_status status = check_begin(manager, op);
    if (status != TIDE_OK)
        return status;
    tide_request *request = &manager->request;
    assert(request->pin_count == 0 && request->pinned_count == 0);
    request->open = true;
    request->op = op;
    request->slice = TIDE_SLICE_NONE;
    request_chunks(manager, manager->ops[op].chunks, manager->ops[op].chunk_count);
    request->param_pins = request->pin_count;
    note_moment(manager, op, TIDE_SLICE_NONE);
    request->param_use = tide_manager_planned_use(manager);
    if (!tide_manager_try_pin(manager))
        tide_manager_changed(manager);
    return TIDE_OK;
}

static void end_param(tide_manager *m, tide_op op, const tide_use *use)
{
    tide_param_record *param = &m->params[use->tensor];
    if (!tide_gradients_closes(&m->gradients, op, use)) {
        tide_manager_set_param_state(m, use->tensor, TIDE_TENSOR_HOLD_AFTER_FWD);
        return;
    }
    take_gradient(m, param, true);
    tide_manager_set_param_state(m, use->tensor, TIDE_TENSOR_HOLD_AFTER_BWD);
    start_complete_chunks(m, param);
}

static tide_tensor_state state_after_slice(const tide_use *use)
{
    return use->access & TIDE_ACCESS_LAST ? TIDE_TENSOR_FREE : TIDE_TENSOR_HOLD;
}

static void end_slice(tide_manager *m)
{
    tide_request *request = &m->request;
    const tide_op_record *op = &m->ops[request->op];
    if (request->slice == TIDE_SLICE_NONE)
        return;
    const uint32_t count = request->pin_count - request->param_pins;
    release_chunks(m, request->param_pins);
    for (uint32_t i = 0; i < op->checkpoint_count; i++)
        tide_manager_set_part_state(m, op->checkpoints[i].tensor, request->slice,
                                    state_after_slice(&op->checkpoints[i]));
    request->slice = TIDE_SLICE_NONE;
    tide_manager_use_ended(m, request->pins + request->param_pins, count, request->slice_use);
}

tide_status tide_manager_end(tide_manager *manager)
{
    tide_request *request = &manager->request;
    if (!request->open || !request->ready)
        return tide_fail(TIDE_ERROR_STATE, "end: no op is open and ready");
    tide_op op = request->op;
    manager->counters.calls++;
    manager->ends++;
    end_slice(manager);
    release_chunks(manager, 0);
    request->open = request->ready = false;
    for (uint32_t i = 0; i < manager->ops[op].param_count; i++)
        end_param(manager, op, &manager->ops[op].params[i]);
    tide_gradients_end(&manager->gradients, op);
    tide_manager_use_ended(manager, manager->ops[op].chunks, manager->ops[op].chunk_count,
                           request->param_use);
    tide_manager_changed(manager);
    return TIDE_OK;
}

/* --- slices --- */

/* A part's state once the open slice, if any, is released. */
static tide_tensor_state state_then(const tide_manager *m, const tide_use *use, uint32_t slice)
{
    return m->request.slice == slice ? state_after_slice(use)
                                     : tide_manager_part_state(m, use->tensor, slice);
}

static tide_status check_slice(const tide_manager *m, uint32_t slice)
{
    const tide_request *request = &m->request;
    if (!request->open || !request->ready)
        return tide_fail(TIDE_ERROR_STATE, "slice %u: no op is open and ready", slice);
    const tide_op_record *op = &m->ops[request->op];
    if (slice >= op->slices)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s has %u slices, no slice %u", op->name, op->slices,
                         slice);
    for (uint32_t i = 0; i < op->checkpoint_count; i++) {
        const tide_use *use = &op->checkpoints[i];
        if (use->access & TIDE_ACCESS_READ && state_then(m, use, slice) == TIDE_TENSOR_FREE)
            return tide_fail(TIDE_ERROR_STATE, "op %s reads part %u of checkpoint %s, which holds nothing",
                             op->name, slice, tide_layout_checkpoint_name(m->layout, use->tensor));
    }
    return TIDE_OK;
}

/* What a slice overwrites whole is dead from now on, so that nobody copies it. */
static void forget_overwritten(tide_manager *m, const tide_op_record *op, uint32_t slice)
{
    for (uint32_t i = 0; i < op->checkpoint_count; i++) {
        const tide_use *use = &op->checkpoints[i];
        if (!(use->access & TIDE_ACCESS_READ) &&
            tide_manager_part_state(m, use->tensor, slice) != TIDE_TENSOR_FREE)
            tide_manager_set_part_state(m, use->tensor, slice, TIDE_TENSOR_FREE);
    }
}

tide_status tide_manager_slice(tide_manager *manager, uint32_t slice)
{
    tide_status status = check_slice(manager, slice);
    if (status != TIDE_OK)
        return status;
    tide_request *request = &manager->request;
    const tide_op_record *op = &manager->ops[request->op];
    manager->ends++; /* a slice's chunks are over with the op, at the latest */
    end_slice(manager);
    manager->ends--;
    forget_overwritten(manager, op, slice);
    request->slice = slice;
    uint32_t count;
    tide_moment moment = {.op = request->op, .slice = slice};
    const tide_chunk *chunks = tide_manager_moment_chunks(manager, moment, &count);
    request_chunks(manager, chunks, count);
    note_moment(manager, request->op, slice);
    request->slice_use = tide_manager_planned_use(manager);
    if (!tide_manager_try_pin(manager))
        tide_manager_changed(manager);
    return TIDE_OK;
}

bool tide_manager_ready(const tide_manager *manager)
{
    return manager->request.open && manager->request.ready;
}

/* --- abort --- */

/* Params are undefined from here on: nothing is owed any more. */
static void tear(tide_manager *m)
{
    for (tide_chunk chunk = 0; tide_manager_is_param_chunk(m, chunk); chunk++)
        tide_manager_drop_work(m, chunk);
    for (uint32_t p = 0; p < tide_layout_params(m->layout); p++) {
        m->params[p].has_gradient = m->params[p].zero_gradient = false;
        m->params[p].open_chunks = 0;
    }
    m->update_failed = false;
}

static void give_up_requests(tide_manager *m)
{
    release_chunks(m, 0);
    m->request.open = m->request.ready = false;
    m->request.slice = TIDE_SLICE_NONE;
    tide_manager_close_host_request(m);
    tide_manager_clear_gather(m, TIDE_TIER_DEVICE);
    tide_manager_clear_gather(m, TIDE_TIER_HOST);
}

static bool owes_updates(const tide_manager *m, uint64_t step)
{
    for (tide_chunk chunk = m->work_first; m->work_count && tide_manager_is_param_chunk(m, chunk); chunk++)
        if (m->works[chunk].kind == TIDE_WORK_UPDATE && m->works[chunk].step == step)
            return true;
    return false;
}

/* Is the last training step what is given up? Not when it is over with all its updates, nor when a
 * forward-only pass is open: that pass changes nothing, and the updates go on. */
static bool gives_up_training(const tide_manager *m)
{
    if (m->step_open)
        return m->training;
    return m->release_owed || owes_updates(m, m->training_step);
}

/* The end of the open op may have begun: what it would have rounded into places has to be restored too. */
static void note_open_roundings(tide_manager *m)
{
    const tide_request *request = &m->request;
    if (!request->open || request->pinned_count == 0)
        return;
    const tide_op_record *op = &m->ops[request->op];
    for (uint32_t i = 0; i < op->param_count; i++)
        if (tide_gradients_closes(&m->gradients, request->op, &op->params[i]))
            take_gradient(m, &m->params[op->params[i].tensor], true);
}

/* "Manager off" that was still being prepared is given up, too. */
static void give_up_pins(tide_manager *m)
{
    if (!m->pin_all || tide_manager_all_pinned(m))
        return;
    for (tide_chunk chunk = 0; chunk < m->pin_all_next; chunk++)
        tide_places_unpin(&m->places, chunk, TIDE_TIER_DEVICE);
    m->pin_all = false;
}

tide_status tide_manager_abort(tide_manager *manager, bool *gave_up, bool *torn)
{
    if (tide_manager_commands_open(manager))
        return tide_fail(TIDE_ERROR_STATE, "abort: %u commands are open",
                         tide_manager_commands_open(manager));
    note_open_roundings(manager);
    bool gives_up = gives_up_training(manager);
    bool tears = manager->update_failed || (gives_up && manager->updates_begun > 0);
    /* The pins go first: tensors leave COMPUTE before anybody looks, all in this call. */
    give_up_requests(manager);
    if (tears)
        tear(manager);
    else if (gives_up)
        restore_gradients(manager);
    rest_params(manager);
    free_checkpoints(manager);
    if (manager->step_open)
        tide_schedule_abort(&manager->schedule);
    manager->step_open = manager->release_owed = false;
    manager->walk.plan = NULL;
    give_up_pins(manager);
    *gave_up = gives_up;
    *torn = tears;
    tide_manager_changed(manager);
    return TIDE_OK;
}
