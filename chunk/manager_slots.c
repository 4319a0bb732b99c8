/* Where a slot comes from.
 *
 * A device slot:
 *   1. a free one;
 *   2. of a chunk without content, or whose content the host has changed: nothing to copy, now or later;
 *   3. of the chunk whose next use is farthest, but of a clean one if its next use is at least
 *      CLEAN_NUMERATOR / CLEAN_DENOMINATOR as far: a clean chunk leaves for nothing, a dirty one costs a copy
 *      out on top of the copy back in that either costs. Without a recording: the least recently used.
 *   A dirty victim needs a host slot; if there is none at present, the farthest clean one goes.
 *
 * A host slot:
 *   1. a free one;
 *   2. of a duplicate: the chunk that the device will keep longest, because it is needed there soonest;
 *   3. by spilling (tasks only): a chunk that lives on the host alone, the farthest, moves to a free device
 *      slot, or to one that a clean chunk leaves.
 *
 * Scans walk the slots of a tier, not all chunks: a device has a few thousand slots at most.
 */
#include "chunk/manager_internal.h"

#include <assert.h>

enum { CLEAN_NUMERATOR = 3, CLEAN_DENOMINATOR = 4 };

/* --- how far is the next use --- */

/* fp32 state on the device is next used by its PARAM chunk's update: before the chunk's next use if the
 * update is owed by now, else after its last use in a step. */
static uint32_t state_distance(const tide_manager *m, tide_chunk chunk)
{
    tide_chunk param_chunk =
        tide_layout_chunk_index(m->layout, chunk) / tide_layout_parts_per_chunk(m->layout);
    if (!m->update_on_device[param_chunk])
        return tide_schedule_never(&m->schedule);
    if (tide_manager_has_work(m, param_chunk))
        return tide_schedule_distance(&m->schedule, param_chunk);
    return tide_schedule_last_distance(&m->schedule, param_chunk);
}

/* Its gradients are complete and its own update has not begun. A param that spans chunks is at rest only when all of them
 * are updated, so its state alone does not tell. */
static bool awaits_update(const tide_manager *m, tide_chunk chunk)
{
    if (!tide_tensor_counts_complete(&m->counts[chunk]))
        return false;
    return m->works[chunk].step !=
           m->params[tide_layout_chunk_segment(m->layout, chunk, 0).param].gradient_step;
}

bool tide_manager_must_leave(const tide_manager *manager, tide_chunk chunk)
{
    return tide_manager_is_param_chunk(manager, chunk) && !manager->update_on_device[chunk] &&
           (manager->works[chunk].kind != TIDE_WORK_NONE || awaits_update(manager, chunk));
}

static uint32_t recorded_distance(const tide_manager *m, tide_chunk chunk)
{
    tide_space space = tide_layout_chunk_space(m->layout, chunk);
    if (space != TIDE_SPACE_PARAM && space != TIDE_SPACE_CHECKPOINT)
        return state_distance(m, chunk);
    return tide_manager_must_leave(m, chunk) ? tide_schedule_never(&m->schedule)
                                             : tide_schedule_distance(&m->schedule, chunk);
}

uint64_t tide_manager_remoteness(const tide_manager *manager, tide_chunk chunk)
{
    if (tide_schedule_active(&manager->schedule))
        return recorded_distance(manager, chunk);
    return manager->places.uses - manager->places.chunks[chunk].last_use;
}

uint64_t tide_manager_next_use(const tide_manager *manager, tide_chunk chunk)
{
    return tide_schedule_active(&manager->schedule) ? tide_schedule_distance(&manager->schedule, chunk) : 0;
}

/* --- moves --- */

void tide_manager_fetch(tide_manager *manager, tide_chunk chunk, tide_reason reason, tide_command *command)
{
    tide_place *place = &manager->places.chunks[chunk];
    assert(!place->busy && !place->valid[TIDE_TIER_DEVICE]);
    bool copy = place->live && place->valid[TIDE_TIER_HOST], in_place = place->stale;
    uint32_t slot = in_place ? place->slot[TIDE_TIER_DEVICE]
                             : tide_places_take(&manager->places, chunk, TIDE_TIER_DEVICE);
    *command = (tide_command){.kind = TIDE_COMMAND_FETCH,
                              .reason = reason,
                              .chunk = chunk,
                              .device_slot = slot,
                              .host_slot = place->slot[TIDE_TIER_HOST],
                              .copy = copy,
                              .in_place = in_place,
                              .zero = !copy && tide_layout_chunk_space(manager->layout, chunk) !=
                                                   TIDE_SPACE_CHECKPOINT};
    place->busy = true;
    manager->spills_open += reason == TIDE_REASON_SPILL;
    tide_manager_issue(manager, command, NULL);
}

