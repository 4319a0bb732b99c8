/* Traces drawn at random, and the least that any plan of a small one copies.
 *
 * Chunks come in the kinds that a step has:
 *
 *   read only   param chunks of a forward pass, or frozen
 *   trained     read; at the last use its gradients are complete and it leaves for its update
 *   mixed       the same, but gradients stand in parts of it before
 *   kept        modified, and updated where it is: it may stay
 *   activation  created, read or rewritten, and ended with its last use; sometimes twice a step
 *
 * Half of the traces use chunks in any order, half as a step does: up in the forward pass, down in the
 * backward. In half of each, some uses last for several schedule steps.
 *
 * The optimum. A plan says after each use whether the chunk leaves or stays, so the search does: its states
 * are the sets of chunks that are on the device and of those modified there, its steps the schedule steps. The least
 * cost V(n) of n steps that begin and end in any state grows by the least mean cost of a cycle in the end:
 * V(n + p) = V(n) + p x mean, for p a multiple of the cycle's length. Found when V has grown by the same over
 * OPTIMUM_PERIOD steps three times in turn. V(n) itself is below any plan's n steps whatever the cycle.
 */
#ifndef TIDE_TESTS_SMALL_TRACES_H
#define TIDE_TESTS_SMALL_TRACES_H

#include "chunk/manager.h"

enum {
    SMALL_CHUNKS_MAX = 6,
    SMALL_USES_MAX = 16,
    OPTIMUM_PERIOD = 12, /* a multiple of 1, 2, 3, 4, 6 and 12 */
};

typedef struct trace_limits {
    uint32_t chunks; /* at least 3 */
    uint32_t uses;
    uint32_t schedule_step_chunks; /* at most at a schedule step */
} trace_limits;

/* SMALL_CHUNKS_MAX chunks, SMALL_USES_MAX uses, 2 a schedule step. */
extern const trace_limits small_limits;

/* The seed decides all. `trace->uses` has room for limits->uses and gets at least one. `slots` hold the
 * largest schedule step, and with small_limits there are 2 or 3. */
void trace_draw(uint64_t seed, const trace_limits *limits, tide_use_trace *trace, uint32_t *slots);

/* The same steps for ever, but a step begins `schedule_steps` later. The uses are written to `rotated`. False: a use
 * would last beyond the step. */
bool trace_rotate(const tide_use_trace *trace, uint32_t schedule_steps, tide_use_trace *rotated);

typedef struct optimum {
    uint32_t copies;   /* in and out, in OPTIMUM_PERIOD steps, in the long run */
    uint32_t at_least; /* any `steps` steps in turn copy so much */
    uint32_t steps;
} optimum;

/* At most SMALL_CHUNKS_MAX chunks and 3 slots. False: it has not settled (not seen yet). */
bool optimum_find(const tide_use_trace *trace, uint32_t slots, optimum *found);

/* The same where a copy in, and one out, count as so much: one way alone if the other is 0. */
bool optimum_find_weighed(const tide_use_trace *trace, uint32_t slots, uint32_t in, uint32_t out,
                          optimum *found);

/* The training step that a manager has recorded and planned, NULL if there is none. The manager's. */
const tide_use_trace *trace_recorded(const tide_manager *manager);

#endif
