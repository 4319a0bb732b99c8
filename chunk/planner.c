/* Makes plans. planner.h describes the policy, play.h the model on which rules are simulated (played). */
#include "chunk/planner.h"

#include "chunk/play.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* most steps to play per rule until one ends as it began */
    STEPS_MAX = 8,
    /* steps that are played even of a large trace, since the first begins with an empty device */
    STEPS_MIN = 3,
    /* after so many uses played in one build, no further step or rule is played */
    PLAYED_USES = 1 << 21,
    LOOK_AHEAD_STEP = 1 << 19, /* most uses that one step plays to look ahead */
    FITTED_STEPS = 1 << 18,    /* most schedule steps that keep_if_it_fits looks at in one plan */
};

struct tide_planner {
    tide_arrays arrays;
    tide_play play;
    uint8_t *first_states; /* the chunks' states at the begin of the last step played */
    uint32_t *crowd;       /* for each schedule step: chunks on the device under the candidate plan */
    uint32_t fitted;
    uint64_t played_uses; /* uses played so far in this build */
    tide_plan plan;       /* the plan with the fewest copies so far */
    tide_plan candidate;
};

/* Make the last step repeatable if it did not end as it began. A chunk that was on the device at the begin
 * but not at the end gets a fetch for its first use. A chunk that is there at the end but was not at the
 * begin leaves after its last use, since its first use has a fetch. */
static void mend_wrap(tide_planner *p)
{
    for (tide_chunk chunk = 0; chunk < p->play.trace->chunk_count; chunk++)
        if (p->play.states[chunk] == TIDE_PLAY_ABSENT && p->first_states[chunk] != TIDE_PLAY_ABSENT)
            p->play.fetched[p->play.next[chunk]] = true;
}

/* Let the use's chunk stay on the device until its next use if every schedule step until then has a free
 * slot. */
static void keep_if_it_fits(tide_planner *p, uint32_t use)
{
    const tide_trace_use *u = &p->play.trace->uses[use];
    const uint32_t next = p->play.following[use], until = p->play.trace->uses[next].schedule_step,
                   from = tide_play_schedule_step_after(&p->play, u->schedule_step + u->held_schedule_steps);
    assert(p->play.fetched[next] && next < p->play.trace->use_count);
    for (uint32_t schedule_step = from; schedule_step != until;
         schedule_step = tide_play_schedule_step_after(&p->play, schedule_step), p->fitted++)
        if (p->crowd[schedule_step] >= p->play.slots)
            return;
    for (uint32_t schedule_step = from; schedule_step != until;
         schedule_step = tide_play_schedule_step_after(&p->play, schedule_step))
        p->crowd[schedule_step]++;
    p->play.fetched[next] = false;
}

/* Set `crowd` for the candidate plan. */
static void count_crowds(tide_planner *p)
{
    memset(p->crowd, 0, (p->play.trace->schedule_step_count + 1u) * sizeof *p->crowd);
    for (uint32_t use = 0; use < p->play.trace->use_count; use++) {
        const tide_trace_use *u = &p->play.trace->uses[use];
        const uint32_t next = p->play.following[use];
        const bool stays = !p->play.fetched[next];
        p->crowd[u->schedule_step]++;
        p->crowd[stays ? p->play.trace->uses[next].schedule_step
                       : u->schedule_step + u->held_schedule_steps + 1]--;
        p->crowd[0] += stays && next <= use;
    }
    for (uint32_t schedule_step = 1; schedule_step < p->play.trace->schedule_step_count; schedule_step++)
        p->crowd[schedule_step] += p->crowd[schedule_step - 1];
}

/* Let more chunks stay than the play did, if slots are free. There are such slots since in a plan chunks
 * leave right after a use, earlier than in the play, and since mend_wrap may have freed some. Chunks without
 * content are not kept, so that fetches can begin early in free slots. */
static void keep_what_fits(tide_planner *p)
{
    count_crowds(p);
    p->fitted = 0;
    for (uint32_t use = p->play.trace->use_count; use-- > 0 && p->fitted < FITTED_STEPS;)
        if (p->play.fetched[p->play.following[use]] &&
            !(p->play.trace->uses[use].flags & (TIDE_TRACE_LEAVES | TIDE_TRACE_ENDS)))
            keep_if_it_fits(p, use);
}

/* Count the copies of a step in which the candidate is followed: of the second of two steps, as all later
 * ones are equal to it. Overwrites the play's states. */
static void count_copies(tide_planner *p)
{
    tide_plan *plan = &p->candidate;
    uint8_t *dirty = p->play.states;
    memset(dirty, 0, p->play.trace->chunk_count);
    for (int pass = 0; pass < 2; pass++) {
        plan->copies_in = plan->copies_out = 0;
        for (uint32_t use = 0; use < plan->use_count; use++) {
            const tide_trace_use *u = &p->play.trace->uses[use];
            const bool comes = p->play.fetched[use] || p->play.refreshed[use];
            plan->copies_in += comes && !(u->flags & TIDE_TRACE_CREATES);
            dirty[u->chunk] &= !comes;
            dirty[u->chunk] |= (u->flags & (TIDE_TRACE_MODIFIES | TIDE_TRACE_CREATES)) != 0;
            dirty[u->chunk] &= !(u->flags & TIDE_TRACE_ENDS);
            if (!plan->leaves[use] && !(u->flags & TIDE_TRACE_LEAVES))
                continue;
            plan->copies_out += dirty[u->chunk];
            dirty[u->chunk] = 0;
        }
    }
}

