#include "chunk/victims.h"

#include <assert.h>

enum { CLEAN_NUMERATOR = 3, CLEAN_DENOMINATOR = 4 };

/* Buckets of chunks on the device that may leave. From REQUESTED on the same three follow for chunks that a
 * request needs. */
enum {
    DEAD = 0, /* the content is not needed: the chunk has none, or the host has changed it */
    CLEAN,    /* the host has a valid copy */
    DIRTY,    /* only the device has the content */
    REQUESTED,
    DEVICE_BUCKETS = 2 * REQUESTED
};

/* Buckets of chunks whose host slot may be taken. From QUEUED on the same duplicates follow for chunks with
 * QUEUED_MARKS: those that will be evicted, or whose device slot will stay mapped while the host updates
 * them. */
enum {
    DUPLICATE = 0,    /* the device has a valid copy, too */
    DUPLICATE_IN_USE, /* and the copy on the device is pinned */
    QUEUED,
    ALONE = 2 * QUEUED, /* only the host has the content */
    UPDATED,            /* the same, but the chunk has kept a device slot and its update is done */
    COPY_BUCKETS
};

enum { QUEUED_MARKS = TIDE_MARKS_QUEUED | TIDE_MARK_KEPT };

tide_status tide_victims_create(tide_victims *victims, const tide_layout *layout, tide_places *places,
                                tide_moves *moves, const tide_future *future, const tide_pending *pending)
{
    *victims = (tide_victims){
        .layout = layout, .places = places, .moves = moves, .future = future, .pending = pending};
    const uint32_t keys = tide_future_keys(future);
    const tide_status status = tide_priority_buckets_create(&victims->device, places, DEVICE_BUCKETS, keys);
    return status != TIDE_OK ? status
                             : tide_priority_buckets_create(&victims->copies, places, COPY_BUCKETS, keys);
}

void tide_victims_destroy(tide_victims *victims)
{
    tide_priority_buckets_destroy(&victims->device);
    tide_priority_buckets_destroy(&victims->copies);
}

/* --- buckets --- */

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

static uint32_t device_bucket(const tide_place *place)
{
    const uint32_t first = place->marks & TIDE_MARK_REQUESTED ? REQUESTED : 0;
    if (!tide_place_is_movable(place) && !tide_place_is_reclaimable(place))
        return TIDE_BUCKET_NONE;
    if (!place->live || place->stale)
        return first + DEAD;
    return first + (tide_place_is_dirty(place) ? DIRTY : CLEAN);
}

static uint32_t copy_bucket(const tide_victims *v, tide_chunk chunk)
{
    const tide_place *place = tide_place_of(v->places, chunk);
    const uint32_t first = place->marks & QUEUED_MARKS ? QUEUED : 0;
    if (tide_place_is_duplicate(place))
        return first + (place->pins[TIDE_TIER_DEVICE] > 0 ? DUPLICATE_IN_USE : DUPLICATE);
    if (place->slot[TIDE_TIER_HOST] != TIDE_SLOT_NONE && !place->busy && !place->pins[TIDE_TIER_HOST] &&
        !tide_place_has(place, TIDE_TIER_DEVICE))
        return place->stale && !tide_pending_has(v->pending, chunk) ? UPDATED : ALONE;
    return TIDE_BUCKET_NONE;
}

static void sort(tide_victims *v, tide_chunk chunk)
{
    const tide_place *place = tide_place_of(v->places, chunk);
    const uint32_t device = device_bucket(place), copy = copy_bucket(v, chunk);
    const uint32_t key = device == TIDE_BUCKET_NONE && copy == TIDE_BUCKET_NONE ? 0 : key_of(v, chunk);
    tide_priority_buckets_put(&v->device, chunk, device, key);
    tide_priority_buckets_put(&v->copies, chunk, copy, key);
}

