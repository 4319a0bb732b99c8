/* See tasks.h. */
#include "chunk/tasks.h"

#include <assert.h>
#include <stdlib.h>

tide_status tide_tasks_create(tide_tasks *tasks, tide_victims *victims, tide_tensors *tensors,
                              tide_dues *dues)
{
    const uint32_t chunks = tide_layout_space_chunks(victims->layout, TIDE_SPACE_PARAM);
    *tasks = (tide_tasks){.layout = victims->layout,
                          .places = victims->places,
                          .tensors = tensors,
                          .dues = dues,
                          .moves = victims->moves,
                          .victims = victims};
    tasks->words = calloc(TIDE_TASK_SETS * tide_use_set_words(chunks), sizeof *tasks->words);
    tasks->standings = calloc(chunks, sizeof *tasks->standings);
    if (!tasks->words || !tasks->standings)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for tasks of %u chunks", chunks);
    uint64_t *words = tasks->words;
    for (int i = 0; i < TIDE_TASK_SETS; i++)
        words = tide_use_set_place(&tasks->sets[i], chunks, words);
    return TIDE_OK;
}

void tide_tasks_destroy(tide_tasks *tasks)
{
    free(tasks->words);
    free(tasks->standings);
    tasks->words = NULL;
    tasks->standings = NULL;
}

static const tide_place *place_of(const tide_tasks *t, const tide_task *task, uint32_t i)
{
    return tide_place_of(t->places, task->items[i].chunk);
}

/* --- tasks --- */

static void add_item(tide_task *task, tide_chunk chunk, uint32_t access)
{
    assert(task->count < TIDE_TASK_CHUNKS_MAX && chunk != TIDE_CHUNK_NONE);
    task->items[task->count++] = (tide_task_item){.chunk = chunk, .access = access};
}

/* The next part of what the chunk owes. */
static tide_task due_task(const tide_tasks *t, tide_chunk chunk)
{
    const tide_due *due = &t->dues->chunks[chunk];
    const uint32_t both = TIDE_ACCESS_READ | TIDE_ACCESS_WRITE;
    const bool updates = due->kind == TIDE_DUE_UPDATE;
    tide_task task = {.kind = updates ? TIDE_COMMAND_UPDATE : TIDE_COMMAND_RESTORE,
                      .reason = updates ? TIDE_REASON_UPDATE : TIDE_REASON_RESTORE,
                      .tier = due->on_device ? TIDE_TIER_DEVICE : TIDE_TIER_HOST,
                      .chunk = chunk,
                      .part = due->part};
    add_item(&task, chunk, updates || due->part > 0 ? both : TIDE_ACCESS_WRITE);
    const int last = updates ? TIDE_SPACE_VARIANCE : TIDE_SPACE_MASTER;
    for (int space = TIDE_SPACE_MASTER; space <= last; space++) {
        const tide_chunk state = tide_layout_state_chunk(t->layout, chunk, (tide_space)space, due->part);
        if (state != TIDE_CHUNK_NONE)
            add_item(&task, state, updates ? both : TIDE_ACCESS_READ);
    }
    return task;
}

static uint32_t gather_mark(tide_tier tier)
{
    return tier == TIDE_TIER_DEVICE ? TIDE_MARK_GATHER_DEVICE : TIDE_MARK_GATHER_HOST;
}

static void clear_gather(tide_tasks *t, tide_tier tier)
{
    tide_task *gather = &t->gather[tier];
    for (uint32_t i = 0; i < gather->count; i++)
        tide_places_unmark(t->places, gather->items[i].chunk, gather_mark(tier));
    gather->count = 0;
}

static void set_gather(tide_tasks *t, const tide_task *task)
{
    const tide_task *was = &t->gather[task->tier];
    if (was->count == task->count && was->chunk == task->chunk && was->part == task->part &&
        was->kind == task->kind)
        return;
    clear_gather(t, task->tier);
    t->gather[task->tier] = *task;
    for (uint32_t i = 0; i < task->count; i++)
        tide_places_mark(t->places, task->items[i].chunk, gather_mark(task->tier));
}

void tide_tasks_forget_gathers(tide_tasks *tasks)
{
    clear_gather(tasks, TIDE_TIER_DEVICE);
    clear_gather(tasks, TIDE_TIER_HOST);
}

