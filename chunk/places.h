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

#include "base/array.h"
#include "chunk/layout.h"

#define TIDE_SLOT_NONE UINT32_MAX

/* Reasons to spare a chunk, or places where it shall go. */
enum {
    TIDE_MARK_REQUESTED = 1u << 0,       /* the open op or slice wants it on the device */
    TIDE_MARK_FIRST = 1u << 1,           /* a request waits for this PARAM chunk's pending update */
    TIDE_MARK_ASSEMBLE_DEVICE = 1u << 2, /* a device task is being assembled with it */
    TIDE_MARK_ASSEMBLE_HOST = 1u << 3,
    TIDE_MARK_EVICTING = 1u << 4, /* the chunk leaves the device as soon as possible */
    TIDE_MARK_WRITING = 1u << 5,  /* the chunk is copied out as soon as possible, and keeps its slot */
    TIDE_MARK_KEPT = 1u << 6,     /* the chunk's device slot waits while the host updates the chunk */
    TIDE_MARK_ACCESSED = 1u << 7, /* the last host request began with the chunk */
    TIDE_MARKS_QUEUED = TIDE_MARK_EVICTING | TIDE_MARK_WRITING,
};

typedef enum tide_subscriber {
    TIDE_SUBSCRIBER_VICTIMS = 0,
    TIDE_SUBSCRIBER_EVICTION_QUEUE,
    TIDE_SUBSCRIBER_TASKS,
    TIDE_SUBSCRIBER_REQUEST,
    TIDE_SUBSCRIBER_PREFETCH,
    TIDE_SUBSCRIBER_OUTSIDE, /* the manager's caller (manager.h), who need not look at changes */
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
    uint8_t changed; /* subscribers that have not looked at the chunk since it changed */
    uint64_t last_use;
} tide_place;

typedef struct tide_slots {
    uint32_t count;
    uint32_t free_count, free_first;
    uint32_t *free; /* a ring of free slots: the slot that was released first is taken first */
} tide_slots;

/* A ring of the chunks that have changed, without duplicates. */
typedef struct tide_change_list {
    tide_chunk *chunks;
    uint32_t first, count;
} tide_change_list;

typedef struct tide_places {
    tide_arrays arrays;
    uint32_t chunk_count;
    tide_place *chunks;
    tide_slots tier[TIDE_TIER_COUNT];
    uint32_t pinned[TIDE_TIER_COUNT]; /* chunks that are pinned in each tier */
    uint32_t queued;                  /* chunks with the mark EVICTING or WRITING */
    uint64_t uses;                    /* uses so far; the next use gets this number as last_use */
    tide_change_list change_lists[TIDE_SUBSCRIBERS];
} tide_places;

/* Create places in which no chunk has a slot. NO_MEMORY; then there is nothing to free. */
tide_status tide_places_create(tide_places *places, uint32_t chunk_count,
                               const uint32_t slots[TIDE_TIER_COUNT]);
void tide_places_destroy(tide_places *places);

/* --- a chunk's state --- */

static inline bool tide_place_has(const tide_place *place, tide_tier tier)
{
    return place->valid >> tier & 1u;
}

/* Is the chunk on the device with no command open on it, so that an op may use it? */
static inline bool tide_place_is_resident(const tide_place *place)
{
    return tide_place_has(place, TIDE_TIER_DEVICE) && !place->busy;
}

/* Can the chunk's device slot be taken at no cost, because it has only old values, which no command uses? */
static inline bool tide_place_is_reclaimable(const tide_place *place)
{
    return place->stale && !place->busy;
}

/* Does only the device have the content, so that an eviction needs a copy out? */
static inline bool tide_place_is_dirty(const tide_place *place)
{
    return place->live && place->valid == TIDE_SOURCE_DEVICE;
}

/* May the chunk leave the device: nothing pins it there, and no command is open on it? */
static inline bool tide_place_is_movable(const tide_place *place)
{
    return tide_place_is_resident(place) && place->pins[TIDE_TIER_DEVICE] == 0;
}

/* May the host copy be dropped at once, because the device has a copy, too? */
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

/* Take a free slot, which must exist, for a chunk that has none in the tier. The slot does not have the
 * chunk's content yet. */
uint32_t tide_places_take(tide_places *places, tide_chunk chunk, tide_tier tier);
/* Release a chunk's slot, which must not be pinned; its content is lost. */
void tide_places_release(tide_places *places, tide_chunk chunk, tide_tier tier);
/* The first call: a command on the chunk is open from now on. The second: no command on it is open any
 * more. */
void tide_places_open(tide_places *places, tide_chunk chunk);
void tide_places_close(tide_places *places, tide_chunk chunk);
/* The chunk's slot in the tier has the chunk's content from now on; a device slot that was stale is no
 * longer. */
void tide_places_set_valid(tide_places *places, tide_chunk chunk, tide_tier tier);
/* Call before the host changes the chunk: its device slot, which must not be pinned, has only old values from
 * now on. */
void tide_places_make_stale(tide_places *places, tide_chunk chunk);
void tide_places_pin(tide_places *places, tide_chunk chunk, tide_tier tier);
void tide_places_unpin(tide_places *places, tide_chunk chunk, tide_tier tier);
/* Call when a chunk gets its first content or loses its last. In the second case its host slot is released at
 * once, unless it is in use. */
void tide_places_set_live(tide_places *places, tide_chunk chunk, bool live);
/* Release a host slot that does not have the chunk's content, or whose chunk has no content. */
void tide_places_tidy_host(tide_places *places, tide_chunk chunk);

/* Set marks, and take others away. */
void tide_places_change_marks(tide_places *places, tide_chunk chunk, uint32_t set, uint32_t unset);

/* --- subscribers --- */

void tide_places_notify_new(tide_places *places, tide_chunk chunk, uint32_t subscribers);

/* Let these subscribers (1 << tide_subscriber, or TIDE_SUBSCRIBERS_ALL) look at the chunk again. */
static inline void tide_places_notify(tide_places *places, tide_chunk chunk, uint32_t subscribers)
{
    if (subscribers & ~(uint32_t)places->chunks[chunk].changed)
        tide_places_notify_new(places, chunk, subscribers);
}

/* Set or clear the mark REQUESTED, at an op's begin and end. No counter depends on this mark. */
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

/* Let a subscriber look at all chunks again. */
void tide_places_notify_all(tide_places *places, tide_subscriber subscriber);
/* The next chunk that has changed since the subscriber looked at it; TIDE_CHUNK_NONE: there is none. */
tide_chunk tide_places_next_changed(tide_places *places, tide_subscriber subscriber);

/* Check that the counters agree with each other. With `deep`, also check every slot against its chunk. */
bool tide_places_is_valid(const tide_places *places, bool deep);

#endif
