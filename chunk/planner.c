/* The planner: see planner.h for the policy.
 *
 * A step is played out on a small model of the device: per chunk a state (absent, dead, clean, dirty) and the use that
 * comes next. Uses are numbered through a step, so "needed farthest" among the resident chunks of one state is the
 * highest number below the present one (that is in the next step), else the highest of all. With the ends of uses numbered
 * downwards that is "used longest ago". Each state keeps its chunks' numbers in a set with constant-time find (use_set.h).
 *
 * Where a clean chunk C competes with a dirty one D that is needed later, both futures are played on this very model until
 * C is used, and a journal takes them back.
 */
#include "chunk/planner.h"

#include "chunk/array.h"
#include "chunk/use_set.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    STEPS_MAX = 8,             /* played by a rule while a step does not begin as it ends */
    STEPS_MIN = 3,             /* however large they are: the first begins with an empty device */
    PLAYED_USES = 1 << 21,     /* in one build, beyond which neither more steps nor more rules are played */
    LOOK_AHEAD_USES = 4096,    /* at most, for one decision */
    LOOK_AHEAD_STEP = 1 << 19, /* uses played out for decisions, in one step */
    FITTED_MOMENTS = 1 << 18,  /* looked at for room, in one plan */
};

/* Which of a clean chunk and a dirty one that is farther goes (planner.h, step 3). */
typedef enum rule { CLEAN_AT_HALF = 0, CLEAN_ALWAYS, LOOK_AHEAD, LEAST_RECENT, RULES } rule;

/* Without looking ahead the clean one goes if it is at least so many quarters as far. */
enum { QUARTERS = 4 };
static const uint32_t clean_quarters[RULES] = {2, 0, 3, QUARTERS};

/* In sets are those that may leave; while it is used a chunk is held. */
typedef enum chunk_state {
    ABSENT = 0,
    DEAD,  /* written whole at its next use */
    STALE, /* changed on the host meanwhile */
    CLEAN,
    DIRTY,
    SETS, /* [1, SETS) have one */
    HELD_DEAD = SETS,
    HELD_STALE, /* nobody: it is clean as soon as it is held */
    HELD_CLEAN,
    HELD_DIRTY,
} chunk_state;

enum { HELD = HELD_DEAD - DEAD };

typedef struct journal_entry {
    tide_chunk chunk;
    uint32_t next;
    uint8_t state;
} journal_entry;

struct tide_planner {
    tide_arrays arrays;
    uint32_t chunk_capacity, use_capacity;
    uint64_t *set_memory;
    tide_use_set sets[SETS]; /* [ABSENT] is not used */
    uint8_t *states, *first_states;
    uint32_t *next;          /* per chunk: its next use */
    uint32_t *following;     /* per use: its chunk's next one, in this step or the next */
    uint32_t *rank, *ranked; /* per next use: its place in the rule's order; per place: the use */
    uint32_t *moment_first;
    uint32_t *crowd; /* per moment: chunks on the device, if the candidate is followed */
    uint32_t *ending,
        *ending_first;         /* uses by the moment in which they end; per moment where its ones begin */
    bool *fetched, *refreshed; /* per use, in the step played out last: into a slot, or in place */
    journal_entry *journal;
    uint32_t journal_capacity, journal_length;
    bool journaling;

    const tide_use_trace *trace;
    uint32_t slots, resident;
    uint32_t absent; /* chunks that will have to be copied in again */
    uint64_t copies_in, copies_out;
    uint32_t look_ahead_left, fitted;
    uint64_t played_uses; /* in this build */
    rule rule;
    bool contested; /* the rule has been asked, so another one may do better */
    tide_plan plan; /* the cheapest so far */
    tide_plan candidate;
};

/* --- the model of the device --- */

static bool comes_with_a_copy(const tide_planner *p, uint32_t use)
{
    return !(p->trace->uses[use].flags & TIDE_TRACE_CREATES);
}

