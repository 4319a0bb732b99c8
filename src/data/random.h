/* Counter-based random numbers: a value is a pure function of (key, counter). So any thread can make any
 * element of any tensor, and any position of any epoch, in any order, and a checkpoint saves no generator's
 * state.
 */
#ifndef TIDE_DATA_RANDOM_H
#define TIDE_DATA_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/* The purpose of a stream of numbers. It is part of the counter, so two uses of one seed never share a
 * number. */
typedef enum tide_random_use {
    TIDE_RANDOM_USE_INIT = 1,    /* initial values; `item` is the tensor's index */
    TIDE_RANDOM_USE_SAMPLE = 2,  /* sampled text; `item` is the sample's number */
    TIDE_RANDOM_USE_SHUFFLE = 3, /* training order; `item` is the epoch */
    TIDE_RANDOM_USE_TEST = 4,    /* tests and tools */
} tide_random_use;

/* Philox 4x32-10 (Salmon et al., SC'11): four 32-bit words of block `block` of the stream (seed, use, item).
 */
void tide_random_block(uint64_t seed, tide_random_use use, uint32_t item, uint64_t block, uint32_t words[4]);

/* The bare generator, for its published test vectors: ten rounds over counter[4] with key[2]. */
void tide_random_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4]);

/* Element `index` of the stream, uniform in [0, 1), 53 bits. */
double tide_random_uniform(uint64_t seed, tide_random_use use, uint32_t item, uint64_t index);

/* Elements [first, first + count) of the stream as standard normals times `deviation`, rounded once to fp32.
 * Element i does not depend on first and count. */
void tide_random_normals(uint64_t seed, tide_random_use use, uint32_t item, uint64_t first, uint64_t count,
                         double deviation, float *values);

/* A seeded permutation of [0, size) in constant memory. tide_permutation_at gives the place to which `index`
 * goes; requires index < size. size is 1 .. 2^62. */
typedef struct tide_permutation {
    uint64_t size;
    uint32_t half_bits;     /* the network permutes [0, 4^half_bits), the least such range that holds size */
    uint32_t round_keys[8]; /* one per Feistel round */
} tide_permutation;

tide_permutation tide_permutation_make(uint64_t seed, uint32_t item, uint64_t size);
uint64_t tide_permutation_at(const tide_permutation *permutation, uint64_t index);

#endif
