/* next and done: the order in which things are tried, and what a command's completion changes.
 *
 * next() tries, in this order:
 *
 *   1. the open op's (or slice's) request
 *      a. a requested chunk owes an update or a restore: that comes first. Meanwhile what is requested and owes nothing
 *         is fetched into free slots, other updates on the host whose chunks are there go on, and what is to come is
 *         fetched into slots beyond those the request will take
 *      b. every chunk that is missing: fetched into a free slot, or what is to leave anyway or else a victim is
 *         evicted, never more than slots are still missing; while one of them has no slot coming, nothing else takes slots
 *   2. what is to leave the device leaves
 *   3. the host request, alone
 *   4. updates and restores
 *   5. prefetch, when no request lacks a slot
 */
#include "chunk/manager_internal.h"

#include <assert.h>
#include <string.h>

const char *tide_command_kind_name(tide_command_kind kind)
{
    static const char *const names[] = {"fetch", "evict", "write_back", "update", "restore", "access"};
    return (unsigned)kind <= TIDE_COMMAND_ACCESS ? names[kind] : "unknown";
}

const char *tide_reason_name(tide_reason reason)
{
    static const char *const names[] = {"demand", "prefetch", "update", "restore", "access", "spill"};
    return (unsigned)reason <= TIDE_REASON_SPILL ? names[reason] : "unknown";
}

/* --- open commands --- */

void tide_manager_issue(tide_manager *manager, tide_command *command, const uint32_t *access)
{
    assert(manager->open_free_count > 0);
    uint32_t at = manager->open_free[--manager->open_free_count];
    tide_open_command *open = &manager->open[at];
    assert(!open->open);
    open->open = true;
    open->generation++;
    command->id = open->generation * TIDE_OPEN_COMMANDS_MAX + at;
    open->command = *command;
    if (access)
        memcpy(open->access, access, sizeof open->access);
    bool is_work = command->kind == TIDE_COMMAND_UPDATE || command->kind == TIDE_COMMAND_RESTORE;
    if (is_work) {
        manager->works[command->chunk].running = true;
        manager->tasks_running[command->tier]++;
    }
    if (command->kind == TIDE_COMMAND_UPDATE && manager->works[command->chunk].step == manager->training_step)
        manager->updates_begun++;
    if (command->kind == TIDE_COMMAND_ACCESS)
        manager->host_request_running = true;
    if (command->kind == TIDE_COMMAND_EVICT && !(manager->marks[command->chunk] & TIDE_MARK_LEAVING))
        manager->walk.there = 0; /* not as planned: it may have been fetched ahead */
    tide_manager_changed(manager);
}

uint32_t tide_manager_commands_open(const tide_manager *manager)
{
    return TIDE_OPEN_COMMANDS_MAX - manager->open_free_count;
}

/* --- next --- */

/* Fetch the first requested chunk that is missing, owes nothing, and has a slot. */
static bool fetch_with_slot(tide_manager *m, tide_command *command)
{
    const tide_request *request = &m->request;
    for (uint32_t i = request->pinned_count; i < request->pin_count; i++) {
        const tide_place *place = &m->places.chunks[request->pins[i]];
        if (place->busy || place->valid[TIDE_TIER_DEVICE] || tide_manager_has_work(m, request->pins[i]) ||
            !tide_manager_has_slot_for(m, request->pins[i]))
            continue;
        tide_manager_fetch(m, request->pins[i], TIDE_REASON_DEMAND, command);
        return true;
    }
    return false;
}

uint32_t tide_manager_requested_slots(const tide_manager *manager)
{
    const tide_request *request = &manager->request;
    uint32_t slots = 0;
    for (uint32_t i = request->pinned_count; i < request->pin_count; i++) {
        const tide_place *place = &manager->places.chunks[request->pins[i]];
        slots += place->slot[TIDE_TIER_DEVICE] == TIDE_SLOT_NONE;
    }
    return slots;
}

tide_request_wait tide_manager_request_wait(const tide_manager *manager)
{
    if (!manager->request.open || manager->request.ready)
        return TIDE_REQUEST_READY;
    if (tide_manager_request_waits_for_work(manager))
        return TIDE_REQUEST_WORK;
    const uint32_t free = manager->places.tier[TIDE_TIER_DEVICE].free_count;
    return tide_manager_requested_slots(manager) > free ? TIDE_REQUEST_SLOT : TIDE_REQUEST_MOVE;
}

/* Step 1b. `*blocked`: some chunk has no slot, nor one coming. */
static bool fetch_requested(tide_manager *m, bool *blocked, tide_command *command)
{
    if (fetch_with_slot(m, command))
        return true;
    const uint32_t missing = tide_manager_requested_slots(m);
    *blocked = missing > 0;
    if (missing <= m->evictions_open)
        return false;
    const tide_victim_rule rule = {.spared = TIDE_MARK_REQUESTED};
    return tide_manager_next_slot(m, false, command) ||
           tide_manager_evict_spent(m, rule, TIDE_REASON_DEMAND, command) ||
           tide_manager_next_slot(m, true, command) ||
           tide_manager_evict_victim(m, rule, TIDE_REASON_DEMAND, command);
}

