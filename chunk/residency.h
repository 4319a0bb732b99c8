/* Which chunk is in which slot: two tiers of equal slots, and per chunk its place in each.
 *
 *   tier:   slots = free + holding          (asserted at every change)
 *   chunk:  slot[tier]   the slot it holds there, valid or about to become so (a move is open)
 *           valid[tier]  the slot's content is the chunk's
 *
 * A chunk that the host changes may keep its device slot, mapped where it was, for the copy of what it becomes: it is
 * `stale` there. Nothing is lost by taking the slot.
 *
 * A chunk is `live` when it has content at all. One that is not may keep a device slot (a dead CHECKPOINT
 * chunk stays mapped for its next WRITE; nothing is lost by taking the slot) but never a host slot. A chunk
 * is `busy` while a command on it is open; pins count the users that hold it in a tier. last_use is a count
 * of uses, not time: the least recently used chunk has the smallest.
 *
 * Bookkeeping only: who is to move, and why, is decided in manager_slots.c.
 */
#ifndef TIDE_CHUNK_RESIDENCY_H
#define TIDE_CHUNK_RESIDENCY_H

#include "chunk/layout.h"

#define TIDE_SLOT_NONE UINT32_MAX

typedef struct tide_place {
    uint32_t slot[TIDE_TIER_COUNT];
    uint32_t pins[TIDE_TIER_COUNT];
    bool valid[TIDE_TIER_COUNT];
    bool busy;
    bool live;
    bool stale; /* slot[DEVICE] stands at the chunk's place, its content is worth nothing */
    uint64_t last_use;
} tide_place;

typedef struct tide_slots {
    uint32_t count;
    uint32_t free_count, free_first;
    uint32_t *free;     /* a ring: the one that was given back first is taken first */
    tide_chunk *holder; /* per slot; TIDE_CHUNK_NONE if free */
} tide_slots;

typedef struct tide_places {
    uint32_t chunk_count;
    tide_place *chunks;
    tide_slots tier[TIDE_TIER_COUNT];
    uint32_t pinned[TIDE_TIER_COUNT]; /* chunks with a pin there */
    uint32_t stale;                   /* chunks that are stale */
    uint64_t uses;                    /* so far; the next last_use */
} tide_places;

/* NO_MEMORY. Nothing to free on failure. */
tide_status tide_places_create(tide_places *places, uint32_t chunk_count,
                               const uint32_t slots[TIDE_TIER_COUNT]);
void tide_places_destroy(tide_places *places);

/* On the device and at rest: an op may use it. */
static inline bool tide_place_is_resident(const tide_place *place)
{
    return place->valid[TIDE_TIER_DEVICE] && !place->busy;
}

/* It may be taken off the device for nothing: what stands there is worth nothing. */
static inline bool tide_place_is_spent(const tide_place *place)
{
    return place->stale && !place->busy;
}

/* Its only copy is on the device: leaving needs a copy. */
static inline bool tide_place_is_dirty(const tide_place *place)
{
    return place->live && place->valid[TIDE_TIER_DEVICE] && !place->valid[TIDE_TIER_HOST];
}

/* Nobody holds it on the device and no command is open on it: it may leave. */
static inline bool tide_place_is_movable(const tide_place *place)
{
    return tide_place_is_resident(place) && place->pins[TIDE_TIER_DEVICE] == 0;
}

/* Its host copy may be dropped at once because the device has one. */
static inline bool tide_place_is_duplicate(const tide_place *place)
{
    return tide_place_is_resident(place) && place->valid[TIDE_TIER_HOST] && place->pins[TIDE_TIER_HOST] == 0;
}

/* Take a free slot (there is one) for a chunk that has none in the tier. Its content is not yet the chunk's.
 */
uint32_t tide_places_take(tide_places *places, tide_chunk chunk, tide_tier tier);
/* The host has changed it, or is about to: its device slot, unpinned, holds nothing of worth from now on. */
void tide_places_make_stale(tide_places *places, tide_chunk chunk);
/* The new values are there. */
void tide_places_make_fresh(tide_places *places, tide_chunk chunk);
/* Give a chunk's unpinned slot back, with whatever it holds. */
void tide_places_release(tide_places *places, tide_chunk chunk, tide_tier tier);
void tide_places_pin(tide_places *places, tide_chunk chunk, tide_tier tier);
void tide_places_unpin(tide_places *places, tide_chunk chunk, tide_tier tier);
/* A chunk gets its first or loses its last content; a host copy that nobody needs any more goes at once. */
void tide_places_set_live(tide_places *places, tide_chunk chunk, bool live);

/* Counters against each other; with `deep` every slot against its chunk. */
bool tide_places_is_valid(const tide_places *places, bool deep);

#endif