/* Sort the STATE chunks of a PARAM chunk that the device updates, since their keys depend on its key. */
static void sort_states(tide_victims *v, tide_chunk param_chunk)
{
    assert(v->pending->on_device[param_chunk]);
    for (uint32_t i = 0; i < v->pending->chunks[param_chunk].pieces; i++)
        sort(v, tide_layout_piece(v->layout, param_chunk, i).state_chunk);
}

/* Empty the buckets and sort all chunks again: because the recording has changed or, without a recording,
 * because the uses since `since` have become too many for the range of keys. */
static void begin_anew(tide_victims *v)
{
    const uint64_t uses = v->places->uses;
    v->epoch = v->future->epoch;
    v->since = uses > v->future->never_first / 2 ? uses - v->future->never_first / 2 : 0;
    tide_priority_buckets_clear(&v->device);
    tide_priority_buckets_clear(&v->copies);
    tide_places_notify_all(v->places, TIDE_SUBSCRIBER_VICTIMS);
}

/* Sort the chunks that have changed. */
static void look_again(tide_victims *v)
{
    const bool too_long = !v->future->active && v->places->uses - v->since > v->future->never_first;
    tide_chunk chunk;
    if (too_long || v->epoch != v->future->epoch)
        begin_anew(v);
    while ((chunk = tide_places_next_changed(v->places, TIDE_SUBSCRIBER_VICTIMS)) != TIDE_CHUNK_NONE) {
        sort(v, chunk);
        if (v->future->active && tide_pending_is_param_chunk(v->pending, chunk) &&
            v->pending->on_device[chunk])
            sort_states(v, chunk);
    }
}

/* --- device slots --- */

/* The farthest chunk in the buckets `among` that the rule allows as a victim. */
static tide_chunk farthest(const tide_victims *v, tide_victim_rule rule, uint32_t among)
{
    assert(among < 1u << REQUESTED);
    if (!(rule.spared & TIDE_MARK_REQUESTED))
        among |= among << REQUESTED;
    return tide_priority_buckets_farthest(&v->device, among, tide_future_horizon(v->future), rule.spared);
}

static bool prefers_clean(const tide_victims *v, tide_chunk clean, tide_chunk victim)
{
    if (clean == TIDE_CHUNK_NONE || !v->future->active)
        return false;
    return (uint64_t)tide_future_worth_distance(v->future, clean) * CLEAN_DENOMINATOR >=
           (uint64_t)tide_future_worth_distance(v->future, victim) * CLEAN_NUMERATOR;
}

bool tide_victims_evict_reclaimable(tide_victims *victims, tide_victim_rule rule, tide_reason reason,
                                    tide_command *command)
{
    look_again(victims);
    const tide_chunk dead = farthest(victims, rule, 1u << DEAD);
    if (dead == TIDE_CHUNK_NONE)
        return false;
    assert(!tide_place_is_dirty(tide_place_of(victims->places, dead)));
    tide_moves_out(victims->moves, TIDE_COMMAND_EVICT, dead, false, reason, command);
    return true;
}

bool tide_victims_evict(tide_victims *victims, tide_victim_rule rule, tide_reason reason,
                        tide_command *command)
{
    if (tide_victims_evict_reclaimable(victims, rule, reason, command))
        return true;
    tide_chunk victim = farthest(victims, rule, 1u << CLEAN | 1u << DIRTY);
    const tide_chunk clean = farthest(victims, rule, 1u << CLEAN);
    if (rule.only_clean || prefers_clean(victims, clean, victim) ||
        (victim != clean && !tide_victims_free_host_slot(victims, rule.spared_duplicates)))
        victim = clean;
    if (victim == TIDE_CHUNK_NONE)
        return false;
    const bool copy = victim != clean;
    assert(copy == tide_place_is_dirty(tide_place_of(victims->places, victim)));
    tide_moves_out(victims->moves, TIDE_COMMAND_EVICT, victim, copy, reason, command);
    return true;
}

/* --- host slots --- */

