/* See prefetch.h. */
#include "chunk/prefetch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Those that a free slot is set aside for; of these, those that are missing; those missing that have their own slot. */
enum { ASIDE = 0, MISSING, MISSING_IN_PLACE, SETS };

tide_status tide_prefetch_create(tide_prefetch *prefetch, tide_places *places, tide_moves *moves,
                                 const tide_future *future, const tide_dues *dues)
{
    const uint32_t fetches = future->schedule.use_capacity;
    *prefetch = (tide_prefetch){.places = places, .moves = moves, .future = future, .dues = dues};
    prefetch->next_fetch = malloc(fetches * sizeof *prefetch->next_fetch);
    prefetch->fetch_of = malloc(places->chunk_count * sizeof *prefetch->fetch_of);
    prefetch->words = tide_use_sets_create(prefetch->sets, SETS, fetches);
    if (!prefetch->next_fetch || !prefetch->fetch_of || !prefetch->words)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for %u planned fetches", fetches);
    return TIDE_OK;
}

void tide_prefetch_destroy(tide_prefetch *prefetch)
{
    free(prefetch->next_fetch);
    free(prefetch->fetch_of);
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

static void sort(tide_prefetch *p, tide_chunk chunk)
{
    const uint32_t fetch = p->fetch_of[chunk];
    if (fetch == TIDE_USE_NONE)
        return;
    const fetch_state state = look_at(p, fetch);
    const bool missing = state == FETCH_MISSING, stale = tide_place_of(p->places, chunk)->stale;
    tide_use_set_put(&p->sets[ASIDE], fetch, takes_slot(p, fetch, state));
    tide_use_set_put(&p->sets[MISSING], fetch, missing && !stale);
    tide_use_set_put(&p->sets[MISSING_IN_PLACE], fetch, missing && stale);
}

/* --- how far they have got --- */

/* Moments pass: the chunk's next fetch is another, or the same in the next step. One that is not its chunk's next waits for a
 * use before it; the plan says whether it will find its slot. */
static void pass(tide_prefetch *p, uint32_t fetch)
{
    const tide_chunk chunk = use_of(p, fetch)->chunk;
    assert(p->next_fetch[fetch] < p->count);
    assert(p->fetch_of[chunk] == fetch);
    tide_use_set_put(&p->sets[ASIDE], fetch, !is_in_place(p, fetch));
    tide_use_set_erase(&p->sets[MISSING], fetch);
    tide_use_set_erase(&p->sets[MISSING_IN_PLACE], fetch);
    p->fetch_of[chunk] = p->next_fetch[fetch];
    sort(p, chunk);
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
        tide_use_set_clear(&p->sets[set]);
    memset(p->fetch_of, 0xff, p->places->chunk_count * sizeof *p->fetch_of);
    for (int round = 0; round < 2; round++) /* the second links the last fetches to the next step's first */
        for (uint32_t fetch = p->count; fetch-- > 0;) {
            p->next_fetch[fetch] = p->fetch_of[use_of(p, fetch)->chunk];
            p->fetch_of[use_of(p, fetch)->chunk] = fetch;
        }
    for (uint32_t fetch = 0; fetch < p->count; fetch++)
        tide_use_set_put(&p->sets[ASIDE], fetch, !is_in_place(p, fetch));
    for (uint32_t fetch = 0; fetch < p->count; fetch++)
        if (p->fetch_of[use_of(p, fetch)->chunk] == fetch)
            sort(p, use_of(p, fetch)->chunk);
}

/* Moments before the present one have passed, and all of the steps that are over. */
static void look_again(tide_prefetch *p, const tide_step_plan *step)
{
    tide_chunk chunk;
    if (!is_taken_over(p, step))
        take_over(p, step);
    while (p->rounds < p->future->rounds ||
           (p->first < p->count && use_of(p, p->first)->moment < p->future->schedule.cursor)) {
        if (p->first < p->count) {
            pass(p, p->first++);
            continue;
        }
        p->first = 0;
        p->rounds++;
    }
    while ((chunk = tide_places_noted(p->places, TIDE_WATCHER_PREFETCH)) != TIDE_CHUNK_NONE)
        sort(p, chunk);
}

/* --- next --- */

/* The first of a set in order of need, if `from` is needed first. */
static uint32_t first_of(const tide_prefetch *p, int set, uint32_t from)
{
    const uint32_t found = tide_use_set_from(&p->sets[set], from);
    return found != TIDE_USE_NONE ? found : tide_use_set_from(&p->sets[set], 0);
}

static uint32_t order_of(const tide_prefetch *p, uint32_t fetch)
{
    if (fetch == TIDE_USE_NONE)
        return TIDE_USE_NONE;
    return fetch >= p->first ? fetch - p->first : fetch + p->count - p->first;
}

/* Of so many free slots, is one left for it by those that are needed sooner? */
static bool finds_slot(const tide_prefetch *p, uint32_t fetch, uint32_t free)
{
    assert(first_of(p, ASIDE, fetch) == fetch);
    for (uint32_t from = p->first; free > 0; free--) {
        const uint32_t taker = first_of(p, ASIDE, from);
        if (taker == fetch)
            return true;
        from = taker + 1;
    }
    return false;
}

bool tide_prefetch_next(tide_prefetch *prefetch, const tide_turn *turn, tide_command *command)
{
    const tide_step_plan *step = tide_future_plan(prefetch->future);
    if (!step || step->plan->fetch_count == 0 || !prefetch->future->prefetch || turn->in_busy)
        return false;
    look_again(prefetch, step);
    const uint32_t free_now = tide_places_free(prefetch->places, TIDE_TIER_DEVICE),
                   free = free_now > turn->reserved ? free_now - turn->reserved : 0;
    uint32_t fetch = first_of(prefetch, MISSING, prefetch->first);
    const uint32_t in_place = first_of(prefetch, MISSING_IN_PLACE, prefetch->first);
    if (fetch != TIDE_USE_NONE && !finds_slot(prefetch, fetch, free))
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
        return true; /* all will be sorted anew */
    for (tide_chunk chunk = 0; chunk < p->places->chunk_count; chunk++) {
        const uint32_t fetch = p->fetch_of[chunk];
        if (fetch == TIDE_USE_NONE || tide_place_of(p->places, chunk)->noted & 1u << TIDE_WATCHER_PREFETCH)
            continue;
        if ((first_of(p, ASIDE, fetch) == fetch) != takes_slot(p, fetch, look_at(p, fetch)))
            return false;
    }
    return true;
}
