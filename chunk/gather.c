/* See gather.h. */
#include "chunk/gather.h"

#include <assert.h>

void tide_gather_init(tide_gather *gather, tide_victims *victims, tide_tensors *tensors, tide_dues *dues)
{
    *gather = (tide_gather){.layout = victims->layout,
                            .places = victims->places,
                            .tensors = tensors,
                            .dues = dues,
                            .moves = victims->moves,
                            .victims = victims};
}

static const tide_place *place_of(const tide_gather *g, const tide_command *task, uint32_t i)
{
    return tide_place_of(g->places, task->task[i].chunk);
}

/* --- tasks --- */

void tide_task_add(tide_command *task, tide_chunk chunk, uint32_t access)
{
    assert(task->task_count < TIDE_TASK_CHUNKS_MAX && chunk != TIDE_CHUNK_NONE);
    task->task[task->task_count++] = (tide_task_chunk){.chunk = chunk, .access = (uint8_t)access};
}

tide_command tide_gather_due(const tide_gather *g, tide_chunk chunk)
{
    const tide_due *due = &g->dues->chunks[chunk];
    assert(due->kind != TIDE_DUE_NONE && due->part < due->parts);
    const uint32_t both = TIDE_ACCESS_READ | TIDE_ACCESS_WRITE;
    const bool updates = due->kind == TIDE_DUE_UPDATE;
    assert(updates || !due->on_device);
    tide_command task = {.kind = updates ? TIDE_COMMAND_UPDATE : TIDE_COMMAND_RESTORE,
                         .reason = updates ? TIDE_REASON_UPDATE : TIDE_REASON_RESTORE,
                         .tier = due->on_device ? TIDE_TIER_DEVICE : TIDE_TIER_HOST,
                         .chunk = chunk,
                         .device_slot = TIDE_SLOT_NONE,
                         .host_slot = TIDE_SLOT_NONE,
                         .part = due->part};
    tide_task_add(&task, chunk, updates || due->part > 0 ? both : TIDE_ACCESS_WRITE);
    const int last = updates ? TIDE_SPACE_VARIANCE : TIDE_SPACE_MASTER;
    for (int space = TIDE_SPACE_MASTER; space <= last; space++) {
        const tide_chunk state = tide_layout_state_chunk(g->layout, chunk, (tide_space)space, due->part);
        if (state != TIDE_CHUNK_NONE)
            tide_task_add(&task, state, updates ? both : TIDE_ACCESS_READ);
    }
    assert(task.task_count >= 2);
    return task;
}

static uint32_t gather_mark(tide_tier tier)
{
    return tier == TIDE_TIER_DEVICE ? TIDE_MARK_GATHER_DEVICE : TIDE_MARK_GATHER_HOST;
}

static void clear_gather(tide_gather *g, tide_tier tier)
{
    tide_command *gather = &g->tasks[tier];
    for (uint32_t i = 0; i < gather->task_count; i++)
        tide_places_unmark(g->places, gather->task[i].chunk, gather_mark(tier));
    gather->task_count = 0;
}

static void set_gather(tide_gather *g, const tide_command *task)
{
    assert(task->task_count > 0 && (unsigned)task->tier < TIDE_TIER_COUNT);
    const tide_command *was = &g->tasks[task->tier];
    if (was->task_count == task->task_count && was->chunk == task->chunk && was->part == task->part &&
        was->kind == task->kind)
        return;
    clear_gather(g, task->tier);
    g->tasks[task->tier] = *task;
    for (uint32_t i = 0; i < task->task_count; i++)
        tide_places_mark(g->places, task->task[i].chunk, gather_mark(task->tier));
}

void tide_gather_forget(tide_gather *gather)
{
    clear_gather(gather, TIDE_TIER_DEVICE);
    clear_gather(gather, TIDE_TIER_HOST);
}

