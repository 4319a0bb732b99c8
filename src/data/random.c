/* Philox 4x32-10, and the random numbers and the permutation that are built on it.
 *
 * Why counter-based: initial values must not depend on the chunk size, on the number of threads or on the
 * order in which params are filled; the training order must follow from the step number alone. A generator
 * with a state could do neither without storing the state.
 *
 *     counter = { block low, block high, item, use }     key = { seed low, seed high }
 *
 * Philox was chosen over a splitmix-based hash of the counter because it is published with test vectors and
 * passes BigCrush for every key; it costs about 10 multiplications a block of four words (base/philox.h).
 *
 * Normals come from Box-Muller in double precision: two words give two values, and none is rejected, so
 * element i does not depend on others. The tails end at sqrt(2 x 32 x ln 2) = 6.66 deviations. The CPU's
 * kernels make normals in vectors (kernels/cpu/normals.c).
 *
 * The permutation is a balanced Feistel network of eight rounds over [0, 4^half_bits), with cycle walking: a
 * result outside [0, size) passes through the network again until it falls inside, which keeps the
 * permutation a bijection. The range is under four times size, so fewer than four passes are needed on
 * average, and memory is 48 bytes whatever the size. */
#include "src/data/random.h"

#include "base/philox.h"
#include "kernels/kernels.h"

#include <assert.h>
#include <string.h>

enum { FEISTEL_ROUNDS = 8, BLOCK_WORDS = 4 };

void tide_random_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4])
{
    memcpy(words, counter, BLOCK_WORDS * sizeof *words);
    for (uint32_t round = 0; round < TIDE_PHILOX_ROUNDS; round++)
        tide_philox_round(&words[0], &words[1], &words[2], &words[3], key, round);
}

void tide_random_block(uint64_t seed, tide_random_use use, uint32_t item, uint64_t block, uint32_t words[4])
{
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), item, (uint32_t)use};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    tide_random_philox(counter, key, words);
}

double tide_random_uniform(uint64_t seed, tide_random_use use, uint32_t item, uint64_t index)
{
    uint32_t words[4];
    tide_random_block(seed, use, item, index / 2, words);
    const uint32_t *pair = words + 2 * (index % 2);
    uint64_t bits = (uint64_t)pair[0] << 32 | pair[1];
    return (double)(bits >> 11) * 0x1p-53;
}

void tide_random_normals(uint64_t seed, tide_random_use use, uint32_t item, uint64_t first, uint64_t count,
                         double deviation, float *values)
{
    const tide_normals_args args = {.key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
                                    .stream = {item, (uint32_t)use},
                                    .deviation = deviation};
    for (uint64_t done = 0; done < count;) {
        const uint64_t element = first + done, lane = element % BLOCK_WORDS;
        const uint64_t blocks = lane == 0 ? (count - done) / BLOCK_WORDS : 0;
        if (blocks > 0) {
            tide_kernels_cpu_normals(&args, element / BLOCK_WORDS, blocks, values + done);
            done += blocks * BLOCK_WORDS;
            continue;
        }
        /* The range begins or ends inside a block. */
        float block[BLOCK_WORDS];
        tide_kernels_cpu_normals(&args, element / BLOCK_WORDS, 1, block);
        for (uint64_t at = lane; at < BLOCK_WORDS && done < count; at++)
            values[done++] = block[at];
    }
}

tide_permutation tide_permutation_make(uint64_t seed, uint32_t item, uint64_t size)
{
    assert(size >= 1 && size <= 1ull << 62);
    tide_permutation permutation = {.size = size, .half_bits = 1};
    while (permutation.half_bits < 31 && size > 1ull << (2 * permutation.half_bits))
        permutation.half_bits++;
    tide_random_block(seed, TIDE_RANDOM_USE_SHUFFLE, item, 0, permutation.round_keys);
    tide_random_block(seed, TIDE_RANDOM_USE_SHUFFLE, item, 1, permutation.round_keys + 4);
    return permutation;
}

/* The function of a Feistel round. With any function the network is a bijection; this one (murmur3's
 * finalizer) mixes well.
 */
static uint32_t feistel_mix(uint32_t half, uint32_t key)
{
    uint32_t mixed = half ^ key;
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6Bu;
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35u;
    return (mixed ^ mixed >> 16) + key;
}

static uint64_t feistel_pass(const tide_permutation *permutation, uint64_t value)
{
    uint32_t bits = permutation->half_bits;
    uint32_t mask = (uint32_t)((1ull << bits) - 1);
    uint32_t left = (uint32_t)(value >> bits) & mask;
    uint32_t right = (uint32_t)value & mask;
    for (int round = 0; round < FEISTEL_ROUNDS; round++) {
        uint32_t swapped = left ^ (feistel_mix(right, permutation->round_keys[round]) & mask);
        left = right;
        right = swapped;
    }
    return (uint64_t)left << bits | right;
}

uint64_t tide_permutation_at(const tide_permutation *permutation, uint64_t index)
{
    assert(index < permutation->size);
    uint64_t value = index;
    do {
        value = feistel_pass(permutation, value);
    } while (value >= permutation->size);
    return value;
}