/* All is there (and host slots are free for what is fresh): pin, and let the executor have it. */
static void hand_out(tide_tasks *t, const tide_task *task, tide_command *command)
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
        const tide_chunk chunk = task->items[i].chunk;
        const tide_place *place = place_of(t, task, i);
        const bool has_slot = place->slot[task->tier] != TIDE_SLOT_NONE;
        access[i] = task->items[i].access;
        if (!has_slot)
            (void)tide_places_take(t->places, chunk, task->tier);
        command->task[i] = (tide_task_chunk){.chunk = chunk,
                                             .slot = place->slot[task->tier],
                                             .fresh = !has_slot && access[i] & TIDE_ACCESS_READ};
        if (task->tier == TIDE_TIER_HOST && access[i] & TIDE_ACCESS_WRITE && place->valid[TIDE_TIER_DEVICE])
            tide_places_make_stale(t->places, chunk);
        tide_places_pin(t->places, chunk, task->tier);
        tide_places_open(t->places, chunk);
    }
    tide_moves_issue(t->moves, command, access);
    t->access_running |= task->kind == TIDE_COMMAND_ACCESS;
    if (task->kind != TIDE_COMMAND_ACCESS) {
        t->running[task->tier]++;
        tide_dues_part_begin(t->dues, task->chunk);
    }
    if (t->gather[task->tier].chunk == task->chunk) /* another's gathering goes on */
        clear_gather(t, task->tier);
}

/* --- gathering on the host --- */

/* A free host slot for a task; else a move towards one. */
static bool has_host_slot(tide_tasks *t, const tide_turn *turn, bool *moved, tide_command *command)
{
    *moved = false;
    if (tide_victims_free_host_slot(t->victims, TIDE_MARK_GATHER_HOST))
        return true;
    *moved = tide_victims_spill(t->victims, turn, command);
    return false;
}

/* The host may change it while its device slot waits. Only an update's: it has read what was copied out of that slot, so
 * all uses of the slot are over. */
static bool is_kept(const tide_task *task, const tide_place *place)
{
    return task->kind == TIDE_COMMAND_UPDATE && place->marks & TIDE_MARK_KEPT;
}

/* Has the task's i-th chunk to leave the device, if it is there? */
static bool leaves(const tide_task *task, uint32_t i, const tide_place *place)
{
    return (task->items[i].access & TIDE_ACCESS_WRITE && !is_kept(task, place)) || !place->live;
}

/* Steps 1 and 2 for the i-th chunk. `*there`: nothing more to do but, perhaps, step 3. */
static bool bring_to_host(tide_tasks *t, const tide_turn *turn, const tide_task *task, uint32_t i,
                          bool *there, tide_command *command)
{
    const tide_place *place = place_of(t, task, i);
    const tide_chunk chunk = task->items[i].chunk;
    bool moved = false;
    *there = false;
    if (place->busy)
        return false;
    const bool copy = tide_place_is_dirty(place) && task->items[i].access & TIDE_ACCESS_READ;
    const bool goes = place->valid[TIDE_TIER_DEVICE] && leaves(task, i, place);
    *there = !goes && !copy;
    if (*there)
        return false;
    if (copy && !has_host_slot(t, turn, &moved, command))
        return moved;
    if (goes)
        tide_moves_evict(t->moves, chunk, copy, task->reason, command);
    else
        tide_moves_write_back(t->moves, chunk, task->reason, command);
    return true;
}

static bool gather_on_host(tide_tasks *t, const tide_turn *turn, const tide_task *task, tide_command *command)
{
    uint32_t fresh = 0;
    bool all_there = true;
    for (uint32_t i = 0; i < task->count; i++) {
        bool there;
        if (bring_to_host(t, turn, task, i, &there, command))
            return true;
        all_there &= there;
        fresh += place_of(t, task, i)->slot[TIDE_TIER_HOST] == TIDE_SLOT_NONE;
    }
    if (!all_there)
        return false;
    /* Step 3: slots of duplicates are free at once, others take a spill each. */
    while (tide_places_free(t->places, TIDE_TIER_HOST) < fresh) {
        if (!tide_victims_drop_duplicate(t->victims, TIDE_MARK_GATHER_HOST))
            return tide_victims_spill(t->victims, turn, command);
    }
    hand_out(t, task, command);
    return true;
}

