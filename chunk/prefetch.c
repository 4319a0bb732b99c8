#include "chunk/prefetch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The sets of fetches. */
enum {
    MISSING = 0,      /* the chunk is missing, so the fetch can begin */
    MISSING_IN_PLACE, /* the same, but the chunk has kept a slot */
    SETS,
    ASIDE = SETS, /* a free slot is set aside for the fetch; such fetches are in the tree */
};

tide_status tide_prefetch_create(tide_prefetch *prefetch, tide_places *places, tide_moves *moves,
                                 const tide_future *future, const tide_pending *pending)
{
    const uint32_t fetches = future->schedule.use_capacity;
    *prefetch = (tide_prefetch){.places = places, .moves = moves, .future = future, .pending = pending};
    prefetch->next_fetch = malloc(fetches * sizeof *prefetch->next_fetch);
    prefetch->fetch_of = malloc(places->chunk_count * sizeof *prefetch->fetch_of);
    prefetch->aside = malloc((fetches + 1u) * sizeof *prefetch->aside);
    prefetch->is_aside = malloc(fetches * sizeof *prefetch->is_aside);
    _Static_assert(sizeof prefetch->sets / sizeof prefetch->sets[0] == SETS, "a set each");
    prefetch->words = tide_bitsets_create(prefetch->sets, SETS, fetches);
    if (!prefetch->next_fetch || !prefetch->fetch_of || !prefetch->aside || !prefetch->is_aside ||
        !prefetch->words)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for %u planned fetches", fetches);
    return TIDE_OK;
}

void tide_prefetch_destroy(tide_prefetch *prefetch)
{
    free(prefetch->next_fetch);
    free(prefetch->fetch_of);
    free(prefetch->aside);
    free(prefetch->is_aside);
    free(prefetch->words);
    *prefetch = (tide_prefetch){.count = 0};
}

/* --- sets of fetches --- */

static const tide_trace_use *use_of(const tide_prefetch *p, uint32_t fetch)
{
    assert(fetch < p->count);
    return &p->step->trace.uses[p->step->plan->fetches[fetch]];
}

static bool is_in_place(const tide_prefetch *p, uint32_t fetch)
{
    return p->step->plan->in_place[p->step->plan->fetches[fetch]];
}

/* The sets to which a fetch belongs: bit i for set i. If its chunk keeps its slot until then, no other slot
 * is set aside for it. If the fetch is not its chunk's next one, the plan says whether the chunk will have
 * kept its slot. */
static uint32_t sets_of(const tide_prefetch *p, uint32_t fetch)
{
    const tide_chunk chunk = use_of(p, fetch)->chunk;
    const tide_place *place = tide_place_of(p->places, chunk);
    const bool is_there = tide_place_has(place, TIDE_TIER_DEVICE);
    const bool keeps = place->stale || place->marks & TIDE_MARK_KEPT || (is_in_place(p, fetch) && is_there);
    const uint32_t later = keeps ? 0 : 1u << ASIDE;
    if (p->fetch_of[chunk] != fetch)
        return is_in_place(p, fetch) ? 0 : 1u << ASIDE;
    if (tide_pending_has(p->pending, chunk) || tide_pending_must_leave(p->pending, chunk))
        return later; /* the chunk's update comes first */
    if (place->marks & TIDE_MARK_REQUESTED && (is_there || place->busy))
        return later; /* the open op uses the chunk first */
    if (!is_there && place->busy)
        return 0; /* the chunk is being fetched already */
    if (!is_there)
        return later | 1u << (place->stale ? MISSING_IN_PLACE : MISSING);
    if (place->busy || place->marks & TIDE_MARK_EVICTING || place->pins[TIDE_TIER_DEVICE])
        return later; /* the chunk is being evicted or written back, or is in use */
    const bool used_before = tide_schedule_next(&p->future->schedule, chunk) != p->step->plan->fetches[fetch];
    return used_before ? later : 0;
}

static void set_aside(tide_prefetch *p, uint32_t fetch, bool aside)
{
    if (p->is_aside[fetch] == aside)
        return;
    p->is_aside[fetch] = aside;
    for (uint32_t i = fetch + 1; i <= p->count; i += i & -i)
        p->aside[i] += aside ? 1u : UINT32_MAX;
}

/* The number of slots set aside for fetches [0, end). */
static uint32_t aside_below(const tide_prefetch *p, uint32_t end)
{
    uint32_t slots = 0;
    assert(end <= p->count);
    for (uint32_t i = end; i > 0; i -= i & -i)
        slots += p->aside[i];
    return slots;
}

/* The number of slots set aside for fetches that are needed sooner than `fetch`. */
static uint32_t aside_before(const tide_prefetch *p, uint32_t fetch)
{
    const uint32_t round = fetch < p->first ? aside_below(p, p->count) : 0;
    return round + aside_below(p, fetch) - aside_below(p, p->first);
}

static void sort(tide_prefetch *p, uint32_t fetch)
{
    const uint32_t sets = sets_of(p, fetch);
    set_aside(p, fetch, sets >> ASIDE & 1u);
    for (int set = 0; set < SETS; set++)
        tide_bitset_put(&p->sets[set], fetch, sets >> set & 1u);
}

/* --- position in the plan --- */

