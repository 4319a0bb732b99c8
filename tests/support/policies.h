/* Other policies that move chunks, to compare the planner with: each plays a trace (chunk/planner.h) step
 * after step, on demand, and counts what it copies. They cost nothing that a real one would not: what is dead
 * leaves its slot at once and is never copied, what is created is not copied in, schedule steps are all or nothing.
 *
 *   LRU          what a cache with write-back does. The least recently used chunk leaves, copied if it was
 *                modified since the host had it. TIDE_TRACE_LEAVES chunks leave when they have to.
 *   PATRICKSTAR  farthest next use within the iteration: it knows no next one, so that all chunks it has done
 *                with are the same to it (the lowest number goes). All updates are one schedule step at the end of
 *                the step: a chunk with complete gradients is needed there, on the host, and not before. A
 *                chunk lives in one tier only, so that every chunk that leaves is copied.
 */
#ifndef TIDE_TESTS_POLICIES_H
#define TIDE_TESTS_POLICIES_H

#include "chunk/planner.h"

typedef enum policy { POLICY_LRU = 0, POLICY_PATRICKSTAR, POLICY_COUNT } policy;

/* Copies of the last steps of those played: POLICY_STEPS of them, because a policy need not settle on one. */
enum { POLICY_STEPS = 12 };

typedef struct policy_copies {
    uint64_t in, out; /* chunks in POLICY_STEPS steps */
} policy_copies;

const char *policy_name(policy which);

/* `slots` hold the largest schedule step. False: no memory. */
bool policy_play(policy which, const tide_use_trace *trace, uint32_t slots, policy_copies *copies);

#endif