static void write_candidate(tide_planner *p)
{
    const tide_play *play = &p->play;
    tide_plan *plan = &p->candidate;
    plan->use_count = play->trace->use_count;
    plan->fetch_count = 0;
    plan->free_slots = play->slots;
    /* subtract the chunks that stay from one step to the next */
    for (tide_chunk chunk = 0; chunk < play->trace->chunk_count; chunk++)
        plan->free_slots -= play->next[chunk] != TIDE_USE_NONE && !play->fetched[play->next[chunk]];
    for (uint32_t use = 0; use < plan->use_count; use++) {
        plan->leaves[use] = play->fetched[play->following[use]];
        plan->in_place[use] = play->refreshed[use] && !play->fetched[use];
        if (play->fetched[use] || play->refreshed[use])
            plan->fetches[plan->fetch_count++] = use;
    }
    assert(plan->fetch_count <= plan->use_count && plan->free_slots <= play->slots);
    count_copies(p);
}

static bool can_play(const tide_planner *p, uint32_t steps)
{
    return p->played_uses + (uint64_t)steps * p->play.trace->use_count <= PLAYED_USES;
}

/* Play steps until one ends as it began (true) or a limit is reached (false). The first step begins with an
 * empty device and is played without looking ahead. Each further step may look ahead over the same number of
 * uses, so that equal steps get equal decisions. */
static bool play_to_steady_state(tide_planner *p)
{
    const uint32_t chunks = p->play.trace->chunk_count;
    for (int step = 0; step < STEPS_MIN || (step < STEPS_MAX && can_play(p, 1)); step++) {
        p->played_uses += p->play.trace->use_count;
        memcpy(p->first_states, p->play.states, chunks);
        tide_play_step(&p->play, step == 0 ? 0 : LOOK_AHEAD_STEP);
        if (memcmp(p->first_states, p->play.states, chunks) == 0)
            return true;
    }
    return false;
}

static void play_rule(tide_planner *p, tide_play_rule rule)
{
    tide_play_set_rule(&p->play, rule);
    p->candidate.steady = play_to_steady_state(p);
    assert(p->played_uses > 0 || p->play.trace->use_count == 0);
    mend_wrap(p);
    keep_what_fits(p);
    write_candidate(p);
    if (rule > 0 &&
        p->candidate.copies_in + p->candidate.copies_out >= p->plan.copies_in + p->plan.copies_out)
        return;
    const tide_plan held = p->plan;
    p->plan = p->candidate;
    p->candidate = held;
}

const tide_plan *tide_planner_build(tide_planner *planner, const tide_use_trace *trace, uint32_t slots)
{
    planner->played_uses = 0;
    tide_play_set_step(&planner->play, trace, slots);
    play_rule(planner, 0);
    for (tide_play_rule rule = 1; rule < TIDE_PLAY_RULES; rule++)
        if ((planner->play.contested || rule == TIDE_PLAY_LEAST_RECENT) && can_play(planner, STEPS_MIN))
            play_rule(planner, rule);
    return &planner->plan;
}

/* Gives slots to the fetches in order: first those that are free when the step begins, then those that chunks
 * release. */
uint32_t tide_planner_tight_fetches(const tide_planner *planner, uint32_t spare)
{
    const tide_plan *plan = &planner->plan;
    const tide_play *play = &planner->play;
    uint32_t tight = 0, fetch = 0, with_slot = 0;
    uint64_t available = (uint64_t)plan->free_slots + spare, released_last = 0;
    for (uint32_t schedule_step = 0; schedule_step < play->trace->schedule_step_count; schedule_step++) {
        /* `available` counts the slots released before the previous schedule step ended */
        for (; fetch < plan->fetch_count &&
               play->trace->uses[plan->fetches[fetch]].schedule_step == schedule_step;
             fetch++) {
            const bool takes_slot = !plan->in_place[plan->fetches[fetch]];
            tight += takes_slot && with_slot >= available;
            with_slot += takes_slot;
        }
        available += released_last;
        released_last = 0;
        for (uint32_t i = play->ending_first[schedule_step]; i < play->ending_first[schedule_step + 1]; i++)
            released_last += plan->leaves[play->ending[i]];
    }
    return tight;
}

/* --- memory --- */

static void allocate_plan(tide_planner *p, tide_plan *plan, size_t uses)
{
    plan->leaves = tide_arrays_add(&p->arrays, uses, sizeof *plan->leaves);
    plan->fetches = tide_arrays_add(&p->arrays, uses, sizeof *plan->fetches);
    plan->in_place = tide_arrays_add(&p->arrays, uses, sizeof *plan->in_place);
}

tide_status tide_planner_create(uint32_t chunk_count, uint32_t use_count, tide_planner **planner)
{
    tide_planner *p = calloc(1, sizeof *p);
    if (!p)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "planner: no memory for %zu bytes", sizeof *p);
    tide_play_create(&p->play, chunk_count, use_count, &p->arrays);
    p->first_states = tide_arrays_add(&p->arrays, chunk_count, sizeof *p->first_states);
    p->crowd = tide_arrays_add(&p->arrays, use_count + 2u, sizeof *p->crowd);
    allocate_plan(p, &p->plan, use_count);
    allocate_plan(p, &p->candidate, use_count);
    if (p->arrays.lacks) {
        tide_planner_destroy(p);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "planner: no memory for %u uses of %u chunks", use_count,
                         chunk_count);
    }
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
