#include "chunk/places.h"

#include <assert.h>

static void create_slots(tide_places *places, tide_slots *slots, uint32_t count)
{
    assert(count > 0 && count < TIDE_SLOT_NONE);
    slots->count = slots->free_count = count;
    slots->free = tide_arrays_add(&places->arrays, count, sizeof *slots->free);
    for (uint32_t i = 0; i < count && slots->free; i++)
        slots->free[i] = i;
}

tide_status tide_places_create(tide_places *places, uint32_t chunk_count,
                               const uint32_t slots[TIDE_TIER_COUNT])
{
    assert(chunk_count > 0 && chunk_count < TIDE_CHUNK_NONE);
    *places = (tide_places){.chunk_count = chunk_count};
    for (int tier = 0; tier < TIDE_TIER_COUNT; tier++)
        create_slots(places, &places->tier[tier], slots[tier]);
    places->chunks = tide_arrays_add(&places->arrays, chunk_count, sizeof *places->chunks);
    for (int i = 0; i < TIDE_SUBSCRIBERS; i++)
        places->change_lists[i].chunks = tide_arrays_add(&places->arrays, chunk_count, sizeof(tide_chunk));
    if (places->arrays.lacks) {
        tide_places_destroy(places);
        return tide_fail(TIDE_ERROR_NO_MEMORY,
                         "manager: no memory for places of %u chunks in %u and %u slots", chunk_count,
                         slots[TIDE_TIER_DEVICE], slots[TIDE_TIER_HOST]);
    }
    for (uint32_t i = 0; i < chunk_count; i++)
        places->chunks[i].slot[TIDE_TIER_DEVICE] = places->chunks[i].slot[TIDE_TIER_HOST] = TIDE_SLOT_NONE;
    return TIDE_OK;
}

void tide_places_destroy(tide_places *places)
{
    tide_arrays_free(&places->arrays);
    *places = (tide_places){.chunks = NULL};
}

/* Return a chunk's place for a change, and notify all subscribers of it. */
static tide_place *change(tide_places *places, tide_chunk chunk)
{
    assert(chunk < places->chunk_count);
    tide_places_notify(places, chunk, TIDE_SUBSCRIBERS_ALL);
    return &places->chunks[chunk];
}

uint32_t tide_places_take(tide_places *places, tide_chunk chunk, tide_tier tier)
{
    tide_slots *slots = &places->tier[tier];
    tide_place *place = change(places, chunk);
    assert(slots->free_count > 0 && place->slot[tier] == TIDE_SLOT_NONE);
    assert(!tide_place_has(place, tier));
    assert(!place->busy && place->pins[tier] == 0);
    uint32_t slot = slots->free[slots->free_first];
    slots->free_first = (slots->free_first + 1) % slots->count;
    slots->free_count--;
    assert(slot < slots->count);
    place->slot[tier] = slot;
    return slot;
}

void tide_places_make_stale(tide_places *places, tide_chunk chunk)
{
    tide_place *place = change(places, chunk);
    assert(place->slot[TIDE_TIER_DEVICE] != TIDE_SLOT_NONE && place->pins[TIDE_TIER_DEVICE] == 0);
    assert(!place->stale);
    assert(tide_place_has(place, TIDE_TIER_DEVICE) && tide_place_has(place, TIDE_TIER_HOST) && !place->busy);
    place->valid &= (uint8_t)~TIDE_SOURCE_DEVICE;
    place->stale = true;
}

void tide_places_open(tide_places *places, tide_chunk chunk)
{
    tide_place *place = change(places, chunk);
    assert(!place->busy);
    place->busy = true;
}

void tide_places_close(tide_places *places, tide_chunk chunk)
{
    tide_place *place = change(places, chunk);
    assert(place->busy);
    place->busy = false;
}

void tide_places_set_valid(tide_places *places, tide_chunk chunk, tide_tier tier)
{
    tide_place *place = change(places, chunk);
    assert(place->slot[tier] != TIDE_SLOT_NONE);
    assert(!place->busy && (!place->stale || place->pins[TIDE_TIER_DEVICE] == 0));
    place->valid |= (uint8_t)(1u << tier);
    place->stale &= tier != TIDE_TIER_DEVICE;
}

