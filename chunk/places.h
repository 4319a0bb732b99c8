/* Which chunk is in which slot: two tiers of equal slots, and per chunk its place in each.
 *
 *   tier:   slots = free + holding          (asserted at every change)
 *   chunk:  slot[tier]   the slot it holds there, valid or about to become so (a move is open)
 *           valid        the tiers whose slot has its content
 *
 * A chunk that the host changes may keep its device slot, mapped where it was, for the copy of its new
 * values: it is `stale` there. Taking the slot loses nothing.
 *
 * A chunk is `live` when it has content at all. One that is not may keep a device slot (a dead ACTIVATION
 * chunk stays mapped for its next WRITE; taking the slot loses nothing) but never a host slot. A chunk is
 * `busy` while a command on it is open; pins count the users that hold it in a tier. last_use is a count of
 * uses, not time: the least recently used chunk has the smallest.
 *
 * Marks say why a chunk is spared, or where it is to go; the object that decides that sets them.
 *
 * Subscribers are the objects that decide which chunk moves, and why (victims, eviction_queue, tasks,
 * request, prefetch). Each keeps chunks sorted by their worth to it, and looks again only at chunks that
 * changed since it last looked: places tells it of every change of a place, and the objects above of every
 * other change that counts.
 *
 * Owns all of this and alone writes it: whatever changes about a chunk's place changes here. Calls only
 * array.
 */
#ifndef TIDE_CHUNK_PLACES_H
#define TIDE_CHUNK_PLACES_H

#include "chunk/array.h"
#include "chunk/layout.h"

#define TIDE_SLOT_NONE UINT32_MAX

/* Marks. */
enum {
    TIDE_MARK_REQUESTED = 1u << 0,       /* the open op or slice wants it on the device */
    TIDE_MARK_FIRST = 1u << 1,           /* a request waits for this PARAM chunk's pending update */
    TIDE_MARK_ASSEMBLE_DEVICE = 1u << 2, /* a device task is being assembled */
    TIDE_MARK_ASSEMBLE_HOST = 1u << 3,
    TIDE_MARK_EVICTING = 1u << 4, /* it is to leave the device as soon as it can */
    TIDE_MARK_WRITING = 1u << 5,  /* it is to be copied out as soon as it can, and keeps its slot */
    TIDE_MARK_KEPT = 1u << 6,     /* its device slot waits while the host updates it */
    TIDE_MARK_ACCESSED = 1u << 7, /* the last host request began with it */
    TIDE_MARKS_QUEUED = TIDE_MARK_EVICTING | TIDE_MARK_WRITING,
};

typedef enum tide_subscriber {
    TIDE_SUBSCRIBER_VICTIMS = 0,
    TIDE_SUBSCRIBER_EVICTION_QUEUE,
    TIDE_SUBSCRIBER_TASKS,
    TIDE_SUBSCRIBER_REQUEST,
    TIDE_SUBSCRIBER_PREFETCH,
    TIDE_SUBSCRIBER_OUTSIDE, /* the manager's caller (manager.h), who may never ask */
    TIDE_SUBSCRIBERS,
} tide_subscriber;

enum { TIDE_SUBSCRIBERS_ALL = (1 << TIDE_SUBSCRIBERS) - 1 };

/* The tiers that have a chunk's content. A chunk whose content only the device has is dirty. */
typedef enum tide_source {
    TIDE_SOURCE_DEVICE = 1 << TIDE_TIER_DEVICE,
    TIDE_SOURCE_HOST = 1 << TIDE_TIER_HOST,
} tide_source;

typedef struct tide_place {
    uint32_t slot[TIDE_TIER_COUNT];
    uint32_t pins[TIDE_TIER_COUNT];
    uint8_t valid; /* tide_source */
    bool busy;
    bool live;
    bool stale; /* slot[DEVICE] stays mapped at the chunk's place, with old values */
    uint8_t marks;
    uint8_t changed; /* subscribers that have not looked at it since it changed */
    uint64_t last_use;
} tide_place;

typedef struct tide_slots {
    uint32_t count;
    uint32_t free_count, free_first;
    uint32_t *free; /* a ring: the one that was given back first is taken first */
} tide_slots;

/* Changed chunks, each once: a ring. */
typedef struct tide_change_list {
    tide_chunk *chunks;
    uint32_t first, count;
} tide_change_list;

typedef struct tide_places {
    tide_arrays arrays;
    uint32_t chunk_count;
    tide_place *chunks;
    tide_slots tier[TIDE_TIER_COUNT];
    uint32_t pinned[TIDE_TIER_COUNT]; /* chunks with a pin there */
    uint32_t queued;                  /* chunks that are EVICTING or WRITING */
    uint64_t uses;                    /* so far; the next last_use */
    tide_change_list change_lists[TIDE_SUBSCRIBERS];
} tide_places;

/* NO_MEMORY. Nothing to free on failure. */
tide_status tide_places_create(tide_places *places, uint32_t chunk_count,
                               const uint32_t slots[TIDE_TIER_COUNT]);
void tide_places_destroy(tide_places *places);

/* --- a chunk's state --- */

static inline bool tide_place_has(const tide_place *place, tide_tier tier)
{
    return place->valid >> tier & 1u;
}