/* Call when the schedule step of a fetch has begun: makes the chunk's following fetch its next one, which may
 * be the same fetch in the next step. */
static void pass(tide_prefetch *p, uint32_t fetch)
{
    const uint32_t next = p->next_fetch[fetch];
    assert(next < p->count && p->fetch_of[use_of(p, fetch)->chunk] == fetch);
    p->fetch_of[use_of(p, fetch)->chunk] = next;
    sort(p, fetch);
    if (next != fetch)
        sort(p, next);
}

static bool is_taken_over(const tide_prefetch *p, const tide_step_plan *step)
{
    return p->step == step && p->planned == p->future->planned && p->epoch == p->future->epoch;
}

static void take_over(tide_prefetch *p, const tide_step_plan *step)
{
    assert(step->plan->fetch_count <= p->future->schedule.use_capacity);
    p->step = step;
    p->planned = p->future->planned;
    p->epoch = p->future->epoch;
    p->rounds = p->future->rounds;
    p->count = step->plan->fetch_count;
    p->first = 0;
    for (int set = 0; set < SETS; set++)
        tide_bitset_clear(&p->sets[set]);
    memset(p->aside, 0, (p->count + 1u) * sizeof *p->aside);
    memset(p->is_aside, 0, p->count * sizeof *p->is_aside);
    memset(p->fetch_of, 0xff, p->places->chunk_count * sizeof *p->fetch_of);
    /* two rounds: the second links each chunk's last fetch to its first, in the next step */
    for (int round = 0; round < 2; round++)
        for (uint32_t fetch = p->count; fetch-- > 0;) {
            p->next_fetch[fetch] = p->fetch_of[use_of(p, fetch)->chunk];
            p->fetch_of[use_of(p, fetch)->chunk] = fetch;
        }
    for (uint32_t fetch = 0; fetch < p->count; fetch++)
        sort(p, fetch);
}

/* Bring everything up to date: pass the fetches whose schedule steps have begun, and sort the next fetches of
 * changed chunks. */
static void look_again(tide_prefetch *p, const tide_step_plan *step)
{
    tide_chunk chunk;
    if (!is_taken_over(p, step))
        take_over(p, step);
    while (p->rounds < p->future->rounds ||
           (p->first < p->count && use_of(p, p->first)->schedule_step < p->future->schedule.cursor)) {
        if (p->first < p->count) {
            pass(p, p->first++);
            continue;
        }
        p->first = 0;
        p->rounds++;
    }
    while ((chunk = tide_places_next_changed(p->places, TIDE_SUBSCRIBER_PREFETCH)) != TIDE_CHUNK_NONE)
        if (p->fetch_of[chunk] != TIDE_USE_NONE)
            sort(p, p->fetch_of[chunk]);
}

/* The fetch of a set that is needed first. */
static uint32_t first_of(const tide_prefetch *p, int set)
{
    const uint32_t found = tide_bitset_from(&p->sets[set], p->first);
    return found != TIDE_USE_NONE ? found : tide_bitset_from(&p->sets[set], 0);
}

static uint32_t order_of(const tide_prefetch *p, uint32_t fetch)
{
    if (fetch == TIDE_USE_NONE)
        return TIDE_USE_NONE;
    return fetch >= p->first ? fetch - p->first : fetch + p->count - p->first;
}

bool tide_prefetch_next(tide_prefetch *prefetch, const tide_turn *turn, tide_command *command)
{
    const tide_step_plan *step = tide_future_plan(prefetch->future);
    if (!step || step->plan->fetch_count == 0 || !prefetch->future->prefetch || turn->in_busy)
        return false;
    look_again(prefetch, step);
    const uint32_t free_now = tide_places_free(prefetch->places, TIDE_TIER_DEVICE),
                   free = free_now > turn->reserved ? free_now - turn->reserved : 0;
    uint32_t fetch = first_of(prefetch, MISSING);
    const uint32_t in_place = first_of(prefetch, MISSING_IN_PLACE);
    if (fetch != TIDE_USE_NONE && aside_before(prefetch, fetch) >= free)
        fetch = TIDE_USE_NONE;
    if (order_of(prefetch, in_place) < order_of(prefetch, fetch))
        fetch = in_place;
    if (fetch == TIDE_USE_NONE)
        return false;
    tide_moves_fetch(prefetch->moves, use_of(prefetch, fetch)->chunk, TIDE_REASON_PREFETCH, command);
    return true;
}

bool tide_prefetch_is_valid(const tide_prefetch *prefetch)
{
    const tide_prefetch *p = prefetch;
    if (!p->step || !is_taken_over(p, tide_future_plan(p->future)) || p->rounds != p->future->rounds)
        return true; /* look_again will sort all fetches again */
    for (uint32_t fetch = 0; fetch < p->count; fetch++) {
        uint32_t sets = (uint32_t)p->is_aside[fetch] << ASIDE;
        for (int set = 0; set < SETS; set++)
            sets |= (uint32_t)(tide_bitset_from(&p->sets[set], fetch) == fetch) << set;
        const uint32_t changed = tide_place_of(p->places, use_of(p, fetch)->chunk)->changed;
        if (!(changed & 1u << TIDE_SUBSCRIBER_PREFETCH) && sets != sets_of(p, fetch))
            return false;
    }
    return true;
}