static void put(tide_planner *p, tide_chunk chunk, chunk_state state, uint32_t next)
{
    const chunk_state was = (chunk_state)p->states[chunk];
    if (p->journaling)
        p->journal[p->journal_length++] = (journal_entry){chunk, p->next[chunk], (uint8_t)was};
    if (was != ABSENT && was < SETS)
        tide_use_set_erase(&p->sets[was], p->rank[p->next[chunk]]);
    if (state != ABSENT && state < SETS)
        tide_use_set_insert(&p->sets[state], p->rank[next]);
    p->resident += state != ABSENT;
    p->resident -= was != ABSENT;
    p->absent += (state == ABSENT || state == STALE) && comes_with_a_copy(p, next);
    p->absent -= (was == ABSENT || was == STALE) && comes_with_a_copy(p, p->next[chunk]);
    p->states[chunk] = (uint8_t)state;
    p->next[chunk] = next;
}

static void leave(tide_planner *p, tide_chunk chunk)
{
    p->copies_out += p->states[chunk] == DIRTY;
    put(p, chunk, ABSENT, p->next[chunk]);
}

/* What a chunk becomes by a use. */
static chunk_state state_after(chunk_state before, uint32_t flags)
{
    if (flags & TIDE_TRACE_ENDS)
        return DEAD;
    if (flags & (TIDE_TRACE_MODIFIES | TIDE_TRACE_CREATES))
        return DIRTY;
    assert(before == HELD_CLEAN || before == HELD_DIRTY);
    return before - HELD;
}

static void end_use(tide_planner *p, uint32_t use)
{
    const tide_trace_use *u = &p->trace->uses[use];
    chunk_state after = state_after((chunk_state)p->states[u->chunk], u->flags);
    if (u->flags & TIDE_TRACE_LEAVES) {
        p->copies_out += after == DIRTY;
        after = STALE;
    }
    put(p, u->chunk, after, p->following[use]);
}

/* --- victims --- */

/* At a moment ranks go up in distance from here round to here. */
static uint32_t first_rank(const tide_planner *p, uint32_t moment)
{
    return p->rule == LEAST_RECENT ? p->trace->use_count - p->ending_first[moment] : p->moment_first[moment];
}

/* Rank of the farthest chunk in a state, TIDE_USE_NONE if there is none. */
static uint32_t farthest(const tide_planner *p, chunk_state state, uint32_t first)
{
    const uint32_t rank = tide_use_set_below(&p->sets[state], first);
    return rank != TIDE_USE_NONE ? rank : tide_use_set_below(&p->sets[state], p->trace->use_count);
}

static uint32_t distance(const tide_planner *p, uint32_t from, uint32_t use)
{
    return use >= from ? use - from : use + p->trace->use_count - from;
}

static bool look_ahead(tide_planner *p, uint32_t moment, tide_chunk clean, tide_chunk dirty,
                       bool *dirty_goes);

/* The rank of the chunk that leaves. `deciding`: look ahead where clean and dirty compete (then ranks are uses). */
static uint32_t victim(tide_planner *p, uint32_t moment, bool deciding)
{
    const uint32_t first = first_rank(p, moment);
    const uint32_t dead = farthest(p, DEAD, first), stale = farthest(p, STALE, first);
    if (dead != TIDE_USE_NONE &&
        (stale == TIDE_USE_NONE || distance(p, first, dead) > distance(p, first, stale)))
        return dead;
    if (stale != TIDE_USE_NONE)
        return stale;
    const uint32_t clean = farthest(p, CLEAN, first), dirty = farthest(p, DIRTY, first);
    assert(clean != TIDE_USE_NONE || dirty != TIDE_USE_NONE);
    if (clean == TIDE_USE_NONE || dirty == TIDE_USE_NONE)
        return clean == TIDE_USE_NONE ? dirty : clean;
    const uint64_t clean_far = distance(p, first, clean), dirty_far = distance(p, first, dirty);
    if (clean_far >= dirty_far)
        return clean;
    p->contested = true;
    bool dirty_goes;
    if (deciding && p->rule == LOOK_AHEAD &&
        look_ahead(p, moment, p->trace->uses[clean].chunk, p->trace->uses[dirty].chunk, &dirty_goes))
        return dirty_goes ? dirty : clean;
    return clean_far * QUARTERS >= dirty_far * clean_quarters[p->rule] ? clean : dirty;
}

/* --- playing --- */

/* Hold what is there; how many are not? */
static uint32_t hold_present(tide_planner *p, uint32_t moment, bool deciding)
{
    uint32_t missing = 0;
    for (uint32_t use = p->moment_first[moment]; use < p->moment_first[moment + 1]; use++) {
        const tide_chunk chunk = p->trace->uses[use].chunk;
        const chunk_state state = (chunk_state)p->states[chunk];
        missing += state == ABSENT;
        if (deciding)
            p->refreshed[use] = state == STALE;
        p->copies_in += state == STALE;
        if (state != ABSENT && state < SETS)
            put(p, chunk, state == STALE ? HELD_CLEAN : state + HELD, use);
    }
    return missing;
}

