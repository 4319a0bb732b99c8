/* Checks a plan against its contract (chunk/planner.h) by playing it. A contradiction fails the test with a
 * message that names the seed.
 *
 * A check begins with the chunks that the plan keeps from the step before, plays two steps and counts copies
 * in the second. The history of a kept chunk, such as whether the host has a copy of it, is known only after
 * one step.
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
    uint64_t seed; /* for messages */
    const tide_plan *plan;
} planned;

#define CHECK(condition, made)                                                                               \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            fail_msg("seed %llu, %u slots: " #condition, (unsigned long long)(made)->seed, (made)->slots);   \
    } while (0)

/* Play two steps. The plan's `leaves`, `fetches`, `in_place` and numbers of copies must agree, and the slots
 * must suffice. A plan that is not steady may cost more than necessary, but must be as valid. */
void check_by_replay(const planned *made);

/* Play steps in which each fetch starts as early as it may (start_fetches). Each must have its slot by the
 * schedule step that needs it. */
void check_early_fetches(const planned *made);

/* The slots that are idle at the step's begin go to the first fetches that need a slot. After these the i-th
 * such fetch takes the slot of the i-th chunk that leaves. */
void check_pairing(const planned *made);

#endif
