/* The states of all params and activation parts, and for each chunk how many of its tensors are in each
 * state.
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
 * A part of an activation is only FREE, COMPUTE or HOLD.
 *
 * The param's place holds its gradient from the end of its closing op (gradients.h) until all the param's
 * chunks are updated or restored: `open_chunks` counts those that are not. A chunk is complete when the
 * gradients of all its params, of the same step, are.
 *
 * Owns the states and counts. Calls places when a chunk gets or loses content.
 */
#ifndef TIDE_CHUNK_TENSORS_H
#define TIDE_CHUNK_TENSORS_H

#include "chunk/places.h"

/* Tensor states, named as in PatrickStar. A param is FREE until its first value is set, afterwards HOLD
 * between steps. */
typedef enum tide_tensor_state {
    TIDE_TENSOR_FREE = 0,       /* no content: zeros, or a dead activation */
    TIDE_TENSOR_COMPUTE,        /* an open op uses it */
    TIDE_TENSOR_HOLD,           /* it has content, and no op uses it */
    TIDE_TENSOR_HOLD_AFTER_FWD, /* a param that an op of this step has used, without a complete gradient */
    TIDE_TENSOR_HOLD_AFTER_BWD, /* a param whose place holds its complete gradient */
    TIDE_TENSOR_STATE_COUNT,
} tide_tensor_state;

/* The tensors that overlap one chunk: how many are in each state, and how many there are. */
typedef struct tide_tensor_counts {
    uint32_t in[TIDE_TENSOR_STATE_COUNT];
    uint32_t all;
} tide_tensor_counts;

typedef struct tide_param_record {
    tide_tensor_state state;
    tide_chunk first, last; /* the PARAM chunks in which the param lies */
    bool has_gradient;      /* the param's place holds the gradient */
    uint32_t open_chunks;   /* how many of its chunks still have to be updated or restored */
    uint64_t gradient_step; /* the step whose gradient this is, or was last; 0: none yet */
} tide_param_record;

typedef struct tide_tensors {
    tide_arrays arrays;
    const tide_layout *layout;
    tide_places *places;
    tide_param_record *params;
    uint8_t *part_states;       /* one for each part of an ACTIVATION tensor */
    tide_tensor_counts *counts; /* one for each chunk except STATE chunks */
} tide_tensors;

/* Create the states, all FREE. `places` need not be created before the first change of a state. NO_MEMORY.
 * Zeroed states may be destroyed, too. */
tide_status tide_tensors_create(tide_tensors *tensors, const tide_layout *layout, tide_places *places);
void tide_tensors_destroy(tide_tensors *tensors);

void tide_tensors_set_param(tide_tensors *tensors, uint32_t param, tide_tensor_state to);
tide_tensor_state tide_tensors_part(const tide_tensors *tensors, uint32_t tensor, uint32_t part);
void tide_tensors_set_part(tide_tensors *tensors, uint32_t tensor, uint32_t part, tide_tensor_state to);
/* May a tensor go from this state to that one (see the figure)? */
bool tide_tensor_may(tide_tensor_state from, tide_tensor_state to);
/* Call when a task has written into a chunk: FREE params of it become HOLD; a STATE chunk becomes live. */
void tide_tensors_note_content(tide_tensors *tensors, tide_chunk chunk);

/* --- gradients --- */

/* Call when the param's place holds the gradient of `step` (`made`), or when no op made one and zero is taken
 * for it. All chunks of the param then have to be updated. */
void tide_tensors_take_gradient(tide_tensors *tensors, uint32_t param, uint64_t step, bool made);
/* Call when training step `step` has ended: takes zero for the gradient of each trained param without one.
 * Returns how many these are. */
uint32_t tide_tensors_take_zeros(tide_tensors *tensors, uint64_t step);
/* Are all params of the chunk HOLD_AFTER_BWD? is_complete: and are their gradients all of `step`? */
bool tide_tensors_all_closed(const tide_tensors *tensors, tide_chunk param_chunk);
bool tide_tensors_is_complete(const tide_tensors *tensors, tide_chunk param_chunk, uint64_t step);
/* Does the place of any param in the chunk hold a gradient of `step`? */
bool tide_tensors_has_gradient(const tide_tensors *tensors, tide_chunk param_chunk, uint64_t step);
/* Call when the chunk is updated or restored for `step`. Each of its params returns to HOLD if that holds for
 * all the param's chunks. */
void tide_tensors_settle(tide_tensors *tensors, tide_chunk param_chunk, uint64_t step);
/* Drop all gradients, since the pool is poisoned. */
void tide_tensors_forget_gradients(tide_tensors *tensors);

/* --- the end of a step --- */

/* Call at the end of a step, also of one given up: every param with content returns to HOLD, unless its
 * update is pending. */
void tide_tensors_rest(tide_tensors *tensors);
void tide_tensors_free_activations(tide_tensors *tensors);

/* Check that the counts agree with places: a chunk is live if one of its tensors has content, and pinned if
 * an op uses one. Walks all chunks. */
bool tide_tensors_is_valid(const tide_tensors *tensors);

#endif