static void play_moment(tide_planner *p, uint32_t moment, bool deciding)
{
    const uint32_t missing = hold_present(p, moment, deciding);
    while (p->resident + missing > p->slots)
        leave(p, p->trace->uses[p->ranked[victim(p, moment, deciding)]].chunk);
    for (uint32_t use = p->moment_first[moment]; use < p->moment_first[moment + 1]; use++) {
        const tide_trace_use *u = &p->trace->uses[use];
        const bool fetch = p->states[u->chunk] == ABSENT;
        if (deciding)
            p->fetched[use] = fetch;
        if (!fetch)
            continue;
        p->copies_in += !(u->flags & TIDE_TRACE_CREATES);
        put(p, u->chunk, HELD_CLEAN, use);
    }
    for (uint32_t i = p->ending_first[moment]; i < p->ending_first[moment + 1]; i++)
        end_use(p, p->ending[i]);
}

static uint32_t moment_after(const tide_planner *p, uint32_t moment)
{
    return moment + 1 < p->trace->moment_count ? moment + 1 : 0;
}

typedef struct future {
    uint64_t copies; /* until the moment looked at has passed */
    uint32_t absent; /* chunks that have to come back then */
} future;

static future play_without(tide_planner *p, tide_chunk chunk, uint32_t moment, uint32_t until)
{
    const uint64_t in = p->copies_in, out = p->copies_out;
    p->journaling = true;
    p->journal_length = 0;
    leave(p, chunk);
    bool seen = false;
    for (uint32_t m = moment; !seen; m = moment_after(p, m)) {
        seen = until >= p->moment_first[m] && until < p->moment_first[m + 1];
        play_moment(p, m, false);
    }
    const future result = {p->copies_in - in + p->copies_out - out, p->absent};
    p->journaling = false;
    while (p->journal_length > 0) {
        const journal_entry *entry = &p->journal[--p->journal_length];
        put(p, entry->chunk, (chunk_state)entry->state, entry->next);
    }
    p->copies_in = in;
    p->copies_out = out;
    return result;
}

/* Play on without `clean`, and without `dirty`, until `clean` is used next. False if that is too far to see. */
static bool look_ahead(tide_planner *p, uint32_t moment, tide_chunk clean, tide_chunk dirty, bool *dirty_goes)
{
    const uint32_t until = p->next[clean];
    const uint32_t uses = 2 * distance(p, p->moment_first[moment], until);
    if (uses > LOOK_AHEAD_USES || uses > p->look_ahead_left)
        return false;
    p->look_ahead_left -= uses;
    const future without_clean = play_without(p, clean, moment, until),
                 without_dirty = play_without(p, dirty, moment, until);
    *dirty_goes = without_dirty.copies + without_dirty.absent < without_clean.copies + without_clean.absent;
    return true;
}

static void play_step(tide_planner *p)
{
    p->copies_in = p->copies_out = 0;
    for (uint32_t moment = 0; moment < p->trace->moment_count; moment++)
        play_moment(p, moment, true);
}

/* --- building --- */

/* Where each moment's uses begin. */
static void index_moments(tide_planner *p)
{
    const tide_use_trace *trace = p->trace;
    uint32_t moment = 0;
    for (uint32_t use = 0; use < trace->use_count; use++) {
        assert(trace->uses[use].moment < trace->moment_count && trace->uses[use].chunk < trace->chunk_count);
        for (; moment <= trace->uses[use].moment; moment++)
            p->moment_first[moment] = use;
    }
    for (; moment <= trace->moment_count; moment++)
        p->moment_first[moment] = trace->use_count;
}

/* Uses by the moment in which they end: a counting sort. ending_first[m] serves as the place to fill, so it ends as the
 * next moment's beginning and is shifted back. */
