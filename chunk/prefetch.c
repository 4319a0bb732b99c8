/* See prefetch.h. */
#include "chunk/prefetch.h"

enum { LATER_MAX = 1024 }; /* planned fetches that cannot begin yet, passed in one walk */

void tide_prefetch_init(tide_prefetch *prefetch, tide_places *places, tide_moves *moves,
                        const tide_future *future, const tide_dues *dues)
{
    *prefetch = (tide_prefetch){.places = places, .moves = moves, .future = future, .dues = dues};
}

void tide_prefetch_restart(tide_prefetch *prefetch)
{
    prefetch->plan = NULL;
}

typedef enum walk_result { WALK_THERE, WALK_LATER, WALK_MISSING } walk_result;

/* A planned fetch, `ahead` moments from now. */
static walk_result look_at(const tide_prefetch *p, tide_chunk chunk, uint32_t ahead)
{
    const tide_place *place = tide_place_of(p->places, chunk);
    const bool is_there = place->valid[TIDE_TIER_DEVICE];
    if (tide_dues_has(p->dues, chunk) || tide_dues_must_leave(p->dues, chunk))
        return WALK_LATER; /* its update comes first */
    if (place->marks & TIDE_MARK_REQUESTED && (is_there || place->busy))
        return WALK_LATER; /* the open op's use comes first */
    if (!is_there)
        return place->busy ? WALK_THERE : WALK_MISSING; /* on its way in */
    if (place->busy || place->marks & TIDE_MARK_LEAVING)
        return WALK_LATER; /* on its way out, or written back */
    const bool used_before = tide_schedule_distance(&p->future->schedule, chunk) < ahead;
    return used_before || place->pins[TIDE_TIER_DEVICE] ? WALK_LATER : WALK_THERE;
}

static uint32_t fetch_moment(const tide_step_plan *step, uint32_t fetch)
{
    return step->trace.uses[step->plan->fetches[fetch]].moment;
}

/* Where the walk begins: the first fetch for a moment that has not begun, or, after the last, the next step's first. */
static void find_first(tide_prefetch *p, const tide_step_plan *step)
{
    if (p->plan != step->plan) {
        p->plan = step->plan;
        p->first = p->there = 0;
    }
    while (p->first < step->plan->fetch_count && fetch_moment(step, p->first) < p->future->schedule.cursor) {
        p->first++;
        p->there -= p->there > 0;
    }
    if (p->departures != p->moves->departures)
        p->there = 0;
    p->departures = p->moves->departures;
}

/* Does it wait, or will it, in its own slot? */
static bool keeps_slot(const tide_place *place, bool planned)
{
    return place->stale || place->marks & TIDE_MARK_KEPT || (planned && place->valid[TIDE_TIER_DEVICE]);
}

static bool walk(tide_prefetch *p, const tide_step_plan *step, uint32_t reserved, tide_command *command)
{
    const uint32_t fetches = step->plan->fetch_count, length = step->trace.moment_count;
    const uint32_t free_now = tide_places_free(p->places, TIDE_TIER_DEVICE);
    uint32_t free_slots = free_now > reserved ? free_now - reserved : 0, stale = p->places->stale;
    uint32_t later = 0;
    bool unbroken = true;
    for (uint32_t i = p->there; i < fetches && (free_slots > 0 || stale > 0) && later < LATER_MAX; i++) {
        const uint32_t at = p->first + i, fetch = at < fetches ? at : at - fetches;
        const uint32_t moment = fetch_moment(step, fetch) + (at < fetches ? 0 : length);
        const uint32_t use = step->plan->fetches[fetch];
        const tide_chunk chunk = step->trace.uses[use].chunk;
        const tide_place *place = tide_place_of(p->places, chunk);
        const walk_result result = look_at(p, chunk, moment - p->future->schedule.cursor);
        if (result == WALK_MISSING && (free_slots > 0 || place->stale)) {
            tide_moves_fetch(p->moves, chunk, TIDE_REASON_PREFETCH, command);
            return true;
        }
        unbroken &= result == WALK_THERE;
        p->there += unbroken;
        free_slots -= result != WALK_THERE && free_slots > 0 && !keeps_slot(place, step->plan->in_place[use]);
        stale -= place->stale && stale > 0;
        later += result == WALK_LATER;
    }
    return false;
}

bool tide_prefetch_next(tide_prefetch *prefetch, const tide_turn *turn, tide_command *command)
{
    const tide_step_plan *step = tide_future_plan(prefetch->future);
    if (!step || !prefetch->future->prefetch || turn->in_busy)
        return false;
    find_first(prefetch, step);
    return walk(prefetch, step, turn->reserved, command);
}