/* The duplicate that will stay on the device longest: of those pinned there the one needed soonest, else of
 * all. */
static tide_chunk find_duplicate(tide_victims *v, uint32_t spared)
{
    const tide_horizon horizon = tide_future_horizon(v->future);
    const bool spares_queued = (spared & QUEUED_MARKS) == QUEUED_MARKS;
    const uint32_t among = spares_queued ? 1u << DUPLICATE : 1u << DUPLICATE | 1u << (QUEUED + DUPLICATE);
    look_again(v);
    const tide_chunk used =
        tide_priority_buckets_nearest(&v->copies, among << (DUPLICATE_IN_USE - DUPLICATE), horizon, spared);
    return used != TIDE_CHUNK_NONE ? used : tide_priority_buckets_nearest(&v->copies, among, horizon, spared);
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

/* The chunk to promote: one with a device slot of its own, else one for a free device slot; TIDE_CHUNK_NONE:
 * none. */
static tide_chunk find_alone(tide_victims *v)
{
    const tide_horizon horizon = tide_future_horizon(v->future);
    look_again(v);
    const tide_chunk updated =
        tide_priority_buckets_nearest(&v->copies, 1u << UPDATED, horizon, TIDE_MARK_ASSEMBLE_HOST);
    if (updated != TIDE_CHUNK_NONE || tide_places_free(v->places, TIDE_TIER_DEVICE) == 0)
        return updated;
    return tide_priority_buckets_farthest(&v->copies, 1u << ALONE, horizon, TIDE_MARK_ASSEMBLE_HOST);
}

bool tide_victims_promote(tide_victims *victims, const tide_turn *turn, tide_command *command)
{
    const tide_victim_rule rule = {.spared = TIDE_MARK_ASSEMBLE_DEVICE |
                                             (turn->request_yields ? 0 : TIDE_MARK_REQUESTED),
                                   .only_clean = true};
    if (victims->moves->promotions_open)
        return false;
    const tide_chunk chunk = find_alone(victims);
    if (chunk == TIDE_CHUNK_NONE)
        return tide_places_free(victims->places, TIDE_TIER_DEVICE) == 0 &&
               victims->moves->evictions_open == 0 &&
               tide_victims_evict(victims, rule, TIDE_REASON_PROMOTE, command);
    assert(tide_place_of(victims->places, chunk)->pins[TIDE_TIER_HOST] == 0);
    tide_moves_fetch(victims->moves, chunk, TIDE_REASON_PROMOTE, command);
    return true;
}

/* --- validity --- */

static bool stands(const tide_victims *v, const tide_priority_buckets *buckets, tide_chunk chunk,
                   uint32_t bucket)
{
    return tide_priority_buckets_has(buckets, chunk, bucket,
                                     bucket == TIDE_BUCKET_NONE ? 0 : key_of(v, chunk));
}

/* Has the chunk, or a PARAM chunk on which its key depends, changed since it was sorted? */
static bool is_changed(const tide_victims *v, tide_chunk chunk)
{
    uint32_t changed = tide_place_of(v->places, chunk)->changed;
    tide_chunk owner, last;
    if (tide_pending_owners(v->pending, chunk, &owner, &last))
        for (; owner <= last; owner++)
            changed |= tide_place_of(v->places, owner)->changed;
    return changed & 1u << TIDE_SUBSCRIBER_VICTIMS;
}

bool tide_victims_is_valid(const tide_victims *victims)
{
    if (victims->epoch != victims->future->epoch)
        return true; /* look_again will sort all chunks again */
    for (tide_chunk chunk = 0; chunk < victims->places->chunk_count; chunk++) {
        const tide_place *place = tide_place_of(victims->places, chunk);
        if (!is_changed(victims, chunk) &&
            (!stands(victims, &victims->device, chunk, device_bucket(place)) ||
             !stands(victims, &victims->copies, chunk, copy_bucket(victims, chunk))))
            return false;
    }
    return true;
}