static void index_endings(tide_planner *p)
{
    const tide_use_trace *trace = p->trace;
    memset(p->ending_first, 0, (trace->moment_count + 1u) * sizeof *p->ending_first);
    for (uint32_t use = 0; use < trace->use_count; use++) {
        assert(trace->uses[use].moment + trace->uses[use].held_moments < trace->moment_count);
        p->ending_first[trace->uses[use].moment + trace->uses[use].held_moments + 1]++;
    }
    for (uint32_t moment = 0; moment < trace->moment_count; moment++)
        p->ending_first[moment + 1] += p->ending_first[moment];
    for (uint32_t use = 0; use < trace->use_count; use++)
        p->ending[p->ending_first[trace->uses[use].moment + trace->uses[use].held_moments]++] = use;
    for (uint32_t moment = trace->moment_count; moment > 0; moment--)
        p->ending_first[moment] = p->ending_first[moment - 1];
    p->ending_first[0] = 0;
}

/* Per use its chunk's next one. Uses of a chunk are linked from the back. */
static void link_uses(tide_planner *p)
{
    const tide_use_trace *trace = p->trace;
    for (uint32_t chunk = 0; chunk < trace->chunk_count; chunk++)
        p->next[chunk] = TIDE_USE_NONE;
    for (int pass = 0; pass < 2; pass++) { /* the second pass links the last uses to the next step's first */
        for (uint32_t use = trace->use_count; use-- > 0;) {
            p->following[use] = p->next[trace->uses[use].chunk];
            p->next[trace->uses[use].chunk] = use;
        }
    }
}

/* By the next use, which is farther the higher it is; or by the last one's end, which is farther the lower it is. */
static void rank_uses(tide_planner *p)
{
    const uint32_t count = p->trace->use_count;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t use = p->rule == LEAST_RECENT ? p->following[p->ending[i]] : i;
        p->rank[use] = p->rule == LEAST_RECENT ? count - 1 - i : i;
        p->ranked[p->rank[use]] = use;
    }
}

static void clear_device(tide_planner *p)
{
    memset(p->set_memory, 0, (SETS - 1) * tide_use_set_words(p->use_capacity) * sizeof *p->set_memory);
    memset(p->states, ABSENT, p->chunk_capacity);
    p->resident = p->absent = 0;
    for (tide_chunk chunk = 0; chunk < p->trace->chunk_count; chunk++)
        p->absent += p->next[chunk] != TIDE_USE_NONE && comes_with_a_copy(p, p->next[chunk]);
    p->journaling = false;
}

/* If the last step did not begin as it ended: what was there only at its begin has to be fetched at its first use; what is
 * there only at its end leaves, since its first use was a fetch. Then the step may follow itself. */
static void mend_wrap(tide_planner *p)
{
    for (tide_chunk chunk = 0; chunk < p->trace->chunk_count; chunk++)
        if (p->states[chunk] == ABSENT && p->first_states[chunk] != ABSENT)
            p->fetched[p->next[chunk]] = true;
}

/* Let the chunk stay after a use if that takes no slot from another. */
static void keep_if_it_fits(tide_planner *p, uint32_t use)
{
    const tide_trace_use *u = &p->trace->uses[use];
    const uint32_t next = p->following[use], until = p->trace->uses[next].moment,
                   from = moment_after(p, u->moment + u->held_moments);
    for (uint32_t moment = from; moment != until; moment = moment_after(p, moment), p->fitted++)
        if (p->crowd[moment] >= p->slots)
            return;
    for (uint32_t moment = from; moment != until; moment = moment_after(p, moment))
        p->crowd[moment]++;
    p->fetched[next] = false;
}

/* Chunks on the device in each moment, if the candidate is followed. */
static void count_crowds(tide_planner *p)
{
    memset(p->crowd, 0, (p->trace->moment_count + 1u) * sizeof *p->crowd);
    for (uint32_t use = 0; use < p->trace->use_count; use++) {
        const tide_trace_use *u = &p->trace->uses[use];
        const uint32_t next = p->following[use];
        const bool stays = !p->fetched[next];
        p->crowd[u->moment]++;
        p->crowd[stays ? p->trace->uses[next].moment : u->moment + u->held_moments + 1]--;
        p->crowd[0] += stays && next <= use;
    }
    for (uint32_t moment = 1; moment < p->trace->moment_count; moment++)
        p->crowd[moment] += p->crowd[moment - 1];
}

/* A chunk that leaves does so after its last use, though it was played to stay longer, and a step that did not begin as it
 * ended has been mended: some others have room, and stay. Not those without content to save: slots idle let fetches begin
 * early. */