/* --- gathering on the device --- */

static bool make_device_room(tide_tasks *t, const tide_turn *turn, tide_command *command)
{
    tide_victim_rule rule = {.spared = TIDE_MARK_GATHER_DEVICE | TIDE_MARK_REQUESTED,
                             .spared_duplicates = TIDE_MARK_GATHER_HOST};
    if (tide_victims_evict(t->victims, rule, TIDE_REASON_UPDATE, command))
        return true;
    if (!turn->request_yields)
        return false;
    rule.spared = TIDE_MARK_GATHER_DEVICE; /* what the request has by now, it gets back after this task */
    return tide_victims_evict(t->victims, rule, TIDE_REASON_UPDATE, command);
}

static bool gather_on_device(tide_tasks *t, const tide_turn *turn, const tide_task *task,
                             tide_command *command)
{
    uint32_t missing = 0;
    bool all_there = true;
    if (t->places->tier[TIDE_TIER_DEVICE].count - t->places->pinned[TIDE_TIER_DEVICE] < task->count)
        return false; /* the open op's pins leave too little: wait for its end rather than take part of it */
    for (uint32_t i = 0; i < task->count; i++) {
        const tide_place *place = place_of(t, task, i);
        if (tide_place_is_resident(place))
            continue;
        all_there = false;
        if (place->busy)
            continue;
        if (tide_places_has_slot_for(t->places, task->items[i].chunk)) {
            tide_moves_fetch(t->moves, task->items[i].chunk, task->reason, command);
            return true;
        }
        if (missing++ >= t->moves->evictions_open)
            return make_device_room(t, turn, command);
    }
    if (!all_there)
        return false;
    hand_out(t, task, command);
    return true;
}

/* --- which task --- */

static bool gather(tide_tasks *t, const tide_turn *turn, const tide_task *task, tide_command *command)
{
    set_gather(t, task);
    return task->tier == TIDE_TIER_HOST ? gather_on_host(t, turn, task, command)
                                        : gather_on_device(t, turn, task, command);
}

/* Is all of a host task where it is wanted, but for `*fresh` chunks that need a slot? */
static bool is_there_on_host(const tide_tasks *t, const tide_task *task, uint32_t *fresh)
{
    *fresh = 0;
    for (uint32_t i = 0; i < task->count; i++) {
        const tide_place *place = place_of(t, task, i);
        if (place->busy || (place->valid[TIDE_TIER_DEVICE] && leaves(task, i, place)) ||
            tide_place_is_dirty(place))
            return false;
        *fresh += place->slot[TIDE_TIER_HOST] == TIDE_SLOT_NONE;
    }
    return true;
}

/* The sets that a PARAM chunk belongs to: bit i for set i. */
static uint32_t standing_of(const tide_tasks *t, tide_chunk chunk)
{
    const tide_due *due = &t->dues->chunks[chunk];
    const uint32_t shift = tide_place_of(t->places, chunk)->marks & TIDE_MARK_FIRST ? TIDE_TASK_FIRST : 0;
    uint32_t fresh;
    if (due->kind == TIDE_DUE_NONE || due->running)
        return 0;
    if (due->on_device)
        return 1u << TIDE_TASK_WAITS_ON_DEVICE << shift;
    const tide_task task = due_task(t, chunk);
    const uint32_t ready = is_there_on_host(t, &task, &fresh) ? 1u << TIDE_TASK_READY << fresh : 0;
    return (1u << TIDE_TASK_WAITS_ON_HOST | ready) << shift;
}

static void look_again(tide_tasks *t)
{
    tide_chunk noted;
    while ((noted = tide_places_noted(t->places, TIDE_WATCHER_TASKS)) != TIDE_CHUNK_NONE) {
        const tide_chunk chunk = tide_dues_param_chunk(t->dues, noted);
        if (chunk == TIDE_CHUNK_NONE)
            continue;
        const uint32_t was = t->standings[chunk], is = standing_of(t, chunk);
        for (uint32_t changed = was ^ is; changed; changed &= changed - 1) {
            tide_use_set *set = &t->sets[__builtin_ctz(changed)];
            if (is & changed & -changed)
                tide_use_set_insert(set, chunk);
            else
                tide_use_set_erase(set, chunk);
        }
        t->standings[chunk] = (uint16_t)is;
    }
}

