/* Updates, restores and the host request: tasks, and how their chunks come together.
 *
 * A PARAM chunk that owes an update or a restore (its work) runs one task per part, one after the other:
 *
 *   UPDATE    PARAM read and write; MASTER, MOMENTUM, VARIANCE read and write
 *   RESTORE   PARAM written (its first part: nothing of it is worth a copy), MASTER read; on the host
 *   ACCESS    the host request: up to four chunks of any space, on the host
 *
 * On the host a task whose chunks are all there is handed out at once, the first of them in forward order: gradients
 * leave the device as they complete, so most updates find them there, and none waits for another's to arrive. Of those
 * that still miss something, one a tier is gathered at a time; every call of next() does the first of these that applies:
 *
 *   on the host                                          on the device
 *   1. a chunk the task writes leaves the device,        1. a missing chunk is fetched into a free slot,
 *      with a copy if the device has the only one,          or a victim's slot is freed for it
 *      but a PARAM chunk whose slot is to wait for
 *      the update (KEPT) is only copied
 *   2. a chunk it only reads is written back
 *   3. chunks without content get a host slot, all at once
 *   4. all there: pinned and handed out                  2. all there: pinned and handed out
 *
 * Nothing is pinned before the last step. The chunks are only marked, so that no other task and no prefetch
 * takes them away again; a request of an op may, and the gather then resumes.
 */
#include "chunk/manager_internal.h"

#include <assert.h>
#include <string.h>

enum { READY_LOOKED_AT_MAX = 64 }; /* chunks with work, each time next() is asked */

/* --- what a chunk owes --- */

void tide_manager_start_work(tide_manager *manager, tide_chunk chunk, tide_work_kind kind)
{
    tide_work *work = &manager->works[chunk];
    assert(work->kind == TIDE_WORK_NONE && work->parts > 0);
    assert(tide_manager_is_param_chunk(manager, chunk));
    work->kind = kind;
    work->running = false;
    work->part = 0;
    work->step = manager->training_step;
    work->on_device = kind == TIDE_WORK_UPDATE && manager->update_on_device[chunk];
    if (manager->work_count++ == 0 || chunk < manager->work_first)
        manager->work_first = chunk;
    manager->parts_open += work->parts;
}

void tide_manager_drop_work(tide_manager *manager, tide_chunk chunk)
{
    tide_work *work = &manager->works[chunk];
    assert(!work->running);
    if (work->kind == TIDE_WORK_NONE)
        return;
    assert(manager->work_count > 0);
    manager->parts_open -= work->parts - work->part;
    manager->work_count--;
    work->kind = TIDE_WORK_NONE;
}

void tide_manager_settle_chunk(tide_manager *manager, tide_chunk chunk, uint64_t step)
{
    for (uint32_t i = 0; i < tide_layout_chunk_segments(manager->layout, chunk); i++) {
        uint32_t p = tide_layout_chunk_segment(manager->layout, chunk, i).param;
        tide_param_record *param = &manager->params[p];
        if (param->open_chunks == 0 || param->gradient_step != step || --param->open_chunks > 0)
            continue;
        param->has_gradient = false;
        if (param->state == TIDE_TENSOR_HOLD_AFTER_BWD)
            tide_manager_set_param_state(manager, p, TIDE_TENSOR_HOLD);
    }
}

bool tide_manager_chunk_has_gradient(const tide_manager *manager, tide_chunk chunk, uint64_t step)
{
    for (uint32_t i = 0; i < tide_layout_chunk_segments(manager->layout, chunk); i++) {
        uint32_t p = tide_layout_chunk_segment(manager->layout, chunk, i).param;
        if (manager->params[p].has_gradient && manager->params[p].gradient_step == step)
            return true;
    }
    return false;
}

void tide_manager_finish_part(tide_manager *manager, tide_chunk chunk)
{
    tide_work *work = &manager->works[chunk];
    assert(work->kind != TIDE_WORK_NONE && work->part < work->parts);
    work->part++;
    manager->parts_open--;
    if (work->part < work->parts)
        return;
    work->kind = TIDE_WORK_NONE;
    manager->work_count--;
    manager->placement_changed |= manager->update_on_device[chunk] != manager->update_wanted_on_device[chunk];
    manager->update_on_device[chunk] = manager->update_wanted_on_device[chunk];
    tide_manager_settle_chunk(manager, chunk, work->step);
}

