/* The planner: from a recorded step, which chunk leaves the device after which use, and which is fetched for
 * which.
 *
 * Input is a trace: the uses of chunks, schedule step by schedule step, of one step that repeats for ever.
 * Output says of every use whether its chunk stays on the device until its next use or leaves, and lists the
 * fetches in order of need.
 *
 *   steps     0     1     2     3     4     5   | 0 (next step)
 *   chunk A   use---stays------use--leaves      | fetch
 *   chunk B         use--leaves       fetch-use-|-stays
 *
 * Because a chunk that is to leave is known to leave from the end of its last use on, its copy out starts
 * then, and the slot takes the next fetch of the list: as early as a slot allows, never before a fetch needed
 * sooner has one. That moves no byte more than waiting with both until the slot is wanted (the slot is idle
 * in between), so bytes and overlap are not at odds. Releases in order of time and fetches in order of need
 * pair first to first.
 *
 * Policy. At a schedule step that needs more slots than there are, some kept chunk has to have left: which?
 *
 *   1. one whose slot has nothing that is wanted: dead now and written whole at its next use, or changed on
 *      the host, so that it is copied in again anyway (it waits in its slot only to save unmapping and
 *      mapping);
 *   2. farthest next use (Belady's rule), counted in uses and wrapping around into the next step, among clean
 *      chunks (cost 1: in again) and among dirty ones (cost 2: out and in again, but clean from then on);
 *   3. between the farthest clean C and a dirty D that is needed later still: three rules are played out to
 *      their steady states, and the plan that copies least is kept. C leaves if it is at least half as far; C
 *      leaves always; or both futures are played out until C is used, and D leaves if that costs less (moves
 *      until then, and chunks left to be brought back). Large traces play fewer rules, and look ahead less:
 *      the time for planning is bounded.
 *
 * Least recently used is played as well. A chunk that a plan would evict and copy in again stays if slots are
 * left for it.
 *
 * On the small steps of test_planner looking ahead comes to 1.005 times the optimum, half as far to 1.009,
 * always to 1.020; the best of all to 1.0016, of which 0.0006 are beyond any plan that is the same every
 * step. Where a step is too long to look ahead in, letting C always leave meets a lower bound (a linear
 * program: which chunk stays over which gap): a 70B with slots for half of its params, where letting C leave
 * if 3/4 as far moves 2.8% more.
 *
 * Guaranteed, for steps of up to 65,000 uses (of longer ones fewer rules are played): the plan copies no more
 * than least recently used once its steps are equal. Least recently used was cheaper than the other rules
 * with 24 of 100,000 random traces, by a chunk a step, where they are greedy. Not guaranteed: the optimum, or
 * to be no dearer than any other policy. Least of all one whose steps differ: a plan is the same every step.
 * Of A, B and C, written in turn with two slots, a plan keeps one and moves two in and out a step; farthest
 * next use moves one and two in turn. With n chunks and k slots that is worth (k - 1) / (n - 1) of a chunk a
 * step. PatrickStar's order hits upon such a cycle with 1 of 6,000 small random steps, and is cheaper without
 * one with 1 of 60,000.
 *
 * Writing back and loading are minimized together; the exact optimum is NP-hard (Beckmann, Gibbons, Haeupler
 * and McGuffey, "Writeback-Aware Caching", 2020). tests/bench/bench_policy.c compares with the optimum on
 * small cases and with other policies on large ones.
 *
 * The plan is for the steady state: steps are played out until one begins as it ends. Pure: no time, no
 * threads, no random numbers; the same trace gives the same plan. After create nothing is allocated.
 */
#ifndef TIDE_CHUNK_PLANNER_H
#define TIDE_CHUNK_PLANNER_H

#include "chunk/use_trace.h"

typedef struct tide_plan {
    uint32_t use_count;
    bool *leaves; /* for each use: whether the chunk gives its slot up after it */
    uint32_t fetch_count;
    uint32_t *fetches; /* uses that need a fetch (with or without a copy), in order */
    /* for each use: whether its fetch needs no other slot, because the chunk kept its own while the host
     * changed it */
    bool *in_place;
    uint32_t free_slots;            /* free slots when a step begins */
    uint64_t copies_in, copies_out; /* chunks copied a step, in the steady state */
    /* the step ends as it begins; false: it is the last of the steps that were played */
    bool steady;
} tide_plan;

typedef struct tide_planner tide_planner;

/* Create a planner for traces with at most so many chunks and uses. NO_MEMORY. Freed with
 * tide_planner_destroy (NULL allowed). */
tide_status tide_planner_create(uint32_t chunk_count, uint32_t use_count, tide_planner **planner);
void tide_planner_destroy(tide_planner *planner);

/* Plan for `slots` device slots, at least as many as the chunks of any schedule step. The plan is the
 * planner's and good until its next build. About a microsecond and a half a use. */
const tide_plan *tide_planner_build(tide_planner *planner, const tide_use_trace *trace, uint32_t slots);

/* How many fetches of the plan built last get a slot only when the schedule step before their own has ended,
 * so that compute waits for all of the copy, if the device has `spare` slots more than were planned with. */
uint32_t tide_planner_tight_fetches(const tide_planner *planner, uint32_t spare);

#endif
