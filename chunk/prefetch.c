/* See prefetch.h. */
#include "chunk/prefetch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

tide_status tide_prefetch_create(tide_prefetch *prefetch, tide_places *places, tide_moves *moves,
                                 const tide_future *future, const tide_dues *dues)
{
    tide_prefetch *p = prefetch;
    const uint32_t fetches = future->schedule.use_capacity, chunks = places->chunk_count;
    *p = (tide_prefetch){.places = places, .moves = moves, .future = future, .dues = dues};
    p->next_fetch = malloc(fetches * sizeof *p->next_fetch);
    p->fetch_of = malloc(chunks * sizeof *p->fetch_of);
    p->aside = malloc((fetches + 1u) * sizeof *p->aside);
    p->takes = malloc(fetches * sizeof *p->takes);
    p->words = calloc(2 * tide_use_set_words(fetches), sizeof *p->words);
    if (!p->next_fetch || !p->fetch_of || !p->aside || !p->takes || !p->words)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for %u planned fetches", fetches);
    (void)tide_use_set_place(&p->missing_in_place, fetches,
                             tide_use_set_place(&p->missing, fetches, p->words));
    return TIDE_OK;
}

void tide_prefetch_destroy(tide_prefetch *prefetch)
{
    free(prefetch->next_fetch);
    free(prefetch->fetch_of);
    free(prefetch->aside);
    free(prefetch->takes);
    free(prefetch->words);
    *prefetch = (tide_prefetch){.count = 0};
}

/* --- what becomes of a fetch --- */

typedef enum fetch_state { FETCH_THERE, FETCH_LATER, FETCH_MISSING } fetch_state;

static const tide_trace_use *use_of(const tide_prefetch *p, uint32_t fetch)
{
    assert(fetch < p->count);
    return &p->step->trace.uses[p->step->plan->fetches[fetch]];
}

/* Of a chunk's next planned fetch. */
static fetch_state look_at(const tide_prefetch *p, uint32_t fetch)
{
    const tide_chunk chunk = use_of(p, fetch)->chunk;
    const tide_place *place = tide_place_of(p->places, chunk);
    const bool is_there = tide_place_has(place, TIDE_TIER_DEVICE);
    if (tide_dues_has(p->dues, chunk) || tide_dues_must_leave(p->dues, chunk))
        return FETCH_LATER; /* its update comes first */
    if (place->marks & TIDE_MARK_REQUESTED && (is_there || place->busy))
        return FETCH_LATER; /* the open op's use comes first */
    if (!is_there)
        return place->busy ? FETCH_THERE : FETCH_MISSING; /* on its way in */
    if (place->busy || place->marks & TIDE_MARK_LEAVING || place->pins[TIDE_TIER_DEVICE])
        return FETCH_LATER; /* on its way out, or written back, or in use */
    const bool used_before = tide_schedule_next(&p->future->schedule, chunk) != p->step->plan->fetches[fetch];
    return used_before ? FETCH_LATER : FETCH_THERE;
}

static bool is_in_place(const tide_prefetch *p, uint32_t fetch)
{
    return p->step->plan->in_place[p->step->plan->fetches[fetch]];
}

/* Is a slot set aside for a chunk's next fetch? Not if it waits, or will, in its own. */
static bool takes_slot(const tide_prefetch *p, uint32_t fetch, fetch_state state)
{
    const tide_place *place = tide_place_of(p->places, use_of(p, fetch)->chunk);
    const bool keeps = place->stale || place->marks & TIDE_MARK_KEPT ||
                       (is_in_place(p, fetch) && tide_place_has(place, TIDE_TIER_DEVICE));
    return state != FETCH_THERE && !keeps;
}

static void set_takes(tide_prefetch *p, uint32_t fetch, bool takes)
{
    if (p->takes[fetch] == takes)
        return;
    p->takes[fetch] = takes;
    for (uint32_t i = fetch + 1; i <= p->count; i += i & -i)
        p->aside[i] += takes ? 1u : UINT32_MAX;
}

/* Slots set aside for fetches [0, end). */
static uint32_t aside_below(const tide_prefetch *p, uint32_t end)
{
    assert(end <= p->count);
    uint32_t slots = 0;
    for (uint32_t i = end; i > 0; i -= i & -i)
        slots += p->aside[i];
    return slots;
}

/* For those that come before the fetch. */
static uint32_t aside_before(const tide_prefetch *p, uint32_t fetch)
{
    const uint32_t from = aside_below(p, p->first), to = aside_below(p, fetch);
    assert(fetch < p->first || to >= from);
    return fetch >= p->first ? to - from : aside_below(p, p->count) - from + to;
}

