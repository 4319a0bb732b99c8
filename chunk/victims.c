/* See victims.h. */
#include "chunk/victims.h"

#include <assert.h>

enum { CLEAN_NUMERATOR = 3, CLEAN_DENOMINATOR = 4 };

/* Shelves of the device: chunks that no request wants, and from REQUESTED on those that one does. */
enum { DEAD = 0, CLEAN, DIRTY, REQUESTED, DEVICE_SHELVES = 2 * REQUESTED };

/* Shelves of copies: duplicates of what the device has, and what the host alone has. From GOING on: of chunks that leave, or
 * wait in their slot. */
enum { DUPLICATE = 0, DUPLICATE_IN_USE, GOING, ALONE = 2 * GOING, COPY_SHELVES };

enum { GOING_MARKS = TIDE_MARKS_GOING | TIDE_MARK_KEPT };

tide_status tide_victims_create(tide_victims *victims, const tide_layout *layout, tide_places *places,
                                tide_moves *moves, const tide_future *future, const tide_dues *dues)
{
    *victims =
        (tide_victims){.layout = layout, .places = places, .moves = moves, .future = future, .dues = dues};
    const uint32_t keys = tide_future_keys(future);
    const tide_status status =
        tide_shelves_create(&victims->device, DEVICE_SHELVES, keys, places->chunk_count);
    return status != TIDE_OK ? status
                             : tide_shelves_create(&victims->copies, COPY_SHELVES, keys, places->chunk_count);
}

void tide_victims_destroy(tide_victims *victims)
{
    tide_shelves_destroy(&victims->device);
    tide_shelves_destroy(&victims->copies);
}

/* --- who stands where --- */

static uint32_t key_of(const tide_victims *v, tide_chunk chunk)
{
    const uint64_t last_use = tide_place_of(v->places, chunk)->last_use;
    assert(last_use <= v->places->uses);
    if (v->future->active)
        return tide_future_worth_key(v->future, chunk);
    assert(last_use <= v->since || last_use - v->since <= v->future->never_first);
    return last_use <= v->since ? tide_future_never_key(v->future, chunk)
                                : v->future->never_first - (uint32_t)(last_use - v->since);
}

static uint32_t device_shelf(const tide_place *place)
{
    const uint32_t first = place->marks & TIDE_MARK_REQUESTED ? REQUESTED : 0;
    if (!tide_place_is_movable(place) && !tide_place_is_spent(place))
        return TIDE_SHELF_NONE;
    if (!place->live || place->stale)
        return first + DEAD;
    return first + (tide_place_is_dirty(place) ? DIRTY : CLEAN);
}

static uint32_t copy_shelf(const tide_place *place)
{
    const uint32_t first = place->marks & GOING_MARKS ? GOING : 0;
    if (tide_place_is_duplicate(place))
        return first + (place->pins[TIDE_TIER_DEVICE] > 0 ? DUPLICATE_IN_USE : DUPLICATE);
    if (place->slot[TIDE_TIER_HOST] != TIDE_SLOT_NONE && !place->busy && !place->pins[TIDE_TIER_HOST] &&
        !tide_place_has(place, TIDE_TIER_DEVICE))
        return ALONE;
    return TIDE_SHELF_NONE;
}

static void sort(tide_victims *v, tide_chunk chunk)
{
    const tide_place *place = tide_place_of(v->places, chunk);
    const uint32_t device = device_shelf(place), copy = copy_shelf(place);
    const uint32_t key = device == TIDE_SHELF_NONE && copy == TIDE_SHELF_NONE ? 0 : key_of(v, chunk);
    tide_shelves_put(&v->device, chunk, device, key);
    tide_shelves_put(&v->copies, chunk, copy, key);
}

/* State that is updated on the device stands beside its PARAM chunk. */
static void sort_states(tide_victims *v, tide_chunk param_chunk)
{
    assert(v->dues->on_device[param_chunk]);
    for (uint32_t part = 0; part < v->dues->chunks[param_chunk].parts; part++)
        for (int space = TIDE_SPACE_MASTER; space <= TIDE_SPACE_VARIANCE; space++) {
            const tide_chunk state = tide_layout_state_chunk(v->layout, param_chunk, (tide_space)space, part);
            if (state != TIDE_CHUNK_NONE)
                sort(v, state);
        }
}

