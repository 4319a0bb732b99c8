/* The order in which the ranks' sums of a gradient are added (tidepool/pool.h, section 5): the sum of several
 * ranks is that of the first 2^k of them, the most that leave one over, plus that of the rest, in fp32. */
#ifndef TIDE_COMM_TREE_H
#define TIDE_COMM_TREE_H

#include <stdint.h>

/* The sums of one rank: fp32 or, if `is_bf16`, bf16. Aligned for their type. */
typedef struct tide_tree_input {
    const void *data;
    int is_bf16;
} tide_tree_input;

/* out[i] = the tree over inputs[0 .. count) of element i, for `elements` elements. `out` may be the data of
 * an fp32 input. `count` is 1 to TIDE_RANKS_MAX. */
void tide_tree_sum(const tide_tree_input *inputs, uint32_t count, uint64_t elements, float *out);

#endif
