/* The states of all params and ACTIVATION parts, and what of them each chunk holds.
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
 * A part is only ever FREE, COMPUTE or HOLD. A chunk counts its tensors by state, so its own state follows
 * without walking them.
 *
 * A param's gradient stands in its place from the end of its closing op until every chunk that it touches is
 * updated or restored: open_chunks counts those. A chunk is complete when all of its params' gradients of one
 * step are.
 *
 * Owns the states. Calls places, which it tells when a chunk gets or loses content.
 */
#ifndef TIDE_CHUNK_TENSORS_H
#define TIDE_CHUNK_TENSORS_H

#include "chunk/places.h"

/* Tensor states, as in PatrickStar. Params: FREE until the first value, then HOLD between steps. */
typedef enum tide_tensor_state {
    TIDE_TENSOR_FREE = 0,       /* no content: zeros, or a dead activation */
    TIDE_TENSOR_COMPUTE,        /* an open op uses it */
    TIDE_TENSOR_HOLD,           /* content, at rest */
    TIDE_TENSOR_HOLD_AFTER_FWD, /* used in this step's forward */
    TIDE_TENSOR_HOLD_AFTER_BWD, /* its gradient is complete and in its place */
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
    uint32_t open_chunks;   /* chunks whose update or restore is still pending for this gradient */
    uint64_t gradient_step; /* the step that made the gradient, or took it as zero; 0: no step has */
} tide_param_record;

typedef struct tide_tensors {
    tide_arrays arrays;
    const tide_layout *layout;
    tide_places *places;
    tide_param_record *params;
    uint8_t *part_states;       /* one for each part of an ACTIVATION tensor */
    tide_tensor_counts *counts; /* one for each chunk; chunks of optimizer state have none */
} tide_tensors;

/* Create the states, all FREE. `places` may be created later, before the first change. NO_MEMORY. Zeroed
 * states may be destroyed, too. */
tide_status tide_tensors_create(tide_tensors *tensors, const tide_layout *layout, tide_places *places);
void tide_tensors_destroy(tide_tensors *tensors);

void tide_tensors_set_param(tide_tensors *tensors, uint32_t param, tide_tensor_state to);
tide_tensor_state tide_tensors_part(const tide_tensors *tensors, uint32_t tensor, uint32_t part);
void tide_tensors_set_part(tide_tensors *tensors, uint32_t tensor, uint32_t part, tide_tensor_state to);
/* Is this transition between states allowed? */
bool tide_tensor_may(tide_tensor_state from, tide_tensor_state to);
/* Call when a task has written content into a chunk: its params have values from now on; a STATE chunk is
 * live from now on. */
void tide_tensors_note_content(tide_tensors *tensors, tide_chunk chunk);

/* --- gradients --- */

/* Call when the param's place holds the gradient of `step` (`made`), or when the step made none and zero is
 * taken for it: from now on an update is pending for all chunks of the param. */
void tide_tensors_take_gradient(tide_tensors *tensors, uint32_t param, uint64_t step, bool made);
/* Call when training step `step` has ended: takes zero for the gradient of each param that got none. Returns
 * the number of these params. */
uint32_t tide_tensors_take_zeros(tide_tensors *tensors, uint64_t step);
/* Are all params of the chunk HOLD_AFTER_BWD, so that its gradients are complete? The second call: are these
 * gradients all of `step`? */
bool tide_tensors_all_closed(const tide_tensors *tensors, tide_chunk param_chunk);
bool tide_tensors_is_complete(const tide_tensors *tensors, tide_chunk param_chunk, uint64_t step);
/* Does any param in the chunk hold its gradient, or part of it, made by `step`? */
bool tide_tensors_has_gradient(const tide_tensors *tensors, tide_chunk param_chunk, uint64_t step);
/* Call when nothing of `step` is pending for the chunk any more: each of its params goes back to HOLD once
 * nothing is pending for the param's other chunks. */
void tide_tensors_settle(tide_tensors *tensors, tide_chunk param_chunk, uint64_t step);
/* Let no param have a gradient any more (the pool is poisoned). */
void tide_tensors_forget_gradients(tide_tensors *tensors);

/* --- the end of a step --- */

/* Call after a forward-only pass, or after one was given up. Params whose update is still pending keep their
 * state. */
void tide_tensors_rest(tide_tensors *tensors);
void tide_tensors_free_activations(tide_tensors *tensors);

/* Check that the counts agree with places: a chunk is live if one of its tensors is, and pinned if one is in
 * use. Walks all chunks. */
bool tide_tensors_is_valid(const tide_tensors *tensors);

#endif
