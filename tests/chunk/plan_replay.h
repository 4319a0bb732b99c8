/* A plan played against its contract (chunk/planner.h). Whatever is not as it says fails the test, naming the
 * seed.
 *
 * A plan is proven by playing it: from the set of chunks that it keeps from the step before, two steps,
 * counting. What a chunk has been through since it came is known after one step, so the second one counts.
 */
#ifndef TIDE_TESTS_PLAN_REPLAY_H
#define TIDE_TESTS_PLAN_REPLAY_H

#include "chunk/planner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { PLANNED_USES_MAX = 400, PLANNED_CHUNKS_MAX = 100 };

typedef struct planned {
    tide_trace_use uses[PLANNED_USES_MAX];
    tide_use_trace trace;
    uint32_t slots;
    uint64_t seed; /* named when something fails */
    const tide_plan *plan;
} planned;

#define CHECK(condition, made)                                                                               \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            fail_msg("seed %llu, %u slots: " #condition, (unsigned long long)(made)->seed, (made)->slots);   \
    } while (0)

/* What `leaves`, `fetches`, `in_place` and the copies say agree, and slots suffice: two steps played. A plan
 * that is not steady may cost more than it need, but is as valid. */
void check_by_replay(const planned *made);

/* Steps are played with fetches as early as the rank rule lets them start: every one has its slot by its
 * schedule step. */
void check_early_fetches(const planned *made);

/* The i-th fetch that wants a slot has that of the i-th release, after those that are idle at the step's
 * begin. */
void check_pairing(const planned *made);

#endif
