/* Lower bounds on the copies of a recorded step, which hold for every policy of eviction and prefetch.
 *
 * A gap is the time between a use of a chunk and the chunk's next use, in this step or the next. A gap is
 * bridged if the chunk stays on the device all the time; then it takes a slot at every schedule step of the
 * gap. There are not enough slots to bridge all gaps, and each gap that is not bridged costs a copy in. A
 * greedy walk (least.c) over the step, repeated again and again, finds exactly how many gaps can be bridged
 * at most. So a policy that minimizes only copies in reaches this bound (which is rounded down to whole
 * chunks).
 *
 * A copy out is saved if modified content stays on the device until the content is modified again or no
 * longer needed, perhaps over several gaps. That problem is simplified in two ways. Each gives a bound that
 * is at most the true one; the higher of the two is returned.
 *
 * On the small steps of test_least the bound on copies out is 0.993 of the true least number (0.977 with
 * either way alone). The sum of both bounds is 0.987 of the least sum of copies in and out; with exact bounds
 * for each it would be 0.990. For recorded steps of models from GPT-2 to 70B, plans copy at most 1.009 times
 * the bounds, and exactly the bounds if the device has slots for at least half of the params (bench_policy).
 * The search takes 50 nanoseconds per use, or 400 if the walk needs many steps until it repeats.
 *
 * Pure: no time, no threads, no random numbers. Owns its memory. Calls bitset, array.
 */
#ifndef TIDE_CHUNK_LEAST_H
#define TIDE_CHUNK_LEAST_H

#include "chunk/use_trace.h"

typedef struct tide_least tide_least;

/* Create an object for traces with at most these numbers of chunks, uses and schedule steps. NO_MEMORY; then
 * *least is unchanged. Free it with tide_least_destroy (NULL allowed). */
tide_status tide_least_create(uint32_t chunk_count, uint32_t use_count, uint32_t schedule_step_count,
                              tide_least **least);
void tide_least_destroy(tide_least *least);

/* Set `copies_in` and `copies_out` to lower bounds on the average number of chunks copied per step when the
 * trace's step is repeated with `slots` device slots (at least as many as any schedule step has chunks). One
 * policy may not reach both bounds. Copies are counted as in plans (planner.h). Allocates nothing. */
void tide_least_find(tide_least *least, const tide_use_trace *trace, uint32_t slots, uint64_t *copies_in,
                     uint64_t *copies_out);

#endif