static void keep_what_fits(tide_planner *p)
{
    count_crowds(p);
    p->fitted = 0;
    for (uint32_t use = p->trace->use_count; use-- > 0 && p->fitted < FITTED_MOMENTS;)
        if (p->fetched[p->following[use]] &&
            !(p->trace->uses[use].flags & (TIDE_TRACE_LEAVES | TIDE_TRACE_ENDS)))
            keep_if_it_fits(p, use);
}

/* Copies of the plan, followed for ever: counted in the second of two steps. Ends by using up the states. */
static void count_copies(tide_planner *p)
{
    const tide_plan *plan = &p->candidate;
    uint8_t *dirty = p->states;
    memset(dirty, 0, p->trace->chunk_count);
    for (int pass = 0; pass < 2; pass++) {
        p->copies_in = p->copies_out = 0;
        for (uint32_t use = 0; use < plan->use_count; use++) {
            const tide_trace_use *u = &p->trace->uses[use];
            const bool comes = p->fetched[use] || p->refreshed[use];
            p->copies_in += comes && !(u->flags & TIDE_TRACE_CREATES);
            dirty[u->chunk] &= !comes;
            dirty[u->chunk] |= (u->flags & (TIDE_TRACE_MODIFIES | TIDE_TRACE_CREATES)) != 0;
            dirty[u->chunk] &= !(u->flags & TIDE_TRACE_ENDS);
            if (!plan->leaves[use] && !(u->flags & TIDE_TRACE_LEAVES))
                continue;
            p->copies_out += dirty[u->chunk];
            dirty[u->chunk] = 0;
        }
    }
}

static void write_candidate(tide_planner *p)
{
    tide_plan *plan = &p->candidate;
    plan->use_count = p->trace->use_count;
    plan->fetch_count = 0;
    plan->free_slots = p->slots;
    for (tide_chunk chunk = 0; chunk < p->trace->chunk_count; chunk++) /* that stay from step to step */
        plan->free_slots -= p->next[chunk] != TIDE_USE_NONE && !p->fetched[p->next[chunk]];
    for (uint32_t use = 0; use < plan->use_count; use++) {
        plan->leaves[use] = p->fetched[p->following[use]];
        plan->in_place[use] = p->refreshed[use] && !p->fetched[use];
        if (p->fetched[use] || p->refreshed[use])
            plan->fetches[plan->fetch_count++] = use;
    }
    count_copies(p);
    plan->copies_in = p->copies_in;
    plan->copies_out = p->copies_out;
}

static bool can_play(const tide_planner *p, uint32_t steps)
{
    return p->played_uses + (uint64_t)steps * p->trace->use_count <= PLAYED_USES;
}

/* The first step begins with an empty device: nothing is looked ahead in it. Each other one has its own share of looking
 * ahead, so that equal steps are decided equally. */
static bool play_to_steady_state(tide_planner *p)
{
    clear_device(p);
    for (int step = 0; step < STEPS_MIN || (step < STEPS_MAX && can_play(p, 1)); step++) {
        p->played_uses += p->trace->use_count;
        p->look_ahead_left = step == 0 ? 0 : LOOK_AHEAD_STEP;
        memcpy(p->first_states, p->states, p->trace->chunk_count);
        play_step(p);
        if (memcmp(p->first_states, p->states, p->trace->chunk_count) == 0)
            return true;
    }
    return false;
}

static void play_rule(tide_planner *p)
{
    p->contested = false;
    rank_uses(p);
    p->candidate.steady = play_to_steady_state(p);
    mend_wrap(p);
    keep_what_fits(p);
    write_candidate(p);
    if (p->rule > 0 &&
        p->candidate.copies_in + p->candidate.copies_out >= p->plan.copies_in + p->plan.copies_out)
        return;
    const tide_plan held = p->plan;
    p->plan = p->candidate;
    p->candidate = held;
}

const tide_plan *tide_planner_build(tide_planner *planner, const tide_use_trace *trace, uint32_t slots)
{
    assert(trace->chunk_count <= planner->chunk_capacity && trace->use_count <= planner->use_capacity);
    assert(trace->moment_count <= planner->use_capacity);
    planner->trace = trace;
    planner->slots = slots;
    planner->played_uses = 0;
    index_moments(planner);
    index_endings(planner);
    link_uses(planner);
    for (planner->rule = 0; planner->rule < RULES; planner->rule++)
        if (planner->rule == 0 ||
            ((planner->contested || planner->rule == LEAST_RECENT) && can_play(planner, STEPS_MIN)))
            play_rule(planner);
    return &planner->plan;
}