void tide_gather_hand_out(tide_gather *g, const tide_command *task, tide_command *command)
{
    assert(task->kind == TIDE_COMMAND_ACCESS || g->running[task->tier] < TIDE_OPEN_TASKS_MAX);
    assert(task->task_count > 0 && task->task_count <= TIDE_TASK_CHUNKS_MAX);
    *command = *task;
    for (uint32_t i = 0; i < task->task_count; i++) {
        tide_task_chunk *item = &command->task[i];
        const tide_place *place = place_of(g, task, i);
        const bool has_slot = place->slot[task->tier] != TIDE_SLOT_NONE;
        assert(!place->busy && (has_slot || task->tier == TIDE_TIER_HOST));
        assert(place->pins[TIDE_TIER_DEVICE] == 0 && place->pins[TIDE_TIER_HOST] == 0);
        if (!has_slot)
            (void)tide_places_take(g->places, item->chunk, task->tier);
        item->slot = place->slot[task->tier];
        item->fresh = !has_slot && item->access & TIDE_ACCESS_READ;
        if (task->tier == TIDE_TIER_HOST && item->access & TIDE_ACCESS_WRITE &&
            tide_place_has(place, TIDE_TIER_DEVICE))
            tide_places_make_stale(g->places, item->chunk);
        tide_places_pin(g->places, item->chunk, task->tier);
        tide_places_open(g->places, item->chunk);
    }
    tide_moves_issue(g->moves, command);
    if (task->kind != TIDE_COMMAND_ACCESS) {
        g->running[task->tier]++;
        tide_dues_part_begin(g->dues, task->chunk);
    }
    if (g->tasks[task->tier].chunk == task->chunk) /* another's gathering goes on */
        clear_gather(g, task->tier);
}

/* --- gathering on the host --- */

/* The host may change it while its device slot waits. Only an update's: it has read what was copied out of that slot, so
 * all uses of the slot are over. */
static bool is_kept(const tide_command *task, const tide_place *place)
{
    return task->kind == TIDE_COMMAND_UPDATE && place->marks & TIDE_MARK_KEPT;
}

/* Has the task's i-th chunk to leave the device? */
static bool leaves(const tide_command *task, uint32_t i, const tide_place *place)
{
    const bool written = task->task[i].access & TIDE_ACCESS_WRITE;
    return tide_place_has(place, TIDE_TIER_DEVICE) && ((written && !is_kept(task, place)) || !place->live);
}

bool tide_gather_is_there(const tide_gather *g, const tide_command *task, uint32_t *fresh)
{
    assert(task->tier == TIDE_TIER_HOST);
    *fresh = 0;
    for (uint32_t i = 0; i < task->task_count; i++) {
        const tide_place *place = place_of(g, task, i);
        if (place->busy || leaves(task, i, place) || tide_place_is_dirty(place))
            return false;
        *fresh += place->slot[TIDE_TIER_HOST] == TIDE_SLOT_NONE;
    }
    return true;
}

/* Steps 1 and 2, of the first chunk for which that can be done. */
static bool bring_to_host(tide_gather *g, const tide_turn *turn, const tide_command *task,
                          tide_command *command)
{
    for (uint32_t i = 0; i < task->task_count; i++) {
        const tide_place *place = place_of(g, task, i);
        const tide_chunk chunk = task->task[i].chunk;
        const bool copy = tide_place_is_dirty(place) && task->task[i].access & TIDE_ACCESS_READ;
        const bool goes = leaves(task, i, place);
        if (place->busy || (!copy && !goes))
            continue;
        if (copy && !tide_victims_free_host_slot(g->victims, TIDE_MARK_GATHER_HOST)) {
            if (tide_victims_spill(g->victims, turn, command))
                return true;
            continue;
        }
        tide_moves_out(g->moves, goes ? TIDE_COMMAND_EVICT : TIDE_COMMAND_WRITE_BACK, chunk, copy,
                       task->reason, command);
        return true;
    }
    return false;
}

static bool gather_on_host(tide_gather *g, const tide_turn *turn, const tide_command *task,
                           tide_command *command)
{
    uint32_t fresh;
    if (!tide_gather_is_there(g, task, &fresh))
        return bring_to_host(g, turn, task, command);
    /* Step 3: slots of duplicates are free at once, others take a spill each. */
    while (tide_places_free(g->places, TIDE_TIER_HOST) < fresh) {
        if (!tide_victims_drop_duplicate(g->victims, TIDE_MARK_GATHER_HOST))
            return tide_victims_spill(g->victims, turn, command);
    }
    tide_gather_hand_out(g, task, command);
    return true;
}