/* The chunk is on the device and at rest: an op may use it. */
static inline bool tide_place_is_resident(const tide_place *place)
{
    return tide_place_has(place, TIDE_TIER_DEVICE) && !place->busy;
}

/* The chunk's device slot may be taken at no cost: it has old values, which no command uses. */
static inline bool tide_place_is_reclaimable(const tide_place *place)
{
    return place->stale && !place->busy;
}

/* The only copy is on the device: eviction needs a copy out. */
static inline bool tide_place_is_dirty(const tide_place *place)
{
    return place->live && place->valid == TIDE_SOURCE_DEVICE;
}

/* Nothing pins the chunk on the device and no command is open on it: it may leave. */
static inline bool tide_place_is_movable(const tide_place *place)
{
    return tide_place_is_resident(place) && place->pins[TIDE_TIER_DEVICE] == 0;
}

/* The host copy may be dropped at once, because the device has one. */
static inline bool tide_place_is_duplicate(const tide_place *place)
{
    return tide_place_is_resident(place) && tide_place_has(place, TIDE_TIER_HOST) &&
           place->pins[TIDE_TIER_HOST] == 0;
}

static inline const tide_place *tide_place_of(const tide_places *places, tide_chunk chunk)
{
    return &places->chunks[chunk];
}

static inline uint32_t tide_places_free(const tide_places *places, tide_tier tier)
{
    return places->tier[tier].free_count;
}

/* Is there a device slot for the chunk: a free one, or its own? */
static inline bool tide_places_has_slot_for(const tide_places *places, tide_chunk chunk)
{
    return places->chunks[chunk].stale || tide_places_free(places, TIDE_TIER_DEVICE) > 0;
}

/* --- changes --- */

/* Take a free slot (there is one) for a chunk that has none in the tier. The slot does not have the chunk's
 * content yet. */
uint32_t tide_places_take(tide_places *places, tide_chunk chunk, tide_tier tier);
/* Give a chunk's unpinned slot back, with whatever it holds. */
void tide_places_release(tide_places *places, tide_chunk chunk, tide_tier tier);
/* A command on the chunk is open from now on; no command on it is open any more. */
void tide_places_open(tide_places *places, tide_chunk chunk);
void tide_places_close(tide_places *places, tide_chunk chunk);
/* The chunk's slot in the tier has its content from now on. A stale device slot gets the new values and is
 * stale no more. */
void tide_places_set_valid(tide_places *places, tide_chunk chunk, tide_tier tier);
/* The host has changed the chunk, or is about to: its device slot, unpinned, has only old values from now
 * on. */
void tide_places_make_stale(tide_places *places, tide_chunk chunk);
void tide_places_pin(tide_places *places, tide_chunk chunk, tide_tier tier);
void tide_places_unpin(tide_places *places, tide_chunk chunk, tide_tier tier);
/* A chunk gets its first content or loses its last. A host copy without a use from then on is given back at
 * once. */
void tide_places_set_live(tide_places *places, tide_chunk chunk, bool live);
/* Give a host slot back that does not have the chunk's content, or whose chunk has no content. */
void tide_places_tidy_host(tide_places *places, tide_chunk chunk);

/* Set marks, and take others away. */
void tide_places_change_marks(tide_places *places, tide_chunk chunk, uint32_t set, uint32_t unset);

/* --- subscribers --- */

void tide_places_notify_new(tide_places *places, tide_chunk chunk, uint32_t subscribers);

/* Have these subscribers (1 << tide_subscriber, or TIDE_SUBSCRIBERS_ALL) look at the chunk again. */
static inline void tide_places_notify(tide_places *places, tide_chunk chunk, uint32_t subscribers)
{
    if (subscribers & ~(uint32_t)places->chunks[chunk].changed)
        tide_places_notify_new(places, chunk, subscribers);
}

/* Mark or unmark a chunk at an op's begin or end. No counter depends on these marks. */
static inline void tide_places_request(tide_places *places, tide_chunk chunk, bool requested)
{
    const uint8_t marks = TIDE_MARK_REQUESTED | TIDE_MARK_FIRST;
    tide_place *place = &places->chunks[chunk];
    place->marks = (uint8_t)(requested ? place->marks | marks : place->marks & ~marks);
    tide_places_notify(places, chunk, TIDE_SUBSCRIBERS_ALL);
}

static inline void tide_places_mark(tide_places *places, tide_chunk chunk, uint32_t marks)
{
    tide_places_change_marks(places, chunk, marks, 0);
}

static inline void tide_places_unmark(tide_places *places, tide_chunk chunk, uint32_t marks)
{
    tide_places_change_marks(places, chunk, 0, marks);
}

/* Have a subscriber look at all chunks again. */
void tide_places_notify_all(tide_places *places, tide_subscriber subscriber);
/* The subscriber's next changed chunk, TIDE_CHUNK_NONE if there is none. */
tide_chunk tide_places_next_changed(tide_places *places, tide_subscriber subscriber);

/* Do the counters agree with each other? With `deep` every slot is also checked against its chunk. */
bool tide_places_is_valid(const tide_places *places, bool deep);

#endif