/* Fetches and releases pair first to first, after the slots that are free when the step begins. */
uint32_t tide_planner_tight_fetches(const tide_planner *planner, uint32_t spare)
{
    const tide_plan *plan = &planner->plan;
    uint32_t tight = 0, fetch = 0, with_slot = 0;
    uint64_t available = (uint64_t)plan->free_slots + spare, released_last = 0;
    for (uint32_t moment = 0; moment < planner->trace->moment_count; moment++) {
        /* `available` holds what was released up to two moments ago. */
        for (; fetch < plan->fetch_count && planner->trace->uses[plan->fetches[fetch]].moment == moment;
             fetch++) {
            const bool takes_slot = !plan->in_place[plan->fetches[fetch]];
            tight += takes_slot && with_slot >= available;
            with_slot += takes_slot;
        }
        available += released_last;
        released_last = 0;
        for (uint32_t i = planner->ending_first[moment]; i < planner->ending_first[moment + 1]; i++)
            released_last += plan->leaves[planner->ending[i]];
    }
    return tight;
}

/* --- memory --- */

static void allocate_plan(tide_planner *p, tide_plan *plan)
{
    const size_t uses = p->use_capacity + 1u;
    plan->leaves = tide_arrays_add(&p->arrays, uses, sizeof *plan->leaves);
    plan->fetches = tide_arrays_add(&p->arrays, uses, sizeof *plan->fetches);
    plan->in_place = tide_arrays_add(&p->arrays, uses, sizeof *plan->in_place);
}

static void allocate(tide_planner *p)
{
    const size_t chunks = p->chunk_capacity + 1u, uses = p->use_capacity + 1u;
    p->journal_capacity = 4u * (p->use_capacity + LOOK_AHEAD_USES);
    p->set_memory =
        tide_arrays_add(&p->arrays, (SETS - 1) * tide_use_set_words(p->use_capacity), sizeof *p->set_memory);
    p->states = tide_arrays_add(&p->arrays, chunks, sizeof *p->states);
    p->first_states = tide_arrays_add(&p->arrays, chunks, sizeof *p->first_states);
    p->next = tide_arrays_add(&p->arrays, chunks, sizeof *p->next);
    p->following = tide_arrays_add(&p->arrays, uses, sizeof *p->following);
    p->rank = tide_arrays_add(&p->arrays, uses, sizeof *p->rank);
    p->ranked = tide_arrays_add(&p->arrays, uses, sizeof *p->ranked);
    p->moment_first = tide_arrays_add(&p->arrays, uses + 1, sizeof *p->moment_first);
    p->crowd = tide_arrays_add(&p->arrays, uses + 1, sizeof *p->crowd);
    p->ending = tide_arrays_add(&p->arrays, uses, sizeof *p->ending);
    p->ending_first = tide_arrays_add(&p->arrays, uses + 1, sizeof *p->ending_first);
    p->fetched = tide_arrays_add(&p->arrays, uses, sizeof *p->fetched);
    p->refreshed = tide_arrays_add(&p->arrays, uses, sizeof *p->refreshed);
    p->journal = tide_arrays_add(&p->arrays, p->journal_capacity, sizeof *p->journal);
    allocate_plan(p, &p->plan);
    allocate_plan(p, &p->candidate);
}

tide_status tide_planner_create(uint32_t chunk_count, uint32_t use_count, tide_planner **planner)
{
    tide_planner *p = calloc(1, sizeof *p);
    if (!p)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "planner: no memory for %zu bytes", sizeof *p);
    p->chunk_capacity = chunk_count;
    p->use_capacity = use_count;
    allocate(p);
    if (p->arrays.lacks) {
        tide_planner_destroy(p);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "planner: no memory for %u uses of %u chunks", use_count,
                         chunk_count);
    }
    uint64_t *memory = p->set_memory;
    for (int state = DEAD; state < SETS; state++)
        memory = tide_use_set_place(&p->sets[state], use_count, memory);
    *planner = p;
    return TIDE_OK;
}

void tide_planner_destroy(tide_planner *planner)
{
    if (!planner)
        return;
    tide_arrays_free(&planner->arrays);
    free(planner);
}