void tide_places_release(tide_places *places, tide_chunk chunk, tide_tier tier)
{
    tide_slots *slots = &places->tier[tier];
    tide_place *place = change(places, chunk);
    uint32_t slot = place->slot[tier];
    assert(slot < slots->count);
    assert(place->pins[tier] == 0);
    assert(!place->busy);
    assert(slots->free_count < slots->count);
    slots->free[(slots->free_first + slots->free_count++) % slots->count] = slot;
    place->slot[tier] = TIDE_SLOT_NONE;
    place->valid &= (uint8_t) ~(1u << tier);
    place->stale &= tier != TIDE_TIER_DEVICE;
}

void tide_places_pin(tide_places *places, tide_chunk chunk, tide_tier tier)
{
    tide_place *place = change(places, chunk);
    assert(place->slot[tier] != TIDE_SLOT_NONE);
    assert(!place->busy && (tier == TIDE_TIER_HOST || tide_place_has(place, tier)));
    if (place->pins[tier]++ == 0)
        places->pinned[tier]++;
    place->last_use = ++places->uses;
    assert(places->pinned[tier] + places->tier[tier].free_count <= places->tier[tier].count);
}

void tide_places_unpin(tide_places *places, tide_chunk chunk, tide_tier tier)
{
    tide_place *place = change(places, chunk);
    assert(place->pins[tier] > 0 && places->pinned[tier] > 0);
    assert(!place->busy && place->slot[tier] != TIDE_SLOT_NONE);
    if (--place->pins[tier] == 0)
        places->pinned[tier]--;
}

void tide_places_set_live(tide_places *places, tide_chunk chunk, bool live)
{
    tide_place *place = change(places, chunk);
    place->live = live;
    if (!live && !place->busy && place->slot[TIDE_TIER_HOST] != TIDE_SLOT_NONE &&
        place->pins[TIDE_TIER_HOST] == 0)
        tide_places_release(places, chunk, TIDE_TIER_HOST);
    assert(live || place->busy || place->slot[TIDE_TIER_HOST] == TIDE_SLOT_NONE);
}

void tide_places_tidy_host(tide_places *places, tide_chunk chunk)
{
    const tide_place *place = &places->chunks[chunk];
    const bool useful = place->live && tide_place_has(place, TIDE_TIER_HOST);
    assert(!place->busy && place->pins[TIDE_TIER_HOST] == 0);
    if (place->slot[TIDE_TIER_HOST] != TIDE_SLOT_NONE && !useful)
        tide_places_release(places, chunk, TIDE_TIER_HOST);
}

/* The subscribers to notify when these marks change. */
static uint32_t subscribers_of(uint32_t marks)
{
    if (marks & (TIDE_MARK_REQUESTED | TIDE_MARKS_QUEUED | TIDE_MARK_KEPT))
        return TIDE_SUBSCRIBERS_ALL;
    return (marks & TIDE_MARK_FIRST ? 1u << TIDE_SUBSCRIBER_TASKS : 0) |
           (marks & TIDE_MARK_ASSEMBLE_DEVICE ? 1u << TIDE_SUBSCRIBER_EVICTION_QUEUE : 0);
}

void tide_places_change_marks(tide_places *places, tide_chunk chunk, uint32_t set, uint32_t unset)
{
    tide_place *place = &places->chunks[chunk];
    const uint32_t marks = (place->marks | set) & ~unset, changed = place->marks ^ marks;
    assert((set | unset) < 2 * TIDE_MARK_ACCESSED && (marks & TIDE_MARKS_QUEUED) != TIDE_MARKS_QUEUED);
    if (!changed)
        return;
    places->queued += (marks & TIDE_MARKS_QUEUED) != 0;
    assert(places->queued > 0 || !(place->marks & TIDE_MARKS_QUEUED));
    places->queued -= (place->marks & TIDE_MARKS_QUEUED) != 0;
    place->marks = (uint8_t)marks;
    tide_places_notify(places, chunk, subscribers_of(changed));
}

/* --- subscribers --- */