/* Step 1. `*alone`: nothing else may go on meanwhile. */
static bool next_for_request(tide_manager *m, bool *alone, tide_command *command)
{
    *alone = false;
    if (!m->request.open || m->request.ready || tide_manager_try_pin(m))
        return false;
    if (!tide_manager_request_waits_for_work(m))
        return fetch_requested(m, alone, command);
    *alone = true;
    if (tide_manager_next_work(m, true, command))
        return true;
    /* What an update on the device gathers slots for is not taken from it. */
    return m->gather[TIDE_TIER_DEVICE].count == 0 &&
           (fetch_with_slot(m, command) || tide_manager_next_leave(m, command) ||
            tide_manager_next_ready_work(m, false, command) || tide_manager_next_prefetch(m, command));
}

static bool find_next(tide_manager *m, tide_command *command)
{
    bool alone;
    if (m->pin_all)
        return tide_manager_next_pin_all(m, command);
    if (next_for_request(m, &alone, command))
        return true;
    if (tide_manager_next_leave(m, command))
        return true;
    if (alone) /* an update on the host takes no device slot */
        return tide_manager_next_ready_work(m, false, command);
    if (m->host_request.count && !m->host_request_running)
        return tide_manager_next_host_request(m, command);
    if (m->work_count && tide_manager_next_work(m, false, command))
        return true;
    return tide_manager_next_prefetch(m, command);
}

void tide_manager_set_link(tide_manager *manager, bool in_busy, bool out_busy)
{
    if (manager->in_busy == in_busy && manager->out_busy == out_busy)
        return;
    manager->in_busy = in_busy;
    manager->out_busy = out_busy;
    manager->idle = manager->prefetch_idle = false;
}

void tide_manager_set_passed(tide_manager *manager, uint64_t ends)
{
    assert(ends <= manager->ends);
    manager->ends_passed = ends;
}

bool tide_manager_next(tide_manager *manager, tide_command *command)
{
    assert(manager->sealed);
    manager->counters.calls++;
    if (manager->idle || manager->open_free_count == 0)
        return false;
    tide_command found;
    if (!find_next(manager, &found)) {
        manager->idle = true;
        return false;
    }
    *command = found;
    return true;
}

bool tide_manager_is_stuck(tide_manager *manager)
{
    const tide_request *request = &manager->request;
    bool waiting =
        request->open ? !request->ready : manager->host_request.count > 0 || manager->parts_open > 0;
    waiting |= manager->pin_all && !tide_manager_all_pinned(manager);
    const bool later = manager->in_busy || manager->out_busy; /* the owner asks again when that is over */
    return waiting && !later && manager->idle && tide_manager_commands_open(manager) == 0;
}

/* --- done --- */

static void count_move(tide_manager *m, const tide_command *command)
{
    tide_manager_counters *counters = &m->counters;
    if (command->kind == TIDE_COMMAND_EVICT) {
        counters->evictions++;
        counters->clean_drops += !command->copy;
    } else if (command->kind == TIDE_COMMAND_WRITE_BACK) {
        counters->write_backs++;
    } else {
        counters->demand_fetches += command->reason == TIDE_REASON_DEMAND;
        counters->prefetches += command->reason == TIDE_REASON_PREFETCH;
        counters->spills += command->reason == TIDE_REASON_SPILL;
    }
}

/* A host slot without the chunk's content, or of a chunk without any, is of no use. */
static void tidy_host_slot(tide_manager *m, tide_chunk chunk)
{
    const tide_place *place = &m->places.chunks[chunk];
    bool useful = place->live && place->valid[TIDE_TIER_HOST];
    if (place->slot[TIDE_TIER_HOST] != TIDE_SLOT_NONE && !useful)
        tide_places_release(&m->places, chunk, TIDE_TIER_HOST);
}

static void finish_fetch(tide_manager *m, const tide_command *command, bool ok)
{
    tide_place *place = &m->places.chunks[command->chunk];
    assert(place->slot[TIDE_TIER_DEVICE] == command->device_slot);
    m->spills_open -= command->reason == TIDE_REASON_SPILL;
    if (!ok && command->in_place)
        return;
    if (!ok) {
        tide_places_release(&m->places, command->chunk, TIDE_TIER_DEVICE);
        return;
    }
    if (command->in_place)
        tide_places_make_fresh(&m->places, command->chunk);
    place->valid[TIDE_TIER_DEVICE] = true;
    m->marks[command->chunk] &= (uint8_t)~TIDE_MARK_KEPT;
}

