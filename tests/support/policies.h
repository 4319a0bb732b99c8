/* Other policies for moving chunks, to compare the planner with. Each plays a trace (chunk/planner.h) step
 * after step, fetches on demand, and counts its copies. The counts favour them: chunks whose content ends
 * free their slots at once without a copy, created chunks are not copied in, and all chunks of a schedule
 * step are fetched together or not at all.
 *
 *   LRU          A cache with write-back: evicts the least recently used chunk, and copies it if it was
 *                modified since its last copy to the host. Chunks with TIDE_TRACE_LEAVES leave at that use.
 *   PATRICKSTAR  Evicts the chunk whose next use in this step is farthest. It does not look into the next
 *                step, so all chunks without a further use are equal (the lowest number leaves). All updates
 *                are one schedule step at the step's end: a chunk with complete gradients is used there, on
 *                the host, and not before. A chunk lives in one tier only, so every chunk that leaves is
 *                copied.
 */
#ifndef TIDE_TESTS_POLICIES_H
#define TIDE_TESTS_POLICIES_H

#include "chunk/planner.h"

typedef enum policy { POLICY_LRU = 0, POLICY_PATRICKSTAR, POLICY_COUNT } policy;

/* A policy may never settle into a repeating step, so copies are counted over the last POLICY_STEPS steps. */
enum { POLICY_STEPS = 12 };

typedef struct policy_copies {
    uint64_t in, out; /* chunks in POLICY_STEPS steps */
} policy_copies;

const char *policy_name(policy which);

/* Plays the trace with `slots` slots, enough for its largest schedule step. Returns false if there is no
 * memory. */
bool policy_play(policy which, const tide_use_trace *trace, uint32_t slots, policy_copies *copies);

#endif