/* The first chunk of a set, or with `first_only` of those in it that a request waits for. */
static tide_chunk first_of(const tide_tasks *t, uint32_t set, bool first_only)
{
    const uint32_t awaited = tide_use_set_from(&t->sets[set + TIDE_TASK_FIRST], 0),
                   other = first_only ? TIDE_USE_NONE : tide_use_set_from(&t->sets[set], 0);
    _Static_assert(TIDE_USE_NONE == TIDE_CHUNK_NONE, "no chunk is the highest number");
    return awaited < other ? awaited : other;
}

bool tide_tasks_next_ready(tide_tasks *tasks, bool first_only, tide_command *command)
{
    const uint32_t free = tide_places_free(tasks->places, TIDE_TIER_HOST);
    tide_chunk chunk = TIDE_CHUNK_NONE;
    if (tasks->running[TIDE_TIER_HOST] >= TIDE_OPEN_TASKS_MAX || tasks->dues->count == 0)
        return false;
    look_again(tasks);
    for (uint32_t fresh = 0; fresh <= free && fresh <= TIDE_TASK_CHUNKS_MAX; fresh++) {
        const tide_chunk found = first_of(tasks, TIDE_TASK_READY + fresh, first_only);
        chunk = found < chunk ? found : chunk;
    }
    if (chunk == TIDE_CHUNK_NONE)
        return false;
    const tide_task task = due_task(tasks, chunk);
    hand_out(tasks, &task, command);
    return true;
}

/* May the tier's next task be gathered? On the host what is under way comes first; then those that leave decide. */
static bool may_gather(const tide_tasks *t, const tide_turn *turn, tide_tier tier, bool first_only)
{
    return t->running[tier] < TIDE_OPEN_TASKS_MAX &&
           (tier == TIDE_TIER_DEVICE || !turn->out_busy || first_only);
}

bool tide_tasks_next_gather(tide_tasks *tasks, const tide_turn *turn, bool first_only, tide_command *command)
{
    if (tasks->dues->count == 0)
        return false;
    look_again(tasks);
    const tide_chunk on_device = first_of(tasks, TIDE_TASK_WAITS_ON_DEVICE, first_only),
                     on_host = first_of(tasks, TIDE_TASK_WAITS_ON_HOST, first_only);
    for (int i = 0; i < TIDE_TIER_COUNT; i++) { /* the first chunk first */
        const bool device = (on_device < on_host) == (i == 0);
        const tide_chunk chunk = device ? on_device : on_host;
        if (chunk == TIDE_CHUNK_NONE ||
            !may_gather(tasks, turn, device ? TIDE_TIER_DEVICE : TIDE_TIER_HOST, first_only))
            continue;
        const tide_task task = due_task(tasks, chunk);
        if (gather(tasks, turn, &task, command))
            return true;
    }
    return false;
}

bool tide_tasks_next_access(tide_tasks *tasks, const tide_turn *turn, tide_command *command)
{
    assert(tide_tasks_access_waits(tasks));
    for (uint32_t i = 0; i < tasks->access.count; i++) {
        const tide_chunk first = tide_dues_param_chunk(tasks->dues, tasks->access.items[i].chunk);
        if (first != TIDE_CHUNK_NONE && tide_dues_has(tasks->dues, first))
            return tide_tasks_next_ready(tasks, true, command) ||
                   tide_tasks_next_gather(tasks, turn, true, command);
    }
    const tide_task task = tasks->access;
    return gather(tasks, turn, &task, command);
}

/* --- done --- */

/* What was written in one tier is no longer valid in the other. */
static void finish_chunk(tide_tasks *t, tide_tier tier, tide_chunk chunk, uint32_t access, bool ok)
{
    const tide_tier other = tier == TIDE_TIER_HOST ? TIDE_TIER_DEVICE : TIDE_TIER_HOST;
    const tide_place *place = tide_place_of(t->places, chunk);
    assert(place->pins[tier] > 0);
    tide_places_close(t->places, chunk);
    tide_places_unpin(t->places, chunk, tier);
    if (ok && access & TIDE_ACCESS_WRITE) {
        if (place->slot[other] != TIDE_SLOT_NONE && !place->stale) /* a stale one waits in its slot */
            tide_places_release(t->places, chunk, other);
        tide_places_set_valid(t->places, chunk, tier);
        tide_tensors_note_content(t->tensors, chunk);
    } else if (ok && place->live) {
        tide_places_set_valid(t->places, chunk, tier); /* fresh zeros that were read stand for the content */
    }
    tide_places_tidy_host(t->places, chunk);
}

