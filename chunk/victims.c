/* See victims.h. */
#include "chunk/victims.h"

#include <assert.h>

enum { CLEAN_NUMERATOR = 3, CLEAN_DENOMINATOR = 4 };

void tide_victims_init(tide_victims *victims, const tide_layout *layout, tide_places *places,
                       tide_moves *moves, const tide_future *future, const tide_dues *dues)
{
    *victims =
        (tide_victims){.layout = layout, .places = places, .moves = moves, .future = future, .dues = dues};
}

/* --- how far is the next use --- */

/* fp32 state on the device is next used by its PARAM chunk's update: before the chunk's next use if the
 * update is owed by now, else after its last use in a step. */
static uint32_t state_distance(const tide_victims *v, tide_chunk chunk)
{
    const tide_schedule *schedule = &v->future->schedule;
    const tide_chunk param_chunk = tide_dues_param_chunk(v->dues, chunk);
    if (!v->dues->on_device[param_chunk])
        return tide_schedule_never(schedule);
    return tide_dues_has(v->dues, param_chunk) ? tide_schedule_distance(schedule, param_chunk)
                                               : tide_schedule_last_distance(schedule, param_chunk);
}

static uint32_t recorded_distance(const tide_victims *v, tide_chunk chunk)
{
    const tide_space space = tide_layout_chunk_space(v->layout, chunk);
    if (space != TIDE_SPACE_PARAM && space != TIDE_SPACE_CHECKPOINT)
        return state_distance(v, chunk);
    return tide_dues_must_leave(v->dues, chunk) ? tide_schedule_never(&v->future->schedule)
                                                : tide_schedule_distance(&v->future->schedule, chunk);
}

uint64_t tide_victims_remoteness(const tide_victims *victims, tide_chunk chunk)
{
    if (tide_future_is_known(victims->future))
        return recorded_distance(victims, chunk);
    return victims->places->uses - tide_place_of(victims->places, chunk)->last_use;
}

/* --- device slots --- */

typedef struct choice {
    tide_chunk dead, clean, any;
    uint64_t dead_far, clean_far, any_far;
} choice;

static void keep_farther(tide_chunk *best, uint64_t *best_far, tide_chunk chunk, uint64_t far)
{
    if (*best != TIDE_CHUNK_NONE && *best_far >= far)
        return;
    *best = chunk;
    *best_far = far;
}

static choice find_victims(const tide_victims *v, tide_victim_rule rule)
{
    choice found = {TIDE_CHUNK_NONE, TIDE_CHUNK_NONE, TIDE_CHUNK_NONE, 0, 0, 0};
    const tide_slots *slots = &v->places->tier[TIDE_TIER_DEVICE];
    for (uint32_t slot = 0; slot < slots->count; slot++) {
        tide_chunk chunk = slots->holder[slot];
        if (chunk == TIDE_CHUNK_NONE || v->places->chunks[chunk].marks & rule.spared)
            continue;
        const tide_place *place = &v->places->chunks[chunk];
        if (!tide_place_is_movable(place) && !tide_place_is_spent(place))
            continue;
        uint64_t far = tide_victims_remoteness(v, chunk);
        if (!place->live || place->stale)
            keep_farther(&found.dead, &found.dead_far, chunk, far);
        else if (!tide_place_is_dirty(place))
            keep_farther(&found.clean, &found.clean_far, chunk, far);
        if (place->live && !place->stale)
            keep_farther(&found.any, &found.any_far, chunk, far);
    }
    return found;
}

static bool prefers_clean(const tide_victims *v, const choice *found)
{
    return found->clean != TIDE_CHUNK_NONE && tide_future_is_known(v->future) &&
           found->clean_far * CLEAN_DENOMINATOR >= found->any_far * CLEAN_NUMERATOR;
}

bool tide_victims_evict_spent(tide_victims *victims, tide_victim_rule rule, tide_reason reason,
                              tide_command *command)
{
    const choice found = find_victims(victims, rule);
    if (found.dead == TIDE_CHUNK_NONE)
        return false;
    tide_moves_evict(victims->moves, found.dead, false, reason, command);
    return true;
}

