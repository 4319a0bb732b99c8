/* Random traces, and the fewest copies that any plan of a small trace can make.
 *
 * Chunks have the kinds that occur in a step:
 *
 *   read only   params in a forward pass, or frozen ones
 *   trained     read; at the last use its gradients are complete and it leaves the device for its update
 *   mixed       the same, but parts of it hold gradients before
 *   kept        modified, and updated where it is: it may stay
 *   activation  created, read or rewritten, and ended with its last use; sometimes twice a step
 *
 * Half of the traces use chunks in random order, half in the order of a training step: rising in forward,
 * falling in backward. In half of each, some uses last for several schedule steps.
 *
 * The optimum. A plan decides after each use whether the chunk leaves or stays. So the search has a state
 * for each pair of sets of chunks: those on the device and those modified there; its steps are the
 * schedule steps. V(n) is the least cost of n steps that begin and end in any state. Every plan's n steps
 * cost at least V(n). For large n, V(n + p) = V(n) + p x mean, where mean is the least mean cost of a
 * cycle and p a multiple of that cycle's length. The search ends when V has grown by the same amount over
 * OPTIMUM_PERIOD steps three times in a row.
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
    uint32_t schedule_step_chunks; /* at most so many chunks per schedule step */
} trace_limits;

/* SMALL_CHUNKS_MAX chunks, SMALL_USES_MAX uses, 2 chunks per schedule step. */
extern const trace_limits small_limits;

/* Draws a trace by the seed. The caller's `trace->uses` has space for limits->uses; at least one is drawn.
 * `slots` are enough for the largest schedule step; with small_limits there are 2 or 3. */
void trace_draw(uint64_t seed, const trace_limits *limits, tide_use_trace *trace, uint32_t *slots);

/* Writes the same endless sequence of steps with each step beginning `schedule_steps` later;
 * `rotated->uses` is the caller's. Returns false if a use would last across the new begin. */
bool trace_rotate(const tide_use_trace *trace, uint32_t schedule_steps, tide_use_trace *rotated);

typedef struct optimum {
    uint32_t copies;   /* copies in and out in OPTIMUM_PERIOD steps, in the long run */
    uint32_t at_least; /* the fewest copies of any `steps` steps in a row */
    uint32_t steps;
} optimum;

/* Finds the optimum of a trace with at most SMALL_CHUNKS_MAX chunks, for at most 3 slots. Returns false if
 * the search does not settle, which has never happened. */
bool optimum_find(const tide_use_trace *trace, uint32_t slots, optimum *found);

/* Like optimum_find, with `in` as the cost of a copy in and `out` of a copy out; one of them may be 0. */
bool optimum_find_weighed(const tide_use_trace *trace, uint32_t slots, uint32_t in, uint32_t out,
                          optimum *found);

/* Returns the training step that a manager has recorded and planned, or NULL. The manager owns it. */
const tide_use_trace *trace_recorded(const tide_manager *manager);

#endif