static void finish_evict(tide_manager *m, const tide_command *command, bool ok)
{
    tide_place *place = &m->places.chunks[command->chunk];
    assert(place->slot[TIDE_TIER_DEVICE] == command->device_slot && m->evictions_open > 0);
    m->evictions_open--;
    if (!ok)
        return;
    place->valid[TIDE_TIER_HOST] |= command->copy;
    if (place->stale)
        m->walk.there = 0; /* while it left it looked like one on its way in */
    m->marks[command->chunk] &= (uint8_t)~TIDE_MARK_KEPT;
    tide_places_release(&m->places, command->chunk, TIDE_TIER_DEVICE);
}

static void finish_move(tide_manager *m, const tide_command *command, bool ok)
{
    tide_place *place = &m->places.chunks[command->chunk];
    assert(place->busy);
    place->busy = false;
    if (command->kind == TIDE_COMMAND_FETCH)
        finish_fetch(m, command, ok);
    else if (command->kind == TIDE_COMMAND_EVICT)
        finish_evict(m, command, ok);
    else
        place->valid[TIDE_TIER_HOST] |= ok;
    if (ok)
        count_move(m, command);
    tidy_host_slot(m, command->chunk);
}

/* After an ACCESS that wrote, a param that had never had a value has one. */
static void note_values(tide_manager *m, tide_chunk chunk)
{
    for (uint32_t i = 0; i < tide_layout_chunk_segments(m->layout, chunk); i++) {
        uint32_t p = tide_layout_chunk_segment(m->layout, chunk, i).param;
        if (m->params[p].state == TIDE_TENSOR_FREE)
            tide_manager_set_param_state(m, p, TIDE_TENSOR_HOLD);
    }
}

static void make_live(tide_manager *m, tide_chunk chunk)
{
    tide_space space = tide_layout_chunk_space(m->layout, chunk);
    if (space == TIDE_SPACE_PARAM)
        note_values(m, chunk);
    else if (space != TIDE_SPACE_CHECKPOINT)
        tide_places_set_live(&m->places, chunk, true);
}

/* What was written in one tier is no longer valid in the other. */
static void finish_task_chunk(tide_manager *m, const tide_command *command, tide_chunk chunk, uint32_t access,
                              bool ok)
{
    tide_tier tier = command->tier, other = tier == TIDE_TIER_HOST ? TIDE_TIER_DEVICE : TIDE_TIER_HOST;
    tide_place *place = &m->places.chunks[chunk];
    assert(place->busy && place->pins[tier] > 0);
    place->busy = false;
    tide_places_unpin(&m->places, chunk, tier);
    if (ok && access & TIDE_ACCESS_WRITE) {
        if (place->slot[other] != TIDE_SLOT_NONE && !place->stale) /* a stale one waits in its slot */
            tide_places_release(&m->places, chunk, other);
        place->valid[tier] = true;
        make_live(m, chunk);
    } else if (ok && place->live) {
        place->valid[tier] = true; /* fresh zeros that were read stand for the content */
    }
    tidy_host_slot(m, chunk);
}

static void finish_task(tide_manager *m, const tide_open_command *open, bool ok, bool started)
{
    const tide_command *command = &open->command;
    for (uint32_t i = 0; i < command->task_count; i++)
        finish_task_chunk(m, command, command->task[i].chunk, open->access[i], ok);
    if (command->kind == TIDE_COMMAND_ACCESS) {
        tide_manager_close_host_request(m);
        return;
    }
    assert(m->tasks_running[command->tier] > 0 && m->works[command->chunk].running);
    m->tasks_running[command->tier]--;
    m->works[command->chunk].running = false;
    if (ok)
        tide_manager_finish_part(m, command->chunk);
    else if (command->kind == TIDE_COMMAND_UPDATE && started)
        m->update_failed = true;
    else if (command->kind == TIDE_COMMAND_UPDATE && m->works[command->chunk].step == m->training_step)
        m->updates_begun--;
}

static void finish(tide_manager *m, uint32_t id, bool ok, bool started)
{
    uint32_t at = id % TIDE_OPEN_COMMANDS_MAX;
    tide_open_command *open = &m->open[at];
    assert(open->open && open->command.id == id);
    m->counters.calls++;
    if (open->command.kind <= TIDE_COMMAND_WRITE_BACK)
        finish_move(m, &open->command, ok);
    else
        finish_task(m, open, ok, started);
    open->open = false;
    m->open_free[m->open_free_count++] = at;
    tide_manager_changed(m);
}

void tide_manager_done(tide_manager *manager, uint32_t id, tide_status status)
{
    finish(manager, id, status == TIDE_OK, true);
}

void tide_manager_cancel(tide_manager *manager, uint32_t id)
{
    assert(manager->open[id % TIDE_OPEN_COMMANDS_MAX].command.kind > TIDE_COMMAND_WRITE_BACK);
    finish(manager, id, false, false);
}