/* Keys are of another recording, or of uses too long ago to be told apart: all are sorted anew. */
static void begin_anew(tide_victims *v)
{
    const uint64_t uses = v->places->uses;
    v->epoch = v->future->epoch;
    v->since = uses > v->future->never_first / 2 ? uses - v->future->never_first / 2 : 0;
    tide_shelves_clear(&v->device);
    tide_shelves_clear(&v->copies);
    tide_places_note_all(v->places, TIDE_WATCHER_VICTIMS);
}

/* Sort what was noted. */
static void look_again(tide_victims *v)
{
    const bool too_long = !v->future->active && v->places->uses - v->since > v->future->never_first;
    tide_chunk chunk;
    if (too_long || v->epoch != v->future->epoch)
        begin_anew(v);
    while ((chunk = tide_places_noted(v->places, TIDE_WATCHER_VICTIMS)) != TIDE_CHUNK_NONE) {
        sort(v, chunk);
        if (v->future->active && tide_dues_is_param_chunk(v->dues, chunk) && v->dues->on_device[chunk])
            sort_states(v, chunk);
    }
}

/* --- device slots --- */

static tide_chunk farther(const tide_victims *v, tide_chunk a, tide_chunk b)
{
    return tide_shelves_farther(&v->device, a, b, tide_future_horizon(v->future));
}

/* The farthest on a shelf that the rule allows. */
static tide_chunk find(const tide_victims *v, tide_victim_rule rule, uint32_t shelf)
{
    assert(shelf < REQUESTED);
    const tide_horizon horizon = tide_future_horizon(v->future);
    const tide_chunk found = tide_shelves_farthest(&v->device, shelf, horizon, v->places, rule.spared);
    if (rule.spared & TIDE_MARK_REQUESTED)
        return found;
    return farther(v, found,
                   tide_shelves_farthest(&v->device, REQUESTED + shelf, horizon, v->places, rule.spared));
}

static bool prefers_clean(const tide_victims *v, tide_chunk clean, tide_chunk farthest)
{
    if (clean == TIDE_CHUNK_NONE || !v->future->active)
        return false;
    return (uint64_t)tide_future_worth_distance(v->future, clean) * CLEAN_DENOMINATOR >=
           (uint64_t)tide_future_worth_distance(v->future, farthest) * CLEAN_NUMERATOR;
}

bool tide_victims_evict_spent(tide_victims *victims, tide_victim_rule rule, tide_reason reason,
                              tide_command *command)
{
    look_again(victims);
    const tide_chunk dead = find(victims, rule, DEAD);
    if (dead == TIDE_CHUNK_NONE)
        return false;
    assert(!tide_place_is_dirty(tide_place_of(victims->places, dead)));
    tide_moves_evict(victims->moves, dead, false, reason, command);
    return true;
}

bool tide_victims_evict(tide_victims *victims, tide_victim_rule rule, tide_reason reason,
                        tide_command *command)
{
    if (tide_victims_evict_spent(victims, rule, reason, command))
        return true;
    const tide_chunk clean = find(victims, rule, CLEAN);
    const tide_chunk farthest = farther(victims, clean, find(victims, rule, DIRTY));
    if (farthest == TIDE_CHUNK_NONE)
        return false;
    tide_chunk victim = prefers_clean(victims, clean, farthest) ? clean : farthest;
    bool dirty = victim != clean;
    if (dirty && !tide_victims_free_host_slot(victims, rule.spared_duplicates)) {
        victim = clean;
        dirty = false;
    }
    if (victim == TIDE_CHUNK_NONE)
        return false;
    assert(dirty == tide_place_is_dirty(tide_place_of(victims->places, victim)));
    tide_moves_evict(victims->moves, victim, dirty, reason, command);
    return true;
}

/* --- host slots --- */

