/* The planner decides, for a recorded step, after which uses chunks leave the device and for which uses they
 * are fetched.
 *
 * Its input is a trace: the uses of chunks, schedule step by schedule step, of one step that repeats for
 * ever. Its output, the plan, says for each use whether the chunk then stays on the device until its next use
 * or leaves, and lists the fetches in the order of the uses that need them.
 *
 *   steps     0     1     2     3     4     5   | 0 (next step)
 *   chunk A   use---stays------use--leaves      | fetch
 *   chunk B         use--leaves       fetch-use-|-stays
 *
 * A chunk that will leave is known at the end of its use, so its copy out starts then, and its slot goes to
 * the next fetch of the list. So each fetch begins as early as a slot is free for it, but no fetch gets a
 * slot before one that is needed sooner. This copies no more bytes than a start of both copies only when the
 * slot is needed, since the slot would be idle until then. The n-th slot released goes to the n-th fetch.
 *
 * Policy. If a schedule step needs more slots than there are, a chunk that is not used there must leave
 * before. In this order:
 *
 *   1. a chunk whose slot has no content that is needed: its next use overwrites all of it, or the host has
 *      changed it, so that it will be copied in again in any case (it kept its slot only to save unmapping
 *      and mapping);
 *   2. the chunk whose next use is farthest (Belady's rule), counted in uses, perhaps in the next step. This
 *      gives one candidate among the clean chunks (cost 1: a copy in) and one among the dirty (cost 2: a copy
 *      out and a copy in, but clean from then on);
 *   3. if the farthest dirty chunk D is needed later than the farthest clean chunk C, the choice depends on a
 *      rule. Three rules are simulated until their steps repeat (steady state), and the plan with the fewest
 *      copies is taken. (a) C leaves if its next use is at least half as far as D's. (b) C always leaves. (c)
 *      Both choices are simulated until C's next use, and D leaves if that costs fewer copies, counting
 *      copies until then and chunks that still have to be copied in. Large traces try fewer rules and look
 *      ahead less, so that the time for planning is bounded.
 *
 * Least recently used is simulated as a fourth rule. Afterwards each chunk that the plan would evict and copy
 * in again stays if there are free slots for it.
 *
 * Copies on the small steps of test_planner, relative to the optimum: 1.009 with rule (a), 1.020 with (b),
 * 1.005 with (c), and 1.0016 with the best of all rules for each step, of which 0.0006 are due to plans being
 * the same in every step. For a step too long for rule (c), a 70B model with slots for half of its params,
 * rule (b) reaches a lower bound (a linear program over which chunk stays through which gap); with 3/4 in
 * place of half, rule (a) copies 2.8% more.
 *
 * Guaranteed for steps of up to 65,000 uses (longer ones try fewer rules): the plan copies no more than least
 * recently used does in its steady state. In 24 of 100,000 random traces least recently used was better than
 * the other rules, by one chunk per step. Not guaranteed: that the plan is optimal, or at least as good as
 * every other policy, in particular as one whose steps differ, since a plan is the same in every step.
 * Example: A, B and C are written in turn, with two slots. A plan keeps one of them and copies two in and out
 * per step; farthest next use copies one and two in alternate steps. With n chunks and k slots the difference
 * is (k - 1) / (n - 1) of a chunk per step. PatrickStar's policy gets into such a cycle in 1 of 6,000 small
 * random steps, and without one it is better than the plan in 1 of 60,000.
 *
 * Copies out and copies in are minimized together. The exact optimum is NP-hard (Beckmann, Gibbons, Haeupler
 * and McGuffey, "Writeback-Aware Caching", 2020). tests/bench/bench_policy.c compares with the optimum on
 * small cases and with other policies on large ones.
 *
 * The plan is for the steady state: steps are simulated until one ends in the state in which it began. The
 * planner uses no clock, no threads and no random numbers: the same trace gives the same plan. It allocates
 * nothing after create.
 */
#ifndef TIDE_CHUNK_PLANNER_H
#define TIDE_CHUNK_PLANNER_H

#include "chunk/use_trace.h"

typedef struct tide_plan {
    uint32_t use_count;
    bool *leaves; /* for each use: whether its chunk leaves the device after it */
    uint32_t fetch_count;
    uint32_t *fetches; /* the uses that need a fetch (with or without a copy), in order */
    /* for each use: whether its fetch goes into the slot that the chunk kept while the host changed it */
    bool *in_place;
    uint32_t free_slots;            /* free slots when a step begins */
    uint64_t copies_in, copies_out; /* chunks copied per step in the steady state */
    /* whether the step ends as it begins; if not, the plan is that of the last step simulated */
    bool steady;
} tide_plan;

typedef struct tide_planner tide_planner;

/* Create a planner for traces with at most these numbers of chunks and uses. NO_MEMORY. Free it with
 * tide_planner_destroy (NULL allowed). */
tide_status tide_planner_create(uint32_t chunk_count, uint32_t use_count, tide_planner **planner);
void tide_planner_destroy(tide_planner *planner);

/* Make a plan for `slots` device slots, at least as many as any schedule step has chunks. The planner owns
 * the plan, which is valid until the next build. Takes about 1.5 microseconds per use. */
const tide_plan *tide_planner_build(tide_planner *planner, const tide_use_trace *trace, uint32_t slots);

/* How many fetches of the last plan get a slot only when the schedule step before their use ends, so that
 * compute waits during the whole copy. `spare`: the device has this many slots more than the plan was made
 * for. */
uint32_t tide_planner_tight_fetches(const tide_planner *planner, uint32_t spare);

#endif
