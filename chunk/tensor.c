/* Tensor states: see tensor.h for the picture the table below draws. */
#include "chunk/tensor.h"

#include <assert.h>

#define TO(state) (1u << TIDE_TENSOR_##state)

/* Bit s of row r: a tensor in state r may go to state s. */
static const unsigned char transitions[TIDE_TENSOR_STATE_COUNT] = {
    [TIDE_TENSOR_FREE] = TO(COMPUTE) | TO(HOLD) | TO(HOLD_AFTER_BWD),
    [TIDE_TENSOR_COMPUTE] = TO(FREE) | TO(HOLD) | TO(HOLD_AFTER_FWD) | TO(HOLD_AFTER_BWD),
    [TIDE_TENSOR_HOLD] = TO(FREE) | TO(COMPUTE) | TO(HOLD_AFTER_BWD),
    [TIDE_TENSOR_HOLD_AFTER_FWD] = TO(COMPUTE) | TO(HOLD) | TO(HOLD_AFTER_BWD),
    [TIDE_TENSOR_HOLD_AFTER_BWD] = TO(HOLD),
};

bool tide_tensor_may(tide_tensor_state from, tide_tensor_state to)
{
    assert((unsigned)from < TIDE_TENSOR_STATE_COUNT && (unsigned)to < TIDE_TENSOR_STATE_COUNT);
    return transitions[from] >> to & 1u;
}

void tide_tensor_counts_move(tide_tensor_counts *counts, tide_tensor_state from, tide_tensor_state to)
{
    assert(tide_tensor_may(from, to));
    assert(counts->in[from] > 0);
    counts->in[from]--;
    counts->in[to]++;
}

uint32_t tide_tensor_counts_total(const tide_tensor_counts *counts)
{
    uint32_t total = 0;
    for (int state = 0; state < TIDE_TENSOR_STATE_COUNT; state++)
        total += counts->in[state];
    return total;
}

uint32_t tide_tensor_counts_live(const tide_tensor_counts *counts)
{
    return tide_tensor_counts_total(counts) - counts->in[TIDE_TENSOR_FREE];
}

bool tide_tensor_counts_complete(const tide_tensor_counts *counts)
{
    assert(tide_tensor_counts_total(counts) > 0);
    return counts->in[TIDE_TENSOR_HOLD_AFTER_BWD] == tide_tensor_counts_total(counts);
}

tide_chunk_state tide_tensor_counts_state(const tide_tensor_counts *counts)
{
    assert(tide_tensor_counts_total(counts) > 0);
    if (counts->in[TIDE_TENSOR_COMPUTE] > 0)
        return TIDE_CHUNK_COMPUTE;
    if (tide_tensor_counts_live(counts) == 0)
        return TIDE_CHUNK_FREE;
    return tide_tensor_counts_complete(counts) ? TIDE_CHUNK_HOLD_AFTER_BWD : TIDE_CHUNK_HOLD;
}
