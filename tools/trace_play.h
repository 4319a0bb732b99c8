/* The run of a trace once more, in virtual time: a pool on the null device with the trace's params, checkpoints and
 * ops, which plays the last step's ops in their order. What the machine does, the trace tells: the link's rate each
 * way, what a map takes; how long kernels and updates last is set so that they take together what they took in the
 * trace.
 */
#ifndef TIDE_TOOLS_TRACE_PLAY_H
#define TIDE_TOOLS_TRACE_PLAY_H

#include "tools/trace_steps.h"

typedef struct tide_trace_player tide_trace_player;

/* What may be other than in the trace. */
typedef struct tide_trace_change {
    uint64_t device_memory_bytes, host_memory_bytes;
    tide_placement placement;
    bool prefetch;
} tide_trace_change;

/* UNSUPPORTED: the trace has too little of a run to play it: no whole step, say; NO_MEMORY. The model and the steps
 * must stay. */
TIDE_NODISCARD tide_status tide_trace_player_make(const tide_trace_steps *steps, tide_trace_player **player);
void tide_trace_player_free(tide_trace_player *player); /* NULL: allowed */

/* As it was. */
tide_trace_change tide_trace_player_given(const tide_trace_player *player);
/* Whether the trace tells how long updates take there. Where not, AUTO leaves them on the other side. */
bool tide_trace_player_knows(const tide_trace_player *player, tide_tier tier);
/* Play until steps repeat; what one takes. Any status of tide_pool_seal and the calls of a step: then the change
 * does not work. */
TIDE_NODISCARD tide_status tide_trace_player_play(tide_trace_player *player, const tide_trace_change *change,
                                                  double *step_seconds);
/* Budgets with which everything stays where it is used; 0 before something has been played. */
uint64_t tide_trace_player_full_device_bytes(const tide_trace_player *player);
uint64_t tide_trace_player_full_host_bytes(const tide_trace_player *player);

#endif