/* --- gathering on the device --- */

static bool make_device_room(tide_gather *g, const tide_turn *turn, tide_command *command)
{
    tide_victim_rule rule = {.spared = TIDE_MARK_GATHER_DEVICE | TIDE_MARK_REQUESTED,
                             .spared_duplicates = TIDE_MARK_GATHER_HOST};
    if (tide_victims_evict(g->victims, rule, TIDE_REASON_UPDATE, command))
        return true;
    rule.spared = TIDE_MARK_GATHER_DEVICE; /* what the request has by now, it gets back after this task */
    return turn->request_yields && tide_victims_evict(g->victims, rule, TIDE_REASON_UPDATE, command);
}

static bool gather_on_device(tide_gather *g, const tide_turn *turn, const tide_command *task,
                             tide_command *command)
{
    assert(task->kind == TIDE_COMMAND_UPDATE);
    uint32_t missing = 0;
    bool all_there = true;
    if (g->places->tier[TIDE_TIER_DEVICE].count - g->places->pinned[TIDE_TIER_DEVICE] < task->task_count)
        return false; /* the open op's pins leave too little: wait for its end rather than take part of it */
    for (uint32_t i = 0; i < task->task_count; i++) {
        const tide_place *place = place_of(g, task, i);
        if (tide_place_is_resident(place))
            continue;
        all_there = false;
        if (place->busy)
            continue;
        if (tide_places_has_slot_for(g->places, task->task[i].chunk)) {
            tide_moves_fetch(g->moves, task->task[i].chunk, task->reason, command);
            return true;
        }
        if (missing++ >= g->moves->evictions_open)
            return make_device_room(g, turn, command);
    }
    if (!all_there)
        return false;
    tide_gather_hand_out(g, task, command);
    return true;
}

bool tide_gather_next(tide_gather *g, const tide_turn *turn, const tide_command *task, tide_command *command)
{
    set_gather(g, task);
    return task->tier == TIDE_TIER_HOST ? gather_on_host(g, turn, task, command)
                                        : gather_on_device(g, turn, task, command);
}

/* --- done --- */

/* What was written in one tier is no longer valid in the other. */
static void finish_chunk(tide_gather *g, tide_tier tier, const tide_task_chunk *item, bool ok)
{
    const tide_chunk chunk = item->chunk;
    const tide_tier other = tier == TIDE_TIER_HOST ? TIDE_TIER_DEVICE : TIDE_TIER_HOST;
    const tide_place *place = tide_place_of(g->places, chunk);
    assert(place->pins[tier] > 0);
    tide_places_close(g->places, chunk);
    tide_places_unpin(g->places, chunk, tier);
    if (ok && item->access & TIDE_ACCESS_WRITE) {
        if (place->slot[other] != TIDE_SLOT_NONE && !place->stale) /* a stale one waits in its slot */
            tide_places_release(g->places, chunk, other);
        assert(!tide_place_has(place, other));
        tide_places_set_valid(g->places, chunk, tier);
        tide_tensors_note_content(g->tensors, chunk);
    } else if (ok && place->live) {
        tide_places_set_valid(g->places, chunk, tier); /* fresh zeros that were read stand for the content */
    }
    tide_places_tidy_host(g->places, chunk);
}

void tide_gather_finish(tide_gather *gather, const tide_command *command, tide_part_end how)
{
    assert(command->kind > TIDE_COMMAND_WRITE_BACK);
    assert(command->task_count > 0 && command->task_count <= TIDE_TASK_CHUNKS_MAX);
    for (uint32_t i = 0; i < command->task_count; i++)
        finish_chunk(gather, command->tier, &command->task[i], how == TIDE_PART_DONE);
    if (command->kind == TIDE_COMMAND_ACCESS)
        return;
    assert(gather->running[command->tier] > 0);
    gather->running[command->tier]--;
    tide_dues_part_end(gather->dues, command->chunk, how);
}
