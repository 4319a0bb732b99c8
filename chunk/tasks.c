#include "chunk/tasks.h"

#include <assert.h>
#include <stdlib.h>

tide_status tide_tasks_create(tide_tasks *tasks, tide_victims *victims, tide_tensors *tensors,
                              tide_pending *pending)
{
    const uint32_t chunks = tide_layout_space_chunks(victims->layout, TIDE_SPACE_PARAM);
    *tasks = (tide_tasks){.layout = victims->layout,
                          .places = victims->places,
                          .tensors = tensors,
                          .pending = pending,
                          .moves = victims->moves,
                          .victims = victims,
                          .accessed = TIDE_CHUNK_NONE};
    tasks->words = tide_bitsets_create(tasks->sets, TIDE_TASK_SETS, chunks);
    tasks->entries = calloc(chunks, sizeof *tasks->entries);
    if (!tasks->words || !tasks->entries)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for tasks of %u chunks", chunks);
    return TIDE_OK;
}

void tide_tasks_destroy(tide_tasks *tasks)
{
    free(tasks->words);
    free(tasks->entries);
    *tasks = (tide_tasks){.words = NULL};
}

/* --- which task --- */

static void add_chunk(tide_command *task, tide_chunk chunk, uint32_t access)
{
    assert(task->task_count < TIDE_TASK_CHUNKS_MAX && chunk != TIDE_CHUNK_NONE);
    task->task[task->task_count++] = (tide_task_chunk){.chunk = chunk, .access = (uint8_t)access};
}

/* The task for the next piece of a PARAM chunk's pending update or restore, without its slots. */
static tide_command pending_task(const tide_tasks *t, tide_chunk chunk)
{
    const tide_pending_update *update = &t->pending->chunks[chunk];
    const uint32_t both = TIDE_ACCESS_READ | TIDE_ACCESS_WRITE;
    const bool updates = update->kind == TIDE_PENDING_UPDATE;
    tide_command task = {.kind = updates ? TIDE_COMMAND_UPDATE : TIDE_COMMAND_RESTORE,
                         .reason = updates ? TIDE_REASON_UPDATE : TIDE_REASON_RESTORE,
                         .tier = update->on_device ? TIDE_TIER_DEVICE : TIDE_TIER_HOST,
                         .chunk = chunk,
                         .piece = tide_pending_piece(t->pending, chunk)};
    add_chunk(&task, chunk, updates || update->done > 0 ? both : TIDE_ACCESS_WRITE);
    add_chunk(&task, tide_layout_piece(t->layout, chunk, task.piece).state_chunk,
              updates ? both : TIDE_ACCESS_READ);
    return task;
}

/* The sets to which a PARAM chunk belongs: bit i for set i. */
static uint32_t entry_of(const tide_tasks *t, tide_chunk chunk)
{
    assert(tide_pending_is_param_chunk(t->pending, chunk));
    const tide_pending_update *update = &t->pending->chunks[chunk];
    const uint32_t shift = tide_place_of(t->places, chunk)->marks & TIDE_MARK_FIRST ? TIDE_TASK_FIRST : 0;
    uint32_t needs_zero;
    if (update->kind == TIDE_PENDING_NONE || update->running)
        return 0;
    if (update->on_device)
        return 1u << TIDE_TASK_WAITS_ON_DEVICE << shift;
    const tide_command task = pending_task(t, chunk);
    const uint32_t ready =
        tide_assemble_is_there(t, &task, &needs_zero) ? 1u << TIDE_TASK_READY << needs_zero : 0;
    return (1u << TIDE_TASK_WAITS_ON_HOST | ready) << shift;
}

static void look_again(tide_tasks *t)
{
    tide_chunk changed;
    while ((changed = tide_places_next_changed(t->places, TIDE_SUBSCRIBER_TASKS)) != TIDE_CHUNK_NONE) {
        tide_chunk chunk, last;
        if (!tide_pending_owners(t->pending, changed, &chunk, &last))
            continue;
        for (; chunk <= last; chunk++) {
            const uint32_t was = t->entries[chunk], is = entry_of(t, chunk);
            assert(is < 1u << TIDE_TASK_SETS);
            tide_bitsets_move(t->sets, chunk, was, is);
            t->entries[chunk] = (uint16_t)is;
        }
    }
}

