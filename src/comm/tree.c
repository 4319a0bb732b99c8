#include "src/comm/tree.h"

#include "base/bf16.h"
#include "base/minmax.h"
#include "tidepool/comm.h"

#include <assert.h>
#include <string.h>

enum {
    BLOCK = 1024,   /* elements at a time, so that partial sums stay in the cache */
    LEVELS_MAX = 11 /* partial sums of 1, 2, 4, ... ranks; TIDE_RANKS_MAX is 2^10 */
};
static_assert(TIDE_RANKS_MAX <= 1 << (LEVELS_MAX - 1), "the tree has LEVELS_MAX levels");

static void load(const tide_tree_input *input, uint64_t first, uint32_t count, float *sums)
{
    if (!input->is_bf16) {
        memcpy(sums, (const float *)input->data + first, count * sizeof *sums);
        return;
    }
    const uint16_t *values = (const uint16_t *)input->data + first;
    for (uint32_t i = 0; i < count; i++)
        sums[i] = tide_bf16_to_float(values[i]);
}

static void add(float *to, const float *from, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        to[i] += from[i];
}

/* A binary counter: sums[s] is the sum of the next larger power of two of ranks that a one bit of the count
 * so far stands for. */
static void sum_block(const tide_tree_input *inputs, uint32_t count, uint64_t first, uint32_t elements,
                      float *out)
{
    float sums[LEVELS_MAX][BLOCK];
    uint32_t used = 0;
    for (uint32_t rank = 0; rank < count; rank++) {
        load(&inputs[rank], first, elements, sums[used++]);
        for (uint32_t bits = rank; bits & 1; bits >>= 1, used--)
            add(sums[used - 2], sums[used - 1], elements);
    }
    for (; used > 1; used--)
        add(sums[used - 2], sums[used - 1], elements);
    memcpy(out + first, sums[0], elements * sizeof *out);
}

void tide_tree_sum(const tide_tree_input *inputs, uint32_t count, uint64_t elements, float *out)
{
    assert(count > 0 && count <= TIDE_RANKS_MAX);
    for (uint64_t first = 0; first < elements; first += BLOCK)
        sum_block(inputs, count, first, (uint32_t)tide_min_u64(BLOCK, elements - first), out);
}