void tide_tasks_finish(tide_tasks *tasks, const tide_open_command *open, tide_part_end how)
{
    const tide_command *command = &open->command;
    for (uint32_t i = 0; i < command->task_count; i++)
        finish_chunk(tasks, command->tier, command->task[i].chunk, open->access[i], how == TIDE_PART_DONE);
    if (command->kind == TIDE_COMMAND_ACCESS) {
        tide_tasks_close_access(tasks);
        return;
    }
    assert(tasks->running[command->tier] > 0);
    tasks->running[command->tier]--;
    tide_dues_part_end(tasks->dues, command->chunk, how);
}

/* --- the host request --- */

static tide_status check_access(const tide_tasks *t, const tide_use *uses, uint32_t i)
{
    if (uses[i].tensor >= t->places->chunk_count)
        return tide_fail(TIDE_ERROR_ARGUMENT, "host request: there is no chunk %u", uses[i].tensor);
    if (uses[i].access == 0 || uses[i].access & ~(unsigned)(TIDE_ACCESS_READ | TIDE_ACCESS_WRITE))
        return tide_fail(TIDE_ERROR_ARGUMENT, "host request: chunk %u's access is READ, WRITE or both",
                         uses[i].tensor);
    for (uint32_t k = 0; k < i; k++)
        if (uses[k].tensor == uses[i].tensor)
            return tide_fail(TIDE_ERROR_ARGUMENT, "host request: chunk %u is named twice", uses[i].tensor);
    return TIDE_OK;
}

tide_status tide_tasks_open_access(tide_tasks *tasks, const tide_use *chunks, uint32_t count)
{
    tide_status status = TIDE_OK;
    if (count == 0 || count > TIDE_TASK_CHUNKS_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "host request: %u chunks, 1 to %d are allowed", count,
                         TIDE_TASK_CHUNKS_MAX);
    for (uint32_t i = 0; i < count && status == TIDE_OK; i++)
        status = check_access(tasks, chunks, i);
    if (status != TIDE_OK)
        return status;
    tide_task *task = &tasks->access;
    *task = (tide_task){.kind = TIDE_COMMAND_ACCESS,
                        .tier = TIDE_TIER_HOST,
                        .reason = TIDE_REASON_ACCESS,
                        .chunk = chunks[0].tensor};
    for (uint32_t i = 0; i < count; i++) {
        /* Part of a chunk may be written, so the rest of its content is always wanted. */
        add_item(task, chunks[i].tensor, chunks[i].access | TIDE_ACCESS_READ);
        const tide_chunk first = tide_dues_param_chunk(tasks->dues, chunks[i].tensor);
        if (first != TIDE_CHUNK_NONE)
            tide_places_mark(tasks->places, first, TIDE_MARK_FIRST);
    }
    tasks->access_running = false;
    return TIDE_OK;
}

void tide_tasks_close_access(tide_tasks *tasks)
{
    tide_task *task = &tasks->access;
    for (uint32_t i = 0; i < task->count; i++) {
        const tide_chunk first = tide_dues_param_chunk(tasks->dues, task->items[i].chunk);
        if (first != TIDE_CHUNK_NONE)
            tide_places_unmark(tasks->places, first, TIDE_MARK_FIRST);
    }
    task->count = 0;
    tasks->access_running = false;
}

bool tide_tasks_is_valid(const tide_tasks *tasks)
{
    for (tide_chunk chunk = 0; tide_dues_is_param_chunk(tasks->dues, chunk); chunk++) {
        const tide_due *due = &tasks->dues->chunks[chunk];
        const tide_task task = due->kind == TIDE_DUE_NONE ? (tide_task){.count = 0} : due_task(tasks, chunk);
        uint32_t noted = tide_place_of(tasks->places, chunk)->noted;
        for (uint32_t i = 0; i < task.count; i++)
            noted |= place_of(tasks, &task, i)->noted;
        if (!(noted & 1u << TIDE_WATCHER_TASKS) && tasks->standings[chunk] != standing_of(tasks, chunk))
            return false;
    }
    return true;
}
