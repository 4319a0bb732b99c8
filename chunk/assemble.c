/* Assembles tasks: brings the chunks of a task together in slots of one tier.
 *
 * A pending update or restore of a PARAM chunk is one task per piece, one after the other. Chunks of the
 * tasks:
 *
 *   UPDATE    PARAM and STATE read and written
 *   RESTORE   PARAM written (the first piece does not need its old values, so they are not copied to the
 *             host), STATE read; on the tier that would update the chunk
 *   ACCESS    the host request: up to two chunks of any space, on the host
 *
 * A host task whose chunks are all on the host is handed out without assembly, in forward order if there are
 * several. Most updates are, since gradients are copied to the host as soon as they are complete. Of the
 * tasks that lack a chunk, each tier assembles one at a time. Each turn makes the first of these moves that
 * is possible:
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
 * The tasks assembled on the two tiers at the same time never share a chunk. If two pieces want the same
 * STATE chunk, the one for which a request waits, else the one of the lower PARAM chunk, is assembled first.
 *
 * Until the last step the chunks are not pinned but marked, so that neither another task nor prefetch takes
 * their slots. An op's request may take them; then the assembly goes on afterwards.
 */
#include "chunk/tasks.h"

#include <assert.h>

static const tide_place *place_of(const tide_tasks *t, const tide_command *task, uint32_t i)
{
    return tide_place_of(t->places, task->task[i].chunk);
}

static uint32_t assembly_mark(tide_tier tier)
{
    return tier == TIDE_TIER_DEVICE ? TIDE_MARK_ASSEMBLE_DEVICE : TIDE_MARK_ASSEMBLE_HOST;
}

static void clear_assembly(tide_tasks *t, tide_tier tier)
{
    tide_command *assembly = &t->assembling[tier];
    for (uint32_t i = 0; i < assembly->task_count; i++)
        tide_places_unmark(t->places, assembly->task[i].chunk, assembly_mark(tier));
    assembly->task_count = 0;
}

static void set_assembly(tide_tasks *t, const tide_command *task)
{
    assert(task->task_count > 0 && (unsigned)task->tier < TIDE_TIER_COUNT);
    const tide_command *was = &t->assembling[task->tier];
    if (was->task_count == task->task_count && was->chunk == task->chunk && was->piece == task->piece &&
        was->kind == task->kind)
        return;
    clear_assembly(t, task->tier);
    t->assembling[task->tier] = *task;
    for (uint32_t i = 0; i < task->task_count; i++)
        tide_places_mark(t->places, task->task[i].chunk, assembly_mark(task->tier));
}

void tide_assemble_forget(tide_tasks *tasks)
{
    clear_assembly(tasks, TIDE_TIER_DEVICE);
    clear_assembly(tasks, TIDE_TIER_HOST);
}

void tide_assemble_hand_out(tide_tasks *t, const tide_command *task, tide_command *command)
{
    assert(task->kind == TIDE_COMMAND_ACCESS || t->running[task->tier] < TIDE_OPEN_TASKS_MAX);
    assert(task->task_count > 0 && task->task_count <= TIDE_TASK_CHUNKS_MAX);
    *command = *task;
    command->device_slot = command->host_slot = TIDE_SLOT_NONE;
    for (uint32_t i = 0; i < task->task_count; i++) {
        tide_task_chunk *item = &command->task[i];
        const tide_place *place = place_of(t, task, i);
        const bool has_slot = place->slot[task->tier] != TIDE_SLOT_NONE;
        assert(!place->busy && (has_slot || task->tier == TIDE_TIER_HOST));
        assert(place->pins[TIDE_TIER_DEVICE] == 0 && place->pins[TIDE_TIER_HOST] == 0);
        if (!has_slot)
            (void)tide_places_take(t->places, item->chunk, task->tier);
        item->slot = place->slot[task->tier];
        item->needs_zero = !has_slot && item->access & TIDE_ACCESS_READ;
        if (task->tier == TIDE_TIER_HOST && item->access & TIDE_ACCESS_WRITE &&
            tide_place_has(place, TIDE_TIER_DEVICE))
            tide_places_make_stale(t->places, item->chunk);
        tide_places_pin(t->places, item->chunk, task->tier);
        tide_places_open(t->places, item->chunk);
    }
    tide_moves_issue(t->moves, command);
    if (task->kind != TIDE_COMMAND_ACCESS) {
        t->running[task->tier]++;
        tide_pending_piece_begin(t->pending, task->chunk);
    }
    /* but keep the marks of another task that is being assembled on this tier */
    if (t->assembling[task->tier].chunk == task->chunk)
        clear_assembly(t, task->tier);
}

/* --- assembling on the host --- */

/* May the host change the chunk while the chunk's device slot stays mapped? An update may: it reads the copy
 * that was made of the slot, so all uses of the slot have ended. */
static bool is_kept(const tide_command *task, const tide_place *place)
{
    return task->kind == TIDE_COMMAND_UPDATE && place->marks & TIDE_MARK_KEPT;
}

/* Must the task's i-th chunk leave the device before the host task begins? */
static bool leaves(const tide_command *task, uint32_t i, const tide_place *place)
{
    const bool written = task->task[i].access & TIDE_ACCESS_WRITE;
    return tide_place_has(place, TIDE_TIER_DEVICE) && ((written && !is_kept(task, place)) || !place->live);
}

bool tide_assemble_is_there(const tide_tasks *t, const tide_command *task, uint32_t *needs_zero)
{
    assert(task->tier == TIDE_TIER_HOST);
    *needs_zero = 0;
    for (uint32_t i = 0; i < task->task_count; i++) {
        const tide_place *place = place_of(t, task, i);
        if (place->busy || leaves(task, i, place) || tide_place_is_dirty(place))
            return false;
        *needs_zero += place->slot[TIDE_TIER_HOST] == TIDE_SLOT_NONE;
    }
    return true;
}