void tide_places_notify_new(tide_places *places, tide_chunk chunk, uint32_t subscribers)
{
    tide_place *place = &places->chunks[chunk];
    assert(chunk < places->chunk_count && subscribers <= TIDE_SUBSCRIBERS_ALL);
    for (uint32_t unseen = subscribers & ~(uint32_t)place->changed; unseen != 0; unseen &= unseen - 1) {
        tide_change_list *list = &places->change_lists[__builtin_ctz(unseen)];
        const uint32_t at = list->first + list->count++;
        assert(list->count <= places->chunk_count);
        list->chunks[at < places->chunk_count ? at : at - places->chunk_count] = chunk;
    }
    place->changed |= (uint8_t)subscribers;
}

void tide_places_notify_all(tide_places *places, tide_subscriber subscriber)
{
    for (tide_chunk chunk = 0; chunk < places->chunk_count; chunk++)
        tide_places_notify(places, chunk, 1u << subscriber);
}

tide_chunk tide_places_next_changed(tide_places *places, tide_subscriber subscriber)
{
    tide_change_list *list = &places->change_lists[subscriber];
    if (list->count == 0)
        return TIDE_CHUNK_NONE;
    const tide_chunk chunk = list->chunks[list->first];
    assert(places->chunks[chunk].changed & 1u << subscriber);
    list->first = list->first + 1 < places->chunk_count ? list->first + 1 : 0;
    list->count--;
    places->chunks[chunk].changed &= (uint8_t) ~(1u << subscriber);
    return chunk;
}

/* Check that each slot is in exactly one place: in the free ring or with one chunk. Compares the count of
 * slots found, the sum of their numbers and the sum of the squares with the right values. One or two wrong
 * slots always change one of these; more wrong slots nearly always do. */
static bool slots_agree(const tide_places *places, tide_tier tier)
{
    const tide_slots *slots = &places->tier[tier];
    uint64_t count = slots->free_count, sum = 0, squares = 0, all = slots->count;
    for (uint32_t i = 0; i < slots->free_count; i++) {
        const uint64_t slot = slots->free[(slots->free_first + i) % slots->count];
        sum += slot;
        squares += slot * slot;
    }
    for (tide_chunk chunk = 0; chunk < places->chunk_count; chunk++) {
        const uint64_t slot = places->chunks[chunk].slot[tier];
        if (slot == TIDE_SLOT_NONE)
            continue;
        if (slot >= slots->count)
            return false;
        count++;
        sum += slot;
        squares += slot * slot;
    }
    return count == all && 2 * sum == all * (all - 1) && 6 * squares == all * (all - 1) * (2 * all - 1);
}

static bool place_is_valid(const tide_place *place)
{
    for (int tier = 0; tier < TIDE_TIER_COUNT; tier++) {
        bool holds = place->slot[tier] != TIDE_SLOT_NONE;
        if (tide_place_has(place, (tide_tier)tier) && !holds)
            return false;
        if (place->pins[tier] && !holds)
            return false;
        const bool stale = place->stale && tier == TIDE_TIER_DEVICE;
        if (stale && (!holds || tide_place_has(place, (tide_tier)tier) || place->pins[tier]))
            return false;
        if (holds && !tide_place_has(place, (tide_tier)tier) && !place->busy &&
            !stale) /* a slot without valid content and no open move */
            return false;
    }
    return place->live || place->busy || place->slot[TIDE_TIER_HOST] == TIDE_SLOT_NONE;
}

bool tide_places_is_valid(const tide_places *places, bool deep)
{
    uint32_t pinned[TIDE_TIER_COUNT] = {0, 0}, queued = 0;
    for (int tier = 0; tier < TIDE_TIER_COUNT; tier++)
        if (places->tier[tier].free_count > places->tier[tier].count ||
            places->pinned[tier] + places->tier[tier].free_count > places->tier[tier].count)
            return false;
    if (!deep)
        return true;
    for (uint32_t i = 0; i < places->chunk_count; i++) {
        if (!place_is_valid(&places->chunks[i]))
            return false;
        queued += (places->chunks[i].marks & TIDE_MARKS_QUEUED) != 0;
        for (int tier = 0; tier < TIDE_TIER_COUNT; tier++)
            pinned[tier] += places->chunks[i].pins[tier] > 0;
    }
    return queued == places->queued && pinned[0] == places->pinned[0] && pinned[1] == places->pinned[1] &&
           slots_agree(places, TIDE_TIER_DEVICE) && slots_agree(places, TIDE_TIER_HOST);
}