/* What is in use on the device stays there longest. */
static tide_chunk find_duplicate(tide_victims *v, uint32_t spared)
{
    tide_chunk found = TIDE_CHUNK_NONE;
    look_again(v);
    const tide_horizon horizon = tide_future_horizon(v->future);
    for (int shelf = DUPLICATE_IN_USE; shelf >= DUPLICATE && found == TIDE_CHUNK_NONE; shelf--) {
        const uint32_t at = (uint32_t)shelf;
        const bool going = (spared & GOING_MARKS) != GOING_MARKS;
        found = tide_shelves_nearest(&v->copies, at, horizon, v->places, spared);
        const tide_chunk other =
            going ? tide_shelves_nearest(&v->copies, GOING + at, horizon, v->places, spared)
                  : TIDE_CHUNK_NONE;
        found = tide_shelves_nearer(&v->copies, found, other, horizon);
    }
    return found;
}

bool tide_victims_drop_duplicate(tide_victims *victims, uint32_t spared)
{
    const tide_chunk chunk = find_duplicate(victims, spared);
    if (chunk == TIDE_CHUNK_NONE)
        return false;
    assert(tide_place_is_duplicate(tide_place_of(victims->places, chunk)));
    tide_places_release(victims->places, chunk, TIDE_TIER_HOST);
    return true;
}

bool tide_victims_free_host_slot(tide_victims *victims, uint32_t spared)
{
    return tide_places_free(victims->places, TIDE_TIER_HOST) > 0 ||
           tide_victims_drop_duplicate(victims, spared);
}

/* A device slot that costs no host slot: free, or left by a chunk that needs no copy. */
static bool evict_for_spill(tide_victims *v, const tide_turn *turn, tide_command *command)
{
    tide_victim_rule rule = {.spared = TIDE_MARK_GATHER_DEVICE};
    if (!turn->request_yields)
        rule.spared |= TIDE_MARK_REQUESTED;
    if (tide_victims_evict_spent(v, rule, TIDE_REASON_SPILL, command))
        return true;
    const tide_chunk clean = find(v, rule, CLEAN);
    if (clean == TIDE_CHUNK_NONE)
        return false;
    assert(!tide_place_is_dirty(tide_place_of(v->places, clean)));
    tide_moves_evict(v->moves, clean, false, TIDE_REASON_SPILL, command);
    return true;
}

bool tide_victims_spill(tide_victims *victims, const tide_turn *turn, tide_command *command)
{
    if (victims->moves->spills_open)
        return false;
    if (tide_places_free(victims->places, TIDE_TIER_DEVICE) == 0)
        return victims->moves->evictions_open == 0 && evict_for_spill(victims, turn, command);
    look_again(victims);
    const tide_chunk chunk =
        tide_shelves_farthest(&victims->copies, ALONE, tide_future_horizon(victims->future), victims->places,
                              TIDE_MARK_GATHER_HOST);
    if (chunk == TIDE_CHUNK_NONE)
        return false;
    assert(tide_place_of(victims->places, chunk)->pins[TIDE_TIER_HOST] == 0);
    tide_moves_fetch(victims->moves, chunk, TIDE_REASON_SPILL, command);
    return true;
}

/* --- validity --- */

static bool stands(const tide_victims *v, const tide_shelves *shelves, tide_chunk chunk, uint32_t shelf)
{
    const tide_standing *standing = &shelves->standings[chunk];
    return standing->shelf == shelf && (shelf == TIDE_SHELF_NONE || standing->key == key_of(v, chunk));
}

/* Of state beside a PARAM chunk that was noted, only when that is looked at. */
static bool is_noted(const tide_victims *v, tide_chunk chunk)
{
    const tide_chunk param_chunk = tide_dues_param_chunk(v->dues, chunk);
    const uint32_t noted =
        tide_place_of(v->places, chunk)->noted |
        (param_chunk == TIDE_CHUNK_NONE ? 0u : tide_place_of(v->places, param_chunk)->noted);
    return noted & 1u << TIDE_WATCHER_VICTIMS;
}

bool tide_victims_is_valid(const tide_victims *victims)
{
    if (victims->epoch != victims->future->epoch)
        return true; /* all will be sorted anew */
    for (tide_chunk chunk = 0; chunk < victims->places->chunk_count; chunk++) {
        const tide_place *place = tide_place_of(victims->places, chunk);
        if (!is_noted(victims, chunk) && (!stands(victims, &victims->device, chunk, device_shelf(place)) ||
                                          !stands(victims, &victims->copies, chunk, copy_shelf(place))))
            return false;
    }
    return true;
}
