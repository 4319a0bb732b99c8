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
    tide_chunk first, last; /* PARAM chunks */
    bool has_gradient;      /* its place holds the gradient */
    uint32_t open_chunks;   /* chunks whose update or restore is still pending for this gradient */
    uint64_t gradient_step; /* the step that made it (or took it as zero); 0 before the first */
} tide_param_record;

typedef struct tide_tensors {
    tide_arrays arrays;
    const tide_layout *layout;
    tide_places *places;
    tide_param_record *params;
    uint8_t *part_states;       /* per part of an ACTIVATION tensor */
    tide_tensor_counts *counts; /* per chunk; fp32 chunks have none */
} tide_tensors;

/* All FREE. `places` may be created later, before the first change. NO_MEMORY. Zeroed ones may be destroyed,
 * too. */
tide_status tide_tensors_create(tide_tensors *tensors, const tide_layout *layout, tide_places *places);
void tide_tensors_destroy(tide_tensors *tensors);

void tide_tensors_set_param(tide_tensors *tensors, uint32_t param, tide_tensor_state to);
tide_tensor_state tide_tensors_part(const tide_tensors *tensors, uint32_t tensor, uint32_t part);
void tide_tensors_set_part(tide_tensors *tensors, uint32_t tensor, uint32_t part, tide_tensor_state to);
/* May a tensor go from one state to another? */
bool tide_tensor_may(tide_tensor_state from, tide_tensor_state to);
/* A task has written content into a chunk: params without a value have one from now on, an fp32 chunk is
 * live. */
void tide_tensors_note_content(tide_tensors *tensors, tide_chunk chunk);

/* --- gradients --- */

/* The param's place holds the gradient of `step` (`made`), or zero is taken for it: something is pending for
 * all its chunks. */
void tide_tensors_take_gradient(tide_tensors *tensors, uint32_t param, uint64_t step, bool made);
/* Training step `step` is over: params without a gradient of it get zero. Returns how many. */
uint32_t tide_tensors_take_zeros(tide_tensors *tensors, uint64_t step);
/* Are all params of the chunk HOLD_AFTER_BWD, so that its gradients are complete? And are all of these of
 * `step`? */
bool tide_tensors_all_closed(const tide_tensors *tensors, tide_chunk param_chunk);
bool tide_tensors_is_complete(const tide_tensors *tensors, tide_chunk param_chunk, uint64_t step);
/* Does any param in the chunk hold its gradient, or part of it, made by `step`? */
bool tide_tensors_has_gradient(const tide_tensors *tensors, tide_chunk param_chunk, uint64_t step);
/* Nothing of `step` is pending for the chunk any more: its params go back to HOLD when no other chunk of
 * theirs has anything pending. */
void tide_tensors_settle(tide_tensors *tensors, tide_chunk param_chunk, uint64_t step);
/* Let no param have a gradient any more (the pool is poisoned). */
void tide_tensors_forget_gradients(tide_tensors *tensors);

/* --- the end of a step --- */

/* After a forward-only pass, or one given up. Params whose update is still pending keep their state. */
void tide_tensors_rest(tide_tensors *tensors);
void tide_tensors_free_activations(tide_tensors *tensors);

/* Do the counts agree with places? A chunk is live if a tensor of it is, and pinned if one is in use. Walks
 * all chunks. */
bool tide_tensors_is_valid(const tide_tensors *tensors);

#endif