uint32_t tide_manager_updates_open(const tide_manager *manager)
{
    return manager->parts_open;
}

bool tide_manager_request_waits_for_work(const tide_manager *manager)
{
    const tide_request *request = &manager->request;
    for (uint32_t i = request->pinned_count; i < request->pin_count; i++)
        if (tide_manager_has_work(manager, request->pins[i]))
            return true;
    return false;
}

/* --- tasks --- */

static void add_item(tide_task *task, tide_chunk chunk, uint32_t access)
{
    assert(task->count < TIDE_TASK_CHUNKS_MAX && chunk != TIDE_CHUNK_NONE);
    task->items[task->count++] = (tide_task_item){.chunk = chunk, .access = access};
}

static tide_task work_task(const tide_manager *m, tide_chunk chunk)
{
    const tide_work *work = &m->works[chunk];
    const uint32_t both = TIDE_ACCESS_READ | TIDE_ACCESS_WRITE;
    tide_task task = {.chunk = chunk, .part = work->part};
    bool updates = work->kind == TIDE_WORK_UPDATE;
    task.kind = updates ? TIDE_COMMAND_UPDATE : TIDE_COMMAND_RESTORE;
    task.reason = updates ? TIDE_REASON_UPDATE : TIDE_REASON_RESTORE;
    task.tier = work->on_device ? TIDE_TIER_DEVICE : TIDE_TIER_HOST;
    add_item(&task, chunk, updates || work->part > 0 ? both : TIDE_ACCESS_WRITE);
    int last = updates ? TIDE_SPACE_VARIANCE : TIDE_SPACE_MASTER;
    for (int space = TIDE_SPACE_MASTER; space <= last; space++) {
        tide_chunk state = tide_layout_state_chunk(m->layout, chunk, (tide_space)space, work->part);
        if (state != TIDE_CHUNK_NONE)
            add_item(&task, state, updates ? both : TIDE_ACCESS_READ);
    }
    return task;
}

static uint8_t gather_mark(tide_tier tier)
{
    return tier == TIDE_TIER_DEVICE ? TIDE_MARK_GATHER_DEVICE : TIDE_MARK_GATHER_HOST;
}

void tide_manager_clear_gather(tide_manager *manager, tide_tier tier)
{
    tide_task *gather = &manager->gather[tier];
    for (uint32_t i = 0; i < gather->count; i++)
        manager->marks[gather->items[i].chunk] &= (uint8_t)~gather_mark(tier);
    gather->count = 0;
}

static void set_gather(tide_manager *m, const tide_task *task)
{
    tide_manager_clear_gather(m, task->tier);
    m->gather[task->tier] = *task;
    for (uint32_t i = 0; i < task->count; i++)
        m->marks[task->items[i].chunk] |= gather_mark(task->tier);
}

/* All is there (and host slots are free for what is fresh): pin, and let the executor have it. */
static void hand_out(tide_manager *m, const tide_task *task, tide_command *command)
{
    uint32_t access[TIDE_TASK_CHUNKS_MAX] = {0};
    *command = (tide_command){.kind = task->kind,
                              .reason = task->reason,
                              .chunk = task->chunk,
                              .device_slot = TIDE_SLOT_NONE,
                              .host_slot = TIDE_SLOT_NONE,
                              .tier = task->tier,
                              .part = task->part,
                              .task_count = task->count};
    for (uint32_t i = 0; i < task->count; i++) {
        tide_chunk chunk = task->items[i].chunk;
        tide_place *place = &m->places.chunks[chunk];
        bool has_slot = place->slot[task->tier] != TIDE_SLOT_NONE;
        uint32_t slot = has_slot ? place->slot[task->tier] : tide_places_take(&m->places, chunk, task->tier);
        bool fresh = !has_slot && task->items[i].access & TIDE_ACCESS_READ;
        command->task[i] = (tide_task_chunk){.chunk = chunk, .slot = slot, .fresh = fresh};
        access[i] = task->items[i].access;
        if (task->tier == TIDE_TIER_HOST && task->items[i].access & TIDE_ACCESS_WRITE &&
            place->valid[TIDE_TIER_DEVICE])
            tide_places_make_stale(&m->places, chunk);
        tide_places_pin(&m->places, chunk, task->tier);
        place->busy = true;
    }
    tide_manager_issue(m, command, access);
    if (m->gather[task->tier].chunk == task->chunk) /* another's gathering goes on */
        tide_manager_clear_gather(m, task->tier);
}

