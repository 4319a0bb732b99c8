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

#include "chunk/manager.h"

/* Tensors of one chunk by state. Their sum is the number of tensors that overlap the chunk, for ever. */
typedef struct tide_tensor_counts {
    uint32_t in[TIDE_TENSOR_STATE_COUNT];
} tide_tensor_counts;

/* May a tensor go from one state to another? */
bool tide_tensor_may(tide_tensor_state from, tide_tensor_state to);

/* STATE, naming the tensor, if tide_tensor_may says no. */
tide_status tide_tensor_check(const char *name, tide_tensor_state from, tide_tensor_state to);

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