void tide_manager_evict(tide_manager *manager, tide_chunk chunk, bool copy, tide_reason reason,
                        tide_command *command)
{
    tide_place *place = &manager->places.chunks[chunk];
    assert(tide_place_is_movable(place) || (tide_place_is_spent(place) && !copy));
    uint32_t host_slot = place->slot[TIDE_TIER_HOST];
    if (copy)
        host_slot = tide_places_take(&manager->places, chunk, TIDE_TIER_HOST);
    *command = (tide_command){.kind = TIDE_COMMAND_EVICT,
                              .reason = reason,
                              .chunk = chunk,
                              .device_slot = place->slot[TIDE_TIER_DEVICE],
                              .host_slot = host_slot,
                              .copy = copy};
    place->busy = true;
    manager->evictions_open++;
    tide_manager_issue(manager, command, NULL);
}

void tide_manager_write_back(tide_manager *manager, tide_chunk chunk, tide_reason reason,
                             tide_command *command)
{
    tide_place *place = &manager->places.chunks[chunk];
    assert(tide_place_is_dirty(place) && !place->busy);
    *command = (tide_command){.kind = TIDE_COMMAND_WRITE_BACK,
                              .reason = reason,
                              .chunk = chunk,
                              .device_slot = place->slot[TIDE_TIER_DEVICE],
                              .host_slot = tide_places_take(&manager->places, chunk, TIDE_TIER_HOST),
                              .copy = true};
    place->busy = true;
    tide_manager_issue(manager, command, NULL);
}

bool tide_manager_has_slot_for(const tide_manager *manager, tide_chunk chunk)
{
    return manager->places.chunks[chunk].stale || manager->places.tier[TIDE_TIER_DEVICE].free_count > 0;
}

/* --- device slots --- */

typedef struct victims {
    tide_chunk dead, clean, any;
    uint64_t dead_far, clean_far, any_far;
} victims;

static void keep_farther(tide_chunk *best, uint64_t *best_far, tide_chunk chunk, uint64_t far)
{
    if (*best != TIDE_CHUNK_NONE && *best_far >= far)
        return;
    *best = chunk;
    *best_far = far;
}

static victims find_victims(const tide_manager *m, tide_victim_rule rule)
{
    victims found = {TIDE_CHUNK_NONE, TIDE_CHUNK_NONE, TIDE_CHUNK_NONE, 0, 0, 0};
    const tide_slots *slots = &m->places.tier[TIDE_TIER_DEVICE];
    for (uint32_t slot = 0; slot < slots->count; slot++) {
        tide_chunk chunk = slots->holder[slot];
        if (chunk == TIDE_CHUNK_NONE || m->marks[chunk] & rule.spared)
            continue;
        const tide_place *place = &m->places.chunks[chunk];
        if (!tide_place_is_movable(place) && !tide_place_is_spent(place))
            continue;
        uint64_t far = tide_manager_remoteness(m, chunk);
        if (!place->live || place->stale)
            keep_farther(&found.dead, &found.dead_far, chunk, far);
        else if (!tide_place_is_dirty(place))
            keep_farther(&found.clean, &found.clean_far, chunk, far);
        if (place->live && !place->stale)
            keep_farther(&found.any, &found.any_far, chunk, far);
    }
    return found;
}

static bool prefers_clean(const tide_manager *m, const victims *found)
{
    return found->clean != TIDE_CHUNK_NONE && tide_schedule_active(&m->schedule) &&
           found->clean_far * CLEAN_DENOMINATOR >= found->any_far * CLEAN_NUMERATOR;
}

bool tide_manager_evict_spent(tide_manager *manager, tide_victim_rule rule, tide_reason reason,
                              tide_command *command)
{
    const victims found = find_victims(manager, rule);
    if (found.dead == TIDE_CHUNK_NONE)
        return false;
    tide_manager_evict(manager, found.dead, false, reason, command);
    return true;
}

