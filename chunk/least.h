/* The least that a recorded step copies: lower bounds, whatever the policy.
 *
 * A gap is the time between a use of a chunk and its next one, in this step or the next. A chunk that is on
 * the device through all of a gap takes a slot there at every schedule step; so not all gaps can be bridged,
 * and every one that is not is a copy in. A greedy walk (least.c) finds exactly how many can be bridged at
 * most, with the step played again and again: the bound on copies in is the least that any policy reaches
 * which minimizes them alone, rounded down to whole chunks.
 *
 * A copy out is saved where modified content stays on the device until it is modified again or ends, which
 * may be over several gaps. That problem is made easier in two ways, each of which only lowers the bound; the
 * higher one counts.
 *
 * On the small steps of test_least the bound on copies out is 0.993 of the true least number (0.977 with
 * either way alone). Both bounds together come to 0.987 of the least sum of copies in and out; two separate
 * bounds can reach 0.990. For steps recorded from GPT-2 to 70B, plans copy at most 1.009 times as much, and
 * just as much where the device has slots for half of the params or more (bench_policy). The search takes 50
 * nanoseconds a use, 400 where steps take long to repeat.
 *
 * Pure: no time, no threads, no random numbers. Owns its memory. Calls bitset, array.
 */
#ifndef TIDE_CHUNK_LEAST_H
#define TIDE_CHUNK_LEAST_H

#include "chunk/use_trace.h"

typedef struct tide_least tide_least;

/* Create an object for traces with at most so many chunks, uses and schedule steps. NO_MEMORY, *least
 * unchanged. Freed with tide_least_destroy (NULL allowed). */
tide_status tide_least_create(uint32_t chunk_count, uint32_t use_count, uint32_t schedule_step_count,
                              tide_least **least);
void tide_least_destroy(tide_least *least);

/* Whoever makes the trace's uses step after step, in order, with `slots` device slots (at least as many as
 * the chunks of any schedule step), copies at least so many chunks in, and so many out, a step on average.
 * Each way taken alone: they need not be reachable together. Copies are counted as by the plan (planner.h).
 * Allocates nothing. */
void tide_least_find(tide_least *least, const tide_use_trace *trace, uint32_t slots, uint64_t *copies_in,
                     uint64_t *copies_out);

#endif