static void sort(tide_prefetch *p, tide_chunk chunk)
{
    const uint32_t fetch = p->fetch_of[chunk];
    if (fetch == TIDE_USE_NONE)
        return;
    const fetch_state state = look_at(p, fetch);
    const bool stale = tide_place_of(p->places, chunk)->stale;
    set_takes(p, fetch, takes_slot(p, fetch, state));
    tide_use_set_put(&p->missing, fetch, state == FETCH_MISSING && !stale);
    tide_use_set_put(&p->missing_in_place, fetch, state == FETCH_MISSING && stale);
}

/* --- how far they have got --- */

/* Moments pass: the chunk's next fetch is another, or the same in the next step. One that is not its chunk's next waits for a
 * use before it; the plan says whether it will find its slot. */
static void pass(tide_prefetch *p, uint32_t fetch)
{
    const tide_chunk chunk = use_of(p, fetch)->chunk;
    assert(p->next_fetch[fetch] < p->count);
    assert(p->fetch_of[chunk] == fetch);
    set_takes(p, fetch, !is_in_place(p, fetch));
    tide_use_set_erase(&p->missing, fetch);
    tide_use_set_erase(&p->missing_in_place, fetch);
    p->fetch_of[chunk] = p->next_fetch[fetch];
    sort(p, chunk);
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
    tide_use_set_clear(&p->missing);
    tide_use_set_clear(&p->missing_in_place);
    memset(p->fetch_of, 0xff, p->places->chunk_count * sizeof *p->fetch_of);
    for (int round = 0; round < 2; round++) /* the second links the last fetches to the next step's first */
        for (uint32_t fetch = p->count; fetch-- > 0;) {
            p->next_fetch[fetch] = p->fetch_of[use_of(p, fetch)->chunk];
            p->fetch_of[use_of(p, fetch)->chunk] = fetch;
        }
    p->aside[0] = 0;
    for (uint32_t fetch = 0; fetch < p->count; fetch++)
        p->aside[fetch + 1] = p->takes[fetch] = !is_in_place(p, fetch);
    for (uint32_t i = 1; i <= p->count; i++)
        if (i + (i & -i) <= p->count)
            p->aside[i + (i & -i)] += p->aside[i];
    for (uint32_t fetch = 0; fetch < p->count; fetch++)
        if (p->fetch_of[use_of(p, fetch)->chunk] == fetch)
            sort(p, use_of(p, fetch)->chunk);
}

/* Moments before the present one have passed, and all of the steps that are over. */
static void look_again(tide_prefetch *p, const tide_step_plan *step)
{
    tide_chunk chunk;
    if (p->step != step || p->planned != p->future->planned || p->epoch != p->future->epoch ||
        p->future->rounds - p->rounds > 1)
        take_over(p, step);
    const bool over = p->rounds != p->future->rounds;
    while (p->first < p->count && (over || use_of(p, p->first)->moment < p->future->schedule.cursor))
        pass(p, p->first++);
    if (over) {
        p->rounds = p->future->rounds;
        p->first = 0;
        while (p->first < p->count && use_of(p, p->first)->moment < p->future->schedule.cursor)
            pass(p, p->first++);
    }
    assert(p->first <= p->count && p->rounds == p->future->rounds);
    while ((chunk = tide_places_noted(p->places, TIDE_WATCHER_PREFETCH)) != TIDE_CHUNK_NONE)
        sort(p, chunk);
}

/* --- next --- */

/* The first of a set, in order of need. */
static uint32_t first_of(const tide_prefetch *p, const tide_use_set *set)
{
    const uint32_t found = tide_use_set_from(set, p->first);
    return found != TIDE_USE_NONE ? found : tide_use_set_from(set, 0);
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
    uint32_t fetch = first_of(prefetch, &prefetch->missing);
    const uint32_t in_place = first_of(prefetch, &prefetch->missing_in_place);
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
    if (!p->step || p->step != tide_future_plan(p->future) || p->planned != p->future->planned ||
        p->epoch != p->future->epoch || p->rounds != p->future->rounds)
        return true; /* all will be sorted anew */
    for (tide_chunk chunk = 0; chunk < p->places->chunk_count; chunk++) {
        const uint32_t fetch = p->fetch_of[chunk];
        if (fetch == TIDE_USE_NONE || tide_place_of(p->places, chunk)->noted & 1u << TIDE_WATCHER_PREFETCH)
            continue;
        if (p->takes[fetch] != takes_slot(p, fetch, look_at(p, fetch)))
            return false;
    }
    return true;
}