/* --- gathering on the host --- */

/* A free host slot for a task; else a move towards one. */
static bool has_host_slot(tide_manager *m, bool *moved, tide_command *command)
{
    *moved = false;
    if (tide_manager_free_host_slot(m, TIDE_MARK_GATHER_HOST))
        return true;
    *moved = tide_manager_spill(m, command);
    return false;
}

/* The host may change it while its device slot waits. Only an update's: it has read what was copied out of that slot, so
 * all uses of the slot are over. */
static bool is_kept(const tide_manager *m, const tide_task *task, tide_chunk chunk)
{
    return task->kind == TIDE_COMMAND_UPDATE && m->marks[chunk] & TIDE_MARK_KEPT;
}

/* Steps 1 and 2 for one chunk. `*there`: nothing more to do but, perhaps, step 3. */
static bool bring_to_host(tide_manager *m, const tide_task *task, const tide_task_item *item, bool *there,
                          tide_command *command)
{
    const tide_place *place = &m->places.chunks[item->chunk];
    bool writes = item->access & TIDE_ACCESS_WRITE, moved = false;
    *there = false;
    if (place->busy)
        return false;
    bool copy = tide_place_is_dirty(place) && item->access & TIDE_ACCESS_READ;
    bool leaves =
        place->valid[TIDE_TIER_DEVICE] && ((writes && !is_kept(m, task, item->chunk)) || !place->live);
    *there = !leaves && !copy;
    if (*there)
        return false;
    if (copy && !has_host_slot(m, &moved, command))
        return moved;
    if (leaves)
        tide_manager_evict(m, item->chunk, copy, task->reason, command);
    else
        tide_manager_write_back(m, item->chunk, task->reason, command);
    return true;
}

static bool gather_on_host(tide_manager *m, const tide_task *task, tide_command *command)
{
    uint32_t fresh = 0;
    bool all_there = true;
    for (uint32_t i = 0; i < task->count; i++) {
        bool there;
        if (bring_to_host(m, task, &task->items[i], &there, command))
            return true;
        all_there &= there;
        fresh += m->places.chunks[task->items[i].chunk].slot[TIDE_TIER_HOST] == TIDE_SLOT_NONE;
    }
    if (!all_there)
        return false;
    /* Step 3: slots of duplicates are free at once, others take a spill each. */
    while (m->places.tier[TIDE_TIER_HOST].free_count < fresh) {
        if (!tide_manager_drop_duplicate(m, TIDE_MARK_GATHER_HOST))
            return tide_manager_spill(m, command);
    }
    hand_out(m, task, command);
    return true;
}

/* --- gathering on the device --- */

static bool make_device_room(tide_manager *m, tide_command *command)
{
    tide_victim_rule rule = {.spared = TIDE_MARK_GATHER_DEVICE | TIDE_MARK_REQUESTED,
                             .spared_duplicates = TIDE_MARK_GATHER_HOST};
    if (tide_manager_evict_victim(m, rule, TIDE_REASON_UPDATE, command))
        return true;
    if (!tide_manager_request_waits_for_work(m))
        return false;
    rule.spared = TIDE_MARK_GATHER_DEVICE; /* what the request has by now, it gets back after this task */
    return tide_manager_evict_victim(m, rule, TIDE_REASON_UPDATE, command);
}

