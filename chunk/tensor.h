/* Tensor states and the one table that says which follows which.
 *
 *             FREE -----> COMPUTE <------------------+--------------+
 *              |  ^        | | | |                   |              |
 *       set /  |  | dead   | | | +--> HOLD_AFTER_FWD-+  (forward)   |
 *       write  v  |        | | +----> HOLD_AFTER_BWD ----+          |
 *             HOLD <-------+ |           ^  (complete)   | updated, |
 *              |  ^                      |               | restored |
 *              |  +----------------------|---------------+          |
 *              +-------------------------+ (no gradient: zero)      |
 *              +----------------------------------------------------+
 *
 * Params and parts of CHECKPOINT tensors use the same states; a part is only ever FREE, COMPUTE or HOLD. A
 * chunk counts its tensors by state, so its own state follows without walking them.
 */
#ifndef TIDE_CHUNK_TENSOR_H
#define TIDE_CHUNK_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

/* Tensor states, as in PatrickStar. Params: FREE until the first value, then HOLD between steps. */
typedef enum tide_tensor_state {
    TIDE_TENSOR_FREE = 0,       /* no content: zeros, or a dead checkpoint */
    TIDE_TENSOR_COMPUTE,        /* an open op uses it */
    TIDE_TENSOR_HOLD,           /* content, at rest */
    TIDE_TENSOR_HOLD_AFTER_FWD, /* used in this step's forward */
    TIDE_TENSOR_HOLD_AFTER_BWD, /* its gradient is complete and stands in its place */
    TIDE_TENSOR_STATE_COUNT,
} tide_tensor_state;

/* A chunk's state, derived from counters of the tensors that overlap it. */
typedef enum tide_chunk_state {
    TIDE_CHUNK_FREE = 0,       /* all tensors FREE: its slot may be reused without a copy */
    TIDE_CHUNK_COMPUTE,        /* any tensor COMPUTE: pinned */
    TIDE_CHUNK_HOLD,           /* content, movable */
    TIDE_CHUNK_HOLD_AFTER_BWD, /* all HOLD_AFTER_BWD: its gradients are complete */
    TIDE_CHUNK_UPDATING,       /* an update or restore writes it: pinned where it writes */
} tide_chunk_state;

/* Tensors of one chunk by state. Their sum is the number of tensors that overlap the chunk, for ever. */
typedef struct tide_tensor_counts {
    uint32_t in[TIDE_TENSOR_STATE_COUNT];
} tide_tensor_counts;

/* May a tensor go from one state to another? */
bool tide_tensor_may(tide_tensor_state from, tide_tensor_state to);

/* Note in a chunk's counts that one of its tensors changed state, legally. */
void tide_tensor_counts_move(tide_tensor_counts *counts, tide_tensor_state from, tide_tensor_state to);

uint32_t tide_tensor_counts_total(const tide_tensor_counts *counts);
/* Tensors with content. */
uint32_t tide_tensor_counts_live(const tide_tensor_counts *counts);
/* All of them HOLD_AFTER_BWD: the chunk's gradients are complete. */
bool tide_tensor_counts_complete(const tide_tensor_counts *counts);
/* The chunk's state as far as tensors decide it (UPDATING is the manager's). */
tide_chunk_state tide_tensor_counts_state(const tide_tensor_counts *counts);

#endif