bool tide_manager_evict_victim(tide_manager *manager, tide_victim_rule rule, tide_reason reason,
                               tide_command *command)
{
    victims found = find_victims(manager, rule);
    tide_chunk victim = found.dead;
    if (victim == TIDE_CHUNK_NONE)
        victim = prefers_clean(manager, &found) ? found.clean : found.any;
    if (victim == TIDE_CHUNK_NONE)
        return false;
    bool dirty = tide_place_is_dirty(&manager->places.chunks[victim]);
    if (dirty && !tide_manager_free_host_slot(manager, rule.spared_duplicates)) {
        victim = found.clean;
        dirty = false;
    }
    if (victim == TIDE_CHUNK_NONE)
        return false;
    tide_manager_evict(manager, victim, dirty, reason, command);
    return true;
}

/* --- host slots --- */

bool tide_manager_free_host_slot(tide_manager *manager, uint32_t spared)
{
    return manager->places.tier[TIDE_TIER_HOST].free_count > 0 ||
           tide_manager_drop_duplicate(manager, spared);
}

tide_chunk tide_manager_find_duplicate(const tide_manager *manager, uint32_t spared)
{
    const tide_slots *slots = &manager->places.tier[TIDE_TIER_DEVICE];
    tide_chunk best = TIDE_CHUNK_NONE;
    uint64_t nearest = UINT64_MAX;
    for (uint32_t slot = 0; slot < slots->count; slot++) {
        tide_chunk chunk = slots->holder[slot];
        if (chunk == TIDE_CHUNK_NONE || manager->marks[chunk] & spared ||
            !tide_place_is_duplicate(&manager->places.chunks[chunk]))
            continue;
        bool in_use = manager->places.chunks[chunk].pins[TIDE_TIER_DEVICE] > 0;
        uint64_t far = in_use ? 0 : tide_manager_remoteness(manager, chunk);
        if (best == TIDE_CHUNK_NONE || far < nearest) {
            best = chunk;
            nearest = far;
        }
    }
    return best;
}

bool tide_manager_drop_duplicate(tide_manager *manager, uint32_t spared)
{
    const tide_chunk chunk = tide_manager_find_duplicate(manager, spared);
    if (chunk == TIDE_CHUNK_NONE)
        return false;
    tide_places_release(&manager->places, chunk, TIDE_TIER_HOST);
    return true;
}

static tide_chunk find_spill(const tide_manager *m)
{
    const tide_slots *slots = &m->places.tier[TIDE_TIER_HOST];
    tide_chunk best = TIDE_CHUNK_NONE;
    uint64_t farthest = 0;
    for (uint32_t slot = 0; slot < slots->count; slot++) {
        tide_chunk chunk = slots->holder[slot];
        if (chunk == TIDE_CHUNK_NONE || m->marks[chunk] & TIDE_MARK_GATHER_HOST)
            continue;
        const tide_place *place = &m->places.chunks[chunk];
        if (place->busy || place->pins[TIDE_TIER_HOST] || place->valid[TIDE_TIER_DEVICE])
            continue;
        keep_farther(&best, &farthest, chunk, tide_manager_remoteness(m, chunk));
    }
    return best;
}

/* A device slot that costs no host slot: free, or left by a chunk that needs no copy. */
static bool evict_for_spill(tide_manager *m, tide_command *command)
{
    tide_victim_rule rule = {.spared = TIDE_MARK_GATHER_DEVICE};
    if (!tide_manager_request_waits_for_work(m))
        rule.spared |= TIDE_MARK_REQUESTED;
    victims found = find_victims(m, rule);
    tide_chunk victim = found.dead != TIDE_CHUNK_NONE ? found.dead : found.clean;
    if (victim == TIDE_CHUNK_NONE)
        return false;
    tide_manager_evict(m, victim, false, TIDE_REASON_SPILL, command);
    return true;
}

bool tide_manager_spill(tide_manager *manager, tide_command *command)
{
    if (manager->spills_open)
        return false;
    if (manager->places.tier[TIDE_TIER_DEVICE].free_count == 0)
        return manager->evictions_open == 0 && evict_for_spill(manager, command);
    tide_chunk chunk = find_spill(manager);
    if (chunk == TIDE_CHUNK_NONE)
        return false;
    tide_manager_fetch(manager, chunk, TIDE_REASON_SPILL, command);
    return true;
}