bool tide_victims_evict(tide_victims *victims, tide_victim_rule rule, tide_reason reason,
                        tide_command *command)
{
    choice found = find_victims(victims, rule);
    tide_chunk victim = found.dead;
    if (victim == TIDE_CHUNK_NONE)
        victim = prefers_clean(victims, &found) ? found.clean : found.any;
    if (victim == TIDE_CHUNK_NONE)
        return false;
    bool dirty = tide_place_is_dirty(&victims->places->chunks[victim]);
    if (dirty && !tide_victims_free_host_slot(victims, rule.spared_duplicates)) {
        victim = found.clean;
        dirty = false;
    }
    if (victim == TIDE_CHUNK_NONE)
        return false;
    tide_moves_evict(victims->moves, victim, dirty, reason, command);
    return true;
}

/* --- host slots --- */

static tide_chunk find_duplicate(const tide_victims *victims, uint32_t spared)
{
    const tide_slots *slots = &victims->places->tier[TIDE_TIER_DEVICE];
    tide_chunk best = TIDE_CHUNK_NONE;
    uint64_t nearest = UINT64_MAX;
    for (uint32_t slot = 0; slot < slots->count; slot++) {
        tide_chunk chunk = slots->holder[slot];
        if (chunk == TIDE_CHUNK_NONE || victims->places->chunks[chunk].marks & spared ||
            !tide_place_is_duplicate(&victims->places->chunks[chunk]))
            continue;
        bool in_use = victims->places->chunks[chunk].pins[TIDE_TIER_DEVICE] > 0;
        uint64_t far = in_use ? 0 : tide_victims_remoteness(victims, chunk);
        if (best == TIDE_CHUNK_NONE || far < nearest) {
            best = chunk;
            nearest = far;
        }
    }
    return best;
}

bool tide_victims_drop_duplicate(tide_victims *victims, uint32_t spared)
{
    const tide_chunk chunk = find_duplicate(victims, spared);
    if (chunk == TIDE_CHUNK_NONE)
        return false;
    tide_places_release(victims->places, chunk, TIDE_TIER_HOST);
    return true;
}

bool tide_victims_has_host_slot(const tide_victims *victims, uint32_t spared)
{
    return tide_places_free(victims->places, TIDE_TIER_HOST) > 0 ||
           find_duplicate(victims, spared) != TIDE_CHUNK_NONE;
}

bool tide_victims_free_host_slot(tide_victims *victims, uint32_t spared)
{
    return victims->places->tier[TIDE_TIER_HOST].free_count > 0 ||
           tide_victims_drop_duplicate(victims, spared);
}

static tide_chunk find_spill(const tide_victims *v)
{
    const tide_slots *slots = &v->places->tier[TIDE_TIER_HOST];
    tide_chunk best = TIDE_CHUNK_NONE;
    uint64_t farthest = 0;
    for (uint32_t slot = 0; slot < slots->count; slot++) {
        tide_chunk chunk = slots->holder[slot];
        if (chunk == TIDE_CHUNK_NONE || v->places->chunks[chunk].marks & TIDE_MARK_GATHER_HOST)
            continue;
        const tide_place *place = &v->places->chunks[chunk];
        if (place->busy || place->pins[TIDE_TIER_HOST] || place->valid[TIDE_TIER_DEVICE])
            continue;
        keep_farther(&best, &farthest, chunk, tide_victims_remoteness(v, chunk));
    }
    return best;
}

/* A device slot that costs no host slot: free, or left by a chunk that needs no copy. */
static bool evict_for_spill(tide_victims *v, const tide_turn *turn, tide_command *command)
{
    tide_victim_rule rule = {.spared = TIDE_MARK_GATHER_DEVICE};
    if (!turn->request_yields)
        rule.spared |= TIDE_MARK_REQUESTED;
    choice found = find_victims(v, rule);
    tide_chunk victim = found.dead != TIDE_CHUNK_NONE ? found.dead : found.clean;
    if (victim == TIDE_CHUNK_NONE)
        return false;
    tide_moves_evict(v->moves, victim, false, TIDE_REASON_SPILL, command);
    return true;
}

bool tide_victims_spill(tide_victims *victims, const tide_turn *turn, tide_command *command)
{
    if (victims->moves->spills_open)
        return false;
    if (victims->places->tier[TIDE_TIER_DEVICE].free_count == 0)
        return victims->moves->evictions_open == 0 && evict_for_spill(victims, turn, command);
    tide_chunk chunk = find_spill(victims);
    if (chunk == TIDE_CHUNK_NONE)
        return false;
    tide_moves_fetch(victims->moves, chunk, TIDE_REASON_SPILL, command);
    return true;
}