static bool gather_on_device(tide_manager *m, const tide_task *task, tide_command *command)
{
    const tide_slots *slots = &m->places.tier[TIDE_TIER_DEVICE];
    uint32_t missing = 0;
    bool all_there = true;
    if (slots->count - m->places.pinned[TIDE_TIER_DEVICE] < task->count)
        return false; /* the open op's pins leave too little: wait for its end rather than take part of it */
    for (uint32_t i = 0; i < task->count; i++) {
        const tide_place *place = &m->places.chunks[task->items[i].chunk];
        if (tide_place_is_resident(place))
            continue;
        all_there = false;
        if (place->busy)
            continue;
        if (tide_manager_has_slot_for(m, task->items[i].chunk)) {
            tide_manager_fetch(m, task->items[i].chunk, task->reason, command);
            return true;
        }
        if (missing++ >= m->evictions_open)
            return make_device_room(m, command);
    }
    if (!all_there)
        return false;
    hand_out(m, task, command);
    return true;
}

/* --- which task --- */

static bool gather(tide_manager *m, const tide_task *task, tide_command *command)
{
    set_gather(m, task);
    return task->tier == TIDE_TIER_HOST ? gather_on_host(m, task, command)
                                        : gather_on_device(m, task, command);
}

/* Is all of a host task where it is wanted, and a slot free for what is fresh? */
static bool is_ready_on_host(const tide_manager *m, const tide_task *task)
{
    uint32_t fresh = 0;
    for (uint32_t i = 0; i < task->count; i++) {
        const tide_place *place = &m->places.chunks[task->items[i].chunk];
        const bool writes = task->items[i].access & TIDE_ACCESS_WRITE;
        const bool leaves = (writes && !is_kept(m, task, task->items[i].chunk)) || !place->live;
        if (place->busy || (place->valid[TIDE_TIER_DEVICE] && leaves) || tide_place_is_dirty(place))
            return false;
        fresh += place->slot[TIDE_TIER_HOST] == TIDE_SLOT_NONE;
    }
    return fresh <= m->places.tier[TIDE_TIER_HOST].free_count;
}

bool tide_manager_next_ready_work(tide_manager *m, bool first_only, tide_command *command)
{
    uint32_t left = m->work_count, looked_at = 0;
    if (m->tasks_running[TIDE_TIER_HOST] >= TIDE_OPEN_TASKS_MAX)
        return false;
    for (tide_chunk chunk = m->work_first; left > 0 && looked_at < READY_LOOKED_AT_MAX; chunk++) {
        const tide_work *work = &m->works[chunk];
        assert(tide_manager_is_param_chunk(m, chunk));
        if (work->kind == TIDE_WORK_NONE)
            continue;
        left--;
        if (work->running || work->on_device || (first_only && !(m->marks[chunk] & TIDE_MARK_FIRST)))
            continue;
        looked_at++;
        const tide_task task = work_task(m, chunk);
        if (!is_ready_on_host(m, &task))
            continue;
        hand_out(m, &task, command);
        return true;
    }
    return false;
}

bool tide_manager_next_work(tide_manager *manager, bool first_only, tide_command *command)
{
    if (tide_manager_next_ready_work(manager, first_only, command))
        return true;
    bool tried[TIDE_TIER_COUNT] = {false, false};
    uint32_t left = manager->work_count;
    bool at_first = true;
    for (tide_chunk chunk = manager->work_first; left > 0; chunk++) {
        const tide_work *work = &manager->works[chunk];
        assert(tide_manager_is_param_chunk(manager, chunk));
        if (work->kind == TIDE_WORK_NONE)
            continue;
        if (at_first)
            manager->work_first = chunk;
        at_first = false;
        left--;
        tide_tier tier = work->on_device ? TIDE_TIER_DEVICE : TIDE_TIER_HOST;
        if (work->running || tried[tier] || (first_only && !(manager->marks[chunk] & TIDE_MARK_FIRST)))
            continue;
        tried[tier] = true;
        if (manager->tasks_running[tier] >= TIDE_OPEN_TASKS_MAX)
            continue;
        if (tier == TIDE_TIER_HOST && manager->out_busy && !first_only)
            continue; /* what is under way comes first; then the queue of those that leave decides */
        tide_task task = work_task(manager, chunk);
        if (gather(manager, &task, command))
            return true;
        if (tried[TIDE_TIER_DEVICE] && tried[TIDE_TIER_HOST])
            break;
    }
    return false;
}