/* The first PARAM chunk of set `set`, or of the same set for chunks for which a request waits; with
 * `first_only` of the latter alone. */
static tide_chunk first_of(const tide_tasks *t, uint32_t set, bool first_only)
{
    assert(set < TIDE_TASK_FIRST);
    const uint32_t awaited = tide_bitset_from(&t->sets[set + TIDE_TASK_FIRST], 0),
                   other = first_only ? TIDE_USE_NONE : tide_bitset_from(&t->sets[set], 0);
    _Static_assert(TIDE_USE_NONE == TIDE_CHUNK_NONE, "no chunk is the highest number");
    return awaited < other ? awaited : other;
}

bool tide_tasks_next_ready(tide_tasks *tasks, bool first_only, tide_command *command)
{
    const uint32_t free = tide_places_free(tasks->places, TIDE_TIER_HOST);
    tide_chunk chunk = TIDE_CHUNK_NONE;
    if (tasks->running[TIDE_TIER_HOST] >= TIDE_OPEN_TASKS_MAX || tasks->pending->count == 0)
        return false;
    look_again(tasks);
    for (uint32_t needs_zero = 0; needs_zero <= free && needs_zero <= TIDE_TASK_CHUNKS_MAX; needs_zero++) {
        const tide_chunk found = first_of(tasks, TIDE_TASK_READY + needs_zero, first_only);
        chunk = found < chunk ? found : chunk;
    }
    if (chunk == TIDE_CHUNK_NONE)
        return false;
    assert(tide_pending_has(tasks->pending, chunk) && !tasks->pending->chunks[chunk].on_device);
    const tide_command task = pending_task(tasks, chunk);
    tide_assemble_hand_out(tasks, &task, command);
    return true;
}

bool tide_tasks_next_assembly(tide_tasks *tasks, const tide_turn *turn, bool first_only,
                              tide_command *command)
{
    if (tasks->pending->count == 0)
        return false;
    look_again(tasks);
    const tide_chunk on_device = first_of(tasks, TIDE_TASK_WAITS_ON_DEVICE, first_only),
                     on_host = first_of(tasks, TIDE_TASK_WAITS_ON_HOST, first_only);
    for (int i = 0; i < TIDE_TIER_COUNT; i++) { /* first the tier whose chunk has the lower number */
        const bool device = (on_device < on_host) == (i == 0);
        const tide_chunk chunk = device ? on_device : on_host;
        const tide_tier tier = device ? TIDE_TIER_DEVICE : TIDE_TIER_HOST;
        /* if the link to the host is busy, add no copies for host tasks, unless a request waits for the
         * task */
        const bool waits = !device && turn->out_busy && !first_only;
        if (chunk == TIDE_CHUNK_NONE || waits || tasks->running[tier] >= TIDE_OPEN_TASKS_MAX)
            continue;
        assert(tide_pending_has(tasks->pending, chunk) && tasks->pending->chunks[chunk].on_device == device);
        const tide_command task = pending_task(tasks, chunk);
        if (tide_assemble_next(tasks, turn, &task, command))
            return true;
    }
    return false;
}

bool tide_tasks_next_access(tide_tasks *tasks, const tide_turn *turn, tide_command *command)
{
    assert(tide_tasks_access_waits(tasks));
    for (uint32_t i = 0; i < tasks->access.task_count; i++) {
        tide_chunk owner, last;
        bool pending = false;
        if (tide_pending_owners(tasks->pending, tasks->access.task[i].chunk, &owner, &last))
            for (; owner <= last; owner++)
                pending = pending || tide_pending_has(tasks->pending, owner);
        if (pending)
            return tide_tasks_next_ready(tasks, true, command) ||
                   tide_tasks_next_assembly(tasks, turn, true, command);
    }
    if (!tide_assemble_next(tasks, turn, &tasks->access, command))
        return false;
    tasks->access_running = command->kind == TIDE_COMMAND_ACCESS;
    return true;
}

/* --- done --- */

/* Unpin and close a chunk of a task that is done or has failed. If the task wrote the chunk, its copy in the
 * other tier becomes invalid. */
