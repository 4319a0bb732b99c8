/* Which chunk is in which slot: a table of slots for each tier, and for each chunk its slot in each tier.
 *
 *   tier:   slots = free + holding          (asserted at every change)
 *   chunk:  slot[tier]   its slot there, if any; while a move is open, perhaps not valid yet
 *           valid        the tiers whose slot has its content
 *
 * A chunk that the host changes may keep its device slot, which stays mapped, for the copy of its new values:
 * then it is `stale`. Its slot may be taken without a copy.
 *
 * A chunk is `live` while it has content. A chunk that is not live may keep a device slot (a dead ACTIVATION
 * chunk stays mapped for its next WRITE; its slot may be taken without a copy) but not a host slot. A chunk
 * is `busy` while a command on it is open. `pins` counts the ops and tasks that need the chunk to stay in a
 * tier. `last_use` is the number of its last use among all uses: the least recently used chunk has the
 * smallest.
 *
 * Marks say why a chunk must stay, or where it is to move. The object that decides this sets them.
 *
 * Subscribers are the objects that decide which chunk moves, and why (victims, eviction_queue, tasks,
 * request, prefetch). Each of them sorts chunks for its own purpose, and sorts again only the chunks that
 * have changed since it last looked: places notifies it of every change of a place, and the objects that call
 * places notify it of other changes that matter (tide_places_notify).
 *
 * Owns all of this, and no other file writes it. Calls only array.
 */
#ifndef TIDE_CHUNK_PLACES_H
#define TIDE_CHUNK_PLACES_H

#include "base/array.h"
#include "chunk/layout.h"

#define TIDE_SLOT_NONE UINT32_MAX

/* Marks of chunks (tide_place.marks). */
enum {
    TIDE_MARK_REQUESTED = 1u << 0,       /* the open op or slice needs it on the device */
    TIDE_MARK_FIRST = 1u << 1,           /* a request waits for this PARAM chunk's pending update */
    TIDE_MARK_ASSEMBLE_DEVICE = 1u << 2, /* a device task that is being assembled needs it */
    TIDE_MARK_ASSEMBLE_HOST = 1u << 3,
    TIDE_MARK_EVICTING = 1u << 4, /* in the eviction queue, to be evicted */
    TIDE_MARK_WRITING = 1u << 5,  /* in the eviction queue, to be copied out; it keeps its slot */
    TIDE_MARK_KEPT = 1u << 6,     /* its device slot stays mapped while the host updates it */
    TIDE_MARK_ACCESSED = 1u << 7, /* it was the first chunk of the last host request */
    TIDE_MARKS_QUEUED = TIDE_MARK_EVICTING | TIDE_MARK_WRITING,
};

typedef enum tide_subscriber {
    TIDE_SUBSCRIBER_VICTIMS = 0,
    TIDE_SUBSCRIBER_EVICTION_QUEUE,
    TIDE_SUBSCRIBER_TASKS,
    TIDE_SUBSCRIBER_REQUEST,
    TIDE_SUBSCRIBER_PREFETCH,
    TIDE_SUBSCRIBER_OUTSIDE, /* the manager's owner (tide_manager_changed_chunk), who may never look */
    TIDE_SUBSCRIBERS,
} tide_subscriber;

enum { TIDE_SUBSCRIBERS_ALL = (1 << TIDE_SUBSCRIBERS) - 1 };

/* The tiers with a chunk's present content. If only the device has it, the chunk is dirty. */
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
    bool stale; /* slot[DEVICE] has old values and is still mapped at the chunk's address */
    uint8_t marks;
    uint8_t changed; /* bits of the subscribers that have not looked at the chunk since it changed */
    uint64_t last_use;
} tide_place;

typedef struct tide_slots {
    uint32_t count;
    uint32_t free_count, free_first;
    uint32_t *free; /* a ring of free slots, first released, first taken */
} tide_slots;

/* A ring of the chunks that have changed, each once. */
typedef struct tide_change_list {
    tide_chunk *chunks;
    uint32_t first, count;
} tide_change_list;

typedef struct tide_places {
    tide_arrays arrays;
    uint32_t chunk_count;
    tide_place *chunks;
    tide_slots tier[TIDE_TIER_COUNT];
    uint32_t pinned[TIDE_TIER_COUNT]; /* how many chunks are pinned in each tier */
    uint32_t queued;                  /* how many chunks have the mark EVICTING or WRITING */
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

/* Can the chunk's device slot be taken without a copy, because it has only old values and no command uses
 * it? */
static inline bool tide_place_is_reclaimable(const tide_place *place)
{
    return place->stale && !place->busy;
}

/* Does only the device have the content, so that an eviction needs a copy out? */
static inline bool tide_place_is_dirty(const tide_place *place)
{
    return place->live && place->valid == TIDE_SOURCE_DEVICE;
}

/* May the chunk leave the device: is it there, not pinned there, and no command open on it? */
static inline bool tide_place_is_movable(const tide_place *place)
{
    return tide_place_is_resident(place) && place->pins[TIDE_TIER_DEVICE] == 0;
}

/* Has the device a copy, too, so that the host copy may be dropped at once? */
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

/* Take a free slot, which must exist, for a chunk that has none in the tier. The slot is not valid yet. */
uint32_t tide_places_take(tide_places *places, tide_chunk chunk, tide_tier tier);
/* Release a chunk's slot, which must not be pinned; its content is lost. */
void tide_places_release(tide_places *places, tide_chunk chunk, tide_tier tier);
/* Call when a command on the chunk opens, and when it closes: the chunk is `busy` in between. */
void tide_places_open(tide_places *places, tide_chunk chunk);
void tide_places_close(tide_places *places, tide_chunk chunk);
/* The chunk's slot in the tier has the chunk's present content from here on; a device slot is not stale any
 * more. */
void tide_places_set_valid(tide_places *places, tide_chunk chunk, tide_tier tier);
/* Call before the host changes the chunk: makes its device slot, which must not be pinned, stale. */
void tide_places_make_stale(tide_places *places, tide_chunk chunk);
void tide_places_pin(tide_places *places, tide_chunk chunk, tide_tier tier);
void tide_places_unpin(tide_places *places, tide_chunk chunk, tide_tier tier);
/* Call when a chunk gets content or has none any more. In the second case its host slot is released at once,
 * unless a command or pin uses it. */
void tide_places_set_live(tide_places *places, tide_chunk chunk, bool live);
/* Release the chunk's host slot if it is not valid, or if the chunk has no content. */
void tide_places_tidy_host(tide_places *places, tide_chunk chunk);

/* Set the marks `set` and clear the marks `unset`. */
void tide_places_change_marks(tide_places *places, tide_chunk chunk, uint32_t set, uint32_t unset);

/* --- subscribers --- */

void tide_places_notify_new(tide_places *places, tide_chunk chunk, uint32_t subscribers);

/* Let these subscribers (1 << tide_subscriber, or TIDE_SUBSCRIBERS_ALL) look at the chunk again. */
static inline void tide_places_notify(tide_places *places, tide_chunk chunk, uint32_t subscribers)
{
    if (subscribers & ~(uint32_t)places->chunks[chunk].changed)
        tide_places_notify_new(places, chunk, subscribers);
}

/* At an op's begin set the mark REQUESTED; at its end clear REQUESTED and FIRST. No counter depends on them,
 * so this is faster than tide_places_change_marks. */
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

/* Check that the counters agree. With `deep`, also check every slot against its chunk. */
bool tide_places_is_valid(const tide_places *places, bool deep);

#endif
