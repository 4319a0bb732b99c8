/* The integer hash from which the goldens' params and tokens come. It gives the same bits as number() and
 * centred() in make_gpt2_golden.py and make_family_golden.py, from which make_packed_golden.py has it. */
#ifndef TIDE_TESTS_GOLDEN_GOLDEN_HASH_H
#define TIDE_TESTS_GOLDEN_GOLDEN_HASH_H

#include <stdint.h>

enum { GOLDEN_TOKENS_ITEM = 1000 };

static inline uint32_t golden_number(uint32_t item, uint32_t index)
{
    uint32_t x = index * 2654435761u + item * 2246822519u + 374761393u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    x *= 3266489917u;
    return x ^ (x >> 16);
}

/* A number in [-0.5, 0.5), a multiple of 2^-24. */
static inline float golden_centred(uint32_t item, uint32_t index)
{
    return (float)(golden_number(item, index) >> 8) / (float)(1 << 24) - 0.5f;
}

#endif
