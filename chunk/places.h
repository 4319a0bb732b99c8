/* Which chunk is in which slot: two tiers of equal slots, and per chunk its place in each.
 *
 *   tier:   slots = free + holding          (asserted at every change)
 *   chunk:  slot[tier]   the slot it holds there, valid or about to become so (a move is open)
 *           valid        where its content stands: in the slot of which tiers
 *
 * A chunk that the host changes may keep its device slot, mapped where it was, for the copy of what it becomes: it is
 * `stale` there. Nothing is lost by taking the slot.
 *
 * A chunk is `live` when it has content at all. One that is not may keep a device slot (a dead ACTIVATION
 * chunk stays mapped for its next WRITE; nothing is lost by taking the slot) but never a host slot. A chunk
 * is `busy` while a command on it is open; pins count the users that hold it in a tier. last_use is a count
 * of uses, not time: the least recently used chunk has the smallest.
 *
 * Marks say why a chunk is spared, or what is to become of it; whoever decides that sets them.
 *
 * Subscribers are the objects that decide which chunk moves, and why (victims, eviction_queue, tasks, request, prefetch). Each keeps chunks sorted by
 * what they are worth to it, and looks again only at chunks that changed since it last asked: here, whenever something
 * about a place changes, and by those above who change something else that counts.
 *
 * Owns all of this and alone writes it: whatever changes about a chunk's place changes here. Calls nobody.
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
    TIDE_MARK_EVICTING = 1u << 4, /* it leaves the device as soon as it can */
    TIDE_MARK_WRITING = 1u << 5,  /* it is copied out as soon as it can, and keeps its slot */
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

/* Where a chunk's content stands. One that the device alone has is dirty. */
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
    bool stale; /* slot[DEVICE] stands at the chunk's place, its content is worth nothing */
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

/* --- what stands where --- */

static inline bool tide_place_has(const tide_place *place, tide_tier tier)
{
    return place->valid >> tier & 1u;
}

/* On the device and at rest: an op may use it. */
static inline bool tide_place_is_resident(const tide_place *place)
{
    return tide_place_has(place, TIDE_TIER_DEVICE) && !place->busy;
}

/* It may be taken off the device for nothing: what stands there is worth nothing. */
static inline bool tide_place_is_reclaimable(const tide_place *place)
{
    return place->stale && !place->busy;
}

/* Its only copy is on the device: eviction needs a copy. */
static inline bool tide_place_is_dirty(const tide_place *place)
{
    return place->live && place->valid == TIDE_SOURCE_DEVICE;
}

/* Nobody holds it on the device and no command is open on it: it may leave. */
static inline bool tide_place_is_movable(const tide_place *place)
{
    return tide_place_is_resident(place) && place->pins[TIDE_TIER_DEVICE] == 0;
}

/* Its host copy may be dropped at once because the device has one. */
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

/* Is there a device slot for it: a free one, or its own? */
static inline bool tide_places_has_slot_for(const tide_places *places, tide_chunk chunk)
{
    return places->chunks[chunk].stale || tide_places_free(places, TIDE_TIER_DEVICE) > 0;
}

/* --- changes --- */

/* Take a free slot (there is one) for a chunk that has none in the tier. Its content is not yet the chunk's. */
uint32_t tide_places_take(tide_places *places, tide_chunk chunk, tide_tier tier);
/* Give a chunk's unpinned slot back, with whatever it holds. */
void tide_places_release(tide_places *places, tide_chunk chunk, tide_tier tier);
/* A command on it is open from now on; is over. */
void tide_places_open(tide_places *places, tide_chunk chunk);
void tide_places_close(tide_places *places, tide_chunk chunk);
/* Its slot in the tier holds its content. New values come to a stale device slot, which is stale no more. */
void tide_places_set_valid(tide_places *places, tide_chunk chunk, tide_tier tier);
/* The host has changed it, or is about to: its device slot, unpinned, holds nothing of worth from now on. */
void tide_places_make_stale(tide_places *places, tide_chunk chunk);
void tide_places_pin(tide_places *places, tide_chunk chunk, tide_tier tier);
void tide_places_unpin(tide_places *places, tide_chunk chunk, tide_tier tier);
/* A chunk gets its first or loses its last content; a host copy that nobody needs any more goes at once. */
void tide_places_set_live(tide_places *places, tide_chunk chunk, bool live);
/* A host slot without the chunk's content, or of a chunk without any, is of no use: it goes. */
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

/* An op's begin and end mark and unmark each of its chunks: nobody counts these marks. */
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

/* All chunks. */
void tide_places_notify_all(tide_places *places, tide_subscriber subscriber);
/* The subscriber's next changed chunk, TIDE_CHUNK_NONE if there is none. */
tide_chunk tide_places_next_changed(tide_places *places, tide_subscriber subscriber);

/* Counters against each other; with `deep` every slot against its chunk. */
bool tide_places_is_valid(const tide_places *places, bool deep);

#endif