/* Drop a host copy that the device has, too, to free a host slot for the task. For the host request, keep the
 * first chunk of the last request if possible: a caller who reads values one after another from two chunks in
 * turn then has each chunk copied only once. */
static bool drop_duplicate(tide_tasks *t, const tide_command *task)
{
    const uint32_t spared = TIDE_MARK_ASSEMBLE_HOST;
    return (task->kind == TIDE_COMMAND_ACCESS &&
            tide_victims_drop_duplicate(t->victims, spared | TIDE_MARK_ACCESSED)) ||
           tide_victims_drop_duplicate(t->victims, spared);
}

/* Do step 1 or 2 for the first chunk that allows it. */
static bool bring_to_host(tide_tasks *t, const tide_turn *turn, const tide_command *task,
                          tide_command *command)
{
    for (uint32_t i = 0; i < task->task_count; i++) {
        const tide_place *place = place_of(t, task, i);
        const tide_chunk chunk = task->task[i].chunk;
        const bool copy = tide_place_is_dirty(place) && task->task[i].access & TIDE_ACCESS_READ;
        const bool goes = leaves(task, i, place);
        if (place->busy || (!copy && !goes))
            continue;
        if (copy && tide_places_free(t->places, TIDE_TIER_HOST) == 0 && !drop_duplicate(t, task)) {
            if (tide_victims_promote(t->victims, turn, command))
                return true;
            continue;
        }
        tide_moves_out(t->moves, goes ? TIDE_COMMAND_EVICT : TIDE_COMMAND_WRITE_BACK, chunk, copy,
                       task->reason, command);
        return true;
    }
    return false;
}

static bool assemble_on_host(tide_tasks *t, const tide_turn *turn, const tide_command *task,
                             tide_command *command)
{
    uint32_t needs_zero;
    if (!tide_assemble_is_there(t, task, &needs_zero))
        return bring_to_host(t, turn, task, command);
    /* Step 3. The slot of a host copy that the device has, too, can be freed at once; any other by a
     * promotion. */
    while (tide_places_free(t->places, TIDE_TIER_HOST) < needs_zero) {
        if (!drop_duplicate(t, task))
            return tide_victims_promote(t->victims, turn, command);
    }
    tide_assemble_hand_out(t, task, command);
    return true;
}

/* --- assembling on the device --- */

static bool make_device_space(tide_tasks *t, const tide_turn *turn, tide_reason reason, tide_command *command)
{
    tide_victim_rule rule = {.spared = TIDE_MARK_ASSEMBLE_DEVICE | TIDE_MARK_REQUESTED,
                             .spared_duplicates = TIDE_MARK_ASSEMBLE_HOST};
    if (tide_victims_evict(t->victims, rule, reason, command))
        return true;
    /* the request waits for this task: its slots may be taken, it gets them back afterwards */
    rule.spared = TIDE_MARK_ASSEMBLE_DEVICE;
    return turn->request_yields && tide_victims_evict(t->victims, rule, reason, command);
}

static bool assemble_on_device(tide_tasks *t, const tide_turn *turn, const tide_command *task,
                               tide_command *command)
{
    assert(task->kind != TIDE_COMMAND_ACCESS);
    uint32_t missing = 0;
    bool all_there = true;
    if (t->places->tier[TIDE_TIER_DEVICE].count - t->places->pinned[TIDE_TIER_DEVICE] < task->task_count)
        return false; /* the open op has pinned too many slots: wait for its end */
    for (uint32_t i = 0; i < task->task_count; i++) {
        const tide_place *place = place_of(t, task, i);
        if (tide_place_is_resident(place))
            continue;
        all_there = false;
        if (place->busy)
            continue;
        if (tide_places_has_slot_for(t->places, task->task[i].chunk)) {
            tide_moves_fetch(t->moves, task->task[i].chunk, task->reason, command);
            return true;
        }
        if (missing++ >= t->moves->evictions_open)
            return make_device_space(t, turn, task->reason, command);
    }
    if (!all_there)
        return false;
    tide_assemble_hand_out(t, task, command);
    return true;
}

static bool is_awaited(const tide_tasks *t, const tide_command *task)
{
    return tide_place_of(t->places, task->chunk)->marks & TIDE_MARK_FIRST;
}

/* Do the two tasks share a chunk? */
static bool overlap(const tide_command *a, const tide_command *b)
{
    for (uint32_t i = 0; i < a->task_count; i++)
        for (uint32_t k = 0; k < b->task_count; k++)
            if (a->task[i].chunk == b->task[k].chunk)
                return true;
    return false;
}

/* May this task be assembled at the same time as the task on the other tier? */
static bool takes_over(tide_tasks *t, const tide_command *task)
{
    const tide_tier other_tier = task->tier == TIDE_TIER_HOST ? TIDE_TIER_DEVICE : TIDE_TIER_HOST;
    const tide_command *other = &t->assembling[other_tier];
    if (!overlap(task, other))
        return true;
    const bool wanted = is_awaited(t, task), others = is_awaited(t, other);
    if (wanted != others ? others : other->chunk < task->chunk)
        return false;
    clear_assembly(t, other_tier);
    return true;
}

bool tide_assemble_next(tide_tasks *t, const tide_turn *turn, const tide_command *task, tide_command *command)
{
    if (!takes_over(t, task))
        return false;
    set_assembly(t, task);
    return task->tier == TIDE_TIER_HOST ? assemble_on_host(t, turn, task, command)
                                        : assemble_on_device(t, turn, task, command);
}