static void finish_chunk(tide_tasks *t, tide_tier tier, const tide_task_chunk *item, bool ok)
{
    const tide_chunk chunk = item->chunk;
    const tide_tier other = tier == TIDE_TIER_HOST ? TIDE_TIER_DEVICE : TIDE_TIER_HOST;
    const tide_place *place = tide_place_of(t->places, chunk);
    assert(place->pins[tier] > 0);
    tide_places_close(t->places, chunk);
    tide_places_unpin(t->places, chunk, tier);
    if (ok && item->access & TIDE_ACCESS_WRITE) {
        /* keep a stale device slot for the new values */
        if (place->slot[other] != TIDE_SLOT_NONE && !place->stale)
            tide_places_release(t->places, chunk, other);
        assert(!tide_place_has(place, other));
        tide_places_set_valid(t->places, chunk, tier);
        tide_tensors_note_content(t->tensors, chunk);
    } else if (ok && place->live) {
        /* the task zeroed the slot: these zeros are the chunk's content */
        tide_places_set_valid(t->places, chunk, tier);
    }
    tide_places_tidy_host(t->places, chunk);
}

void tide_tasks_finish(tide_tasks *tasks, const tide_command *command, tide_piece_end how)
{
    assert(command->kind > TIDE_COMMAND_WRITE_BACK);
    assert(command->task_count > 0 && command->task_count <= TIDE_TASK_CHUNKS_MAX);
    for (uint32_t i = 0; i < command->task_count; i++)
        finish_chunk(tasks, command->tier, &command->task[i], how == TIDE_PIECE_DONE);
    if (command->kind == TIDE_COMMAND_ACCESS) {
        assert(tasks->access_running);
        tide_tasks_close_access(tasks);
        return;
    }
    assert(tasks->running[command->tier] > 0);
    tasks->running[command->tier]--;
    tide_pending_piece_end(tasks->pending, command->chunk, how);
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

/* Change the marks of the PARAM chunks for whose updates the host request may have to wait. */
static void mark_access(tide_tasks *t, uint32_t set, uint32_t unset)
{
    for (uint32_t i = 0; i < t->access.task_count; i++) {
        tide_chunk owner, last;
        if (tide_pending_owners(t->pending, t->access.task[i].chunk, &owner, &last))
            for (; owner <= last; owner++)
                tide_places_change_marks(t->places, owner, set, unset);
    }
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
    assert(tasks->access.task_count == 0 && !tasks->access_running);
    tide_command *task = &tasks->access;
    *task = (tide_command){.kind = TIDE_COMMAND_ACCESS,
                           .tier = TIDE_TIER_HOST,
                           .reason = TIDE_REASON_ACCESS,
                           .chunk = chunks[0].tensor};
    /* READ, too, since the caller may write only a part of a chunk */
    for (uint32_t i = 0; i < count; i++)
        add_chunk(task, chunks[i].tensor, chunks[i].access | TIDE_ACCESS_READ);
    mark_access(tasks, TIDE_MARK_FIRST, 0);
    return TIDE_OK;
}

static void note_accessed(tide_tasks *t, tide_chunk chunk)
{
    if (t->accessed != TIDE_CHUNK_NONE)
        tide_places_unmark(t->places, t->accessed, TIDE_MARK_ACCESSED);
    tide_places_mark(t->places, chunk, TIDE_MARK_ACCESSED);
    t->accessed = chunk;
}

void tide_tasks_close_access(tide_tasks *tasks)
{
    mark_access(tasks, 0, TIDE_MARK_FIRST);
    if (tasks->access.task_count > 0)
        note_accessed(tasks, tasks->access.chunk);
    tasks->access.task_count = 0;
    tasks->access_running = false;
}

bool tide_tasks_is_valid(const tide_tasks *tasks)
{
    for (tide_chunk chunk = 0; tide_pending_is_param_chunk(tasks->pending, chunk); chunk++) {
        const tide_pending_update *update = &tasks->pending->chunks[chunk];
        const tide_command task =
            update->kind == TIDE_PENDING_NONE ? (tide_command){.task_count = 0} : pending_task(tasks, chunk);
        uint32_t changed = tide_place_of(tasks->places, chunk)->changed;
        for (uint32_t i = 0; i < task.task_count; i++)
            changed |= tide_place_of(tasks->places, task.task[i].chunk)->changed;
        if (!(changed & 1u << TIDE_SUBSCRIBER_TASKS) && tasks->entries[chunk] != entry_of(tasks, chunk))
            return false;
    }
    return true;
}