/* --- the host request --- */

static tide_chunk param_chunk_of(const tide_manager *m, tide_chunk chunk)
{
    tide_space space = tide_layout_chunk_space(m->layout, chunk);
    if (space == TIDE_SPACE_PARAM || space == TIDE_SPACE_CHECKPOINT)
        return space == TIDE_SPACE_PARAM ? chunk : TIDE_CHUNK_NONE;
    return tide_layout_chunk_index(m->layout, chunk) / tide_layout_parts_per_chunk(m->layout);
}

static tide_status check_host_use(const tide_manager *m, const tide_use *uses, uint32_t i)
{
    if (uses[i].tensor >= m->places.chunk_count)
        return tide_fail(TIDE_ERROR_ARGUMENT, "host request: there is no chunk %u", uses[i].tensor);
    if (uses[i].access == 0 || uses[i].access & ~(unsigned)(TIDE_ACCESS_READ | TIDE_ACCESS_WRITE))
        return tide_fail(TIDE_ERROR_ARGUMENT, "host request: chunk %u's access is READ, WRITE or both",
                         uses[i].tensor);
    for (uint32_t k = 0; k < i; k++)
        if (uses[k].tensor == uses[i].tensor)
            return tide_fail(TIDE_ERROR_ARGUMENT, "host request: chunk %u is named twice", uses[i].tensor);
    return TIDE_OK;
}

tide_status tide_manager_host_request(tide_manager *manager, const tide_use *chunks, uint32_t count)
{
    if (manager->step_open)
        return tide_fail(TIDE_ERROR_STATE, "host request: a step is open");
    if (manager->host_request.count)
        return tide_fail(TIDE_ERROR_STATE, "host request: another one is open");
    if (manager->pin_all)
        return tide_fail(TIDE_ERROR_STATE, "host request: everything is pinned on the device");
    if (count == 0 || count > TIDE_TASK_CHUNKS_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "host request: %u chunks, 1 to %d are allowed", count,
                         TIDE_TASK_CHUNKS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        tide_status status = check_host_use(manager, chunks, i);
        if (status != TIDE_OK)
            return status;
    }
    tide_task *task = &manager->host_request;
    *task = (tide_task){.kind = TIDE_COMMAND_ACCESS,
                        .tier = TIDE_TIER_HOST,
                        .reason = TIDE_REASON_ACCESS,
                        .chunk = chunks[0].tensor};
    for (uint32_t i = 0; i < count; i++) {
        /* Part of a chunk may be written, so the rest of its content is always wanted. */
        add_item(task, chunks[i].tensor, chunks[i].access | TIDE_ACCESS_READ);
        tide_chunk first = param_chunk_of(manager, chunks[i].tensor);
        if (first != TIDE_CHUNK_NONE)
            manager->marks[first] |= TIDE_MARK_FIRST;
    }
    manager->host_request_running = false;
    manager->counters.calls++;
    tide_manager_changed(manager);
    return TIDE_OK;
}

void tide_manager_close_host_request(tide_manager *manager)
{
    tide_task *task = &manager->host_request;
    for (uint32_t i = 0; i < task->count; i++) {
        tide_chunk first = param_chunk_of(manager, task->items[i].chunk);
        if (first != TIDE_CHUNK_NONE)
            manager->marks[first] &= (uint8_t)~TIDE_MARK_FIRST;
    }
    task->count = 0;
    manager->host_request_running = false;
}

bool tide_manager_next_host_request(tide_manager *manager, tide_command *command)
{
    const tide_task *task = &manager->host_request;
    if (task->count == 0 || manager->host_request_running)
        return false;
    for (uint32_t i = 0; i < task->count; i++) {
        tide_chunk first = param_chunk_of(manager, task->items[i].chunk);
        if (first != TIDE_CHUNK_NONE && tide_manager_has_work(manager, first))
            return tide_manager_next_work(manager, true, command);
    }
    tide_task copy = *task;
    return gather(manager, &copy, command);
}
